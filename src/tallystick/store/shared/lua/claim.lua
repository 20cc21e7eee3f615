-- Another owner, or nobody, if the epoch is still the expected one: in the fence itself, which every unit is held to.
--
-- KEYS: the fence.
-- ARGV: the expected epoch, or an empty string for any; by how much it is raised; the owner.
-- Returns the epoch and the unit as they are then, or nothing if the epoch was another.

if ARGV[1] ~= '' and (redis.call('HGET', KEYS[1], 'epoch') or '0') ~= ARGV[1] then
    return false
end
-- Where memory is used up, Redis refuses a script whose first change needs room, and no other.
redis.call('HDEL', KEYS[1], 'owner')
redis.call('HSETNX', KEYS[1], 'unit', '0')
redis.call('HSET', KEYS[1], 'owner', ARGV[3])
return { redis.call('HINCRBY', KEYS[1], 'epoch', ARGV[2]), redis.call('HINCRBY', KEYS[1], 'unit', 0) }
