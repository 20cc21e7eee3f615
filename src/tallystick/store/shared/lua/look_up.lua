-- Values of several areas at one moment.
--
-- Redis refuses every command inside MULTI while its memory is full. It refuses no script that only reads.
--
-- KEYS: the values of each area.
-- ARGV: for each area the number of keys, and these.
-- Returns a list of values for each area, false where a key is missing.

local IN_ONE_COMMAND = 4000 -- Lua hands at most 8000 values to a command

local found, place = {}, 1
for area, values in ipairs(KEYS) do
    local last = place + ARGV[place]
    local here = {}
    for first = place + 1, last, IN_ONE_COMMAND do
        local some = redis.call('HMGET', values, unpack(ARGV, first, math.min(last, first + IN_ONE_COMMAND - 1)))
        if #here == 0 then
            here = some
        else
            for _, value in ipairs(some) do
                here[#here + 1] = value
            end
        end
    end
    found[area], place = here, last + 1
end
return found
