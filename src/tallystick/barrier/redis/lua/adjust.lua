-- An effect: add each of ARGV to the counter of the same place in KEYS, or none of them if one would fall below zero.

-- Everything is checked before the first write, for Redis undoes nothing when a script fails half-way.
-- Beyond this number Lua no longer counts exactly.
local most = 9007199254740991
for place, key in ipairs(KEYS) do
    local amount = tonumber(ARGV[place])
    local value = redis.call('GET', key)
    if not value then
        return {refused = key}
    end
    local number = (value == '0' or string.match(value, '^%-?[1-9]%d*$')) and tonumber(value)
    if not number or math.abs(number) > most or math.abs(number + amount) > most then
        return redis.error_reply('ERR ' .. key .. ' holds no integer that can be counted with; nothing was changed')
    end
    if amount < 0 and number + amount < 0 then
        return {refused = key}
    end
end
for place, key in ipairs(KEYS) do
    redis.call('INCRBY', key, ARGV[place])
end
return #KEYS
