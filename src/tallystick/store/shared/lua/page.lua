-- Keys of a range in order, each with its value, until there are enough of them or the values sum up to enough bytes.
--
-- KEYS: the values of an area, the order of its keys.
-- ARGV: how many, how many bytes, the bounds in the order in which they are met, and 'REV' if that is from above.
local found, left = {}, tonumber(ARGV[2])
local keys = redis.call('ZRANGE', KEYS[2], ARGV[3], ARGV[4], 'BYLEX', 'LIMIT', 0, ARGV[1], unpack(ARGV, 5))
for place, key in ipairs(keys) do
    local value = redis.call('HGET', KEYS[1], key)
    found[2 * place - 1], found[2 * place] = key, value
    left = left - #value
    if left <= 0 then
        break
    end
end
return found
