-- The fence, by way of a change that changes nothing: whoever has it has all that was written before.
--
-- KEYS: the fence.
-- Returns epoch, unit and owner.

if redis.call('EXISTS', KEYS[1]) == 1 then
    -- Where memory is used up, Redis refuses a script whose first change needs room, and no other.
    redis.call('HDEL', KEYS[1], '')
    redis.call('HINCRBY', KEYS[1], 'unit', 0)
end
return redis.call('HMGET', KEYS[1], 'epoch', 'unit', 'owner')
