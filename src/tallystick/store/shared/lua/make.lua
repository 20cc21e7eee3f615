-- The stores of a cluster, if there is none yet: the ids of those that it has.
--
-- KEYS: the ids of the stores, in order.
-- ARGV: the ids that they are to have.

if redis.call('EXISTS', KEYS[1]) == 0 then
    redis.call('RPUSH', KEYS[1], unpack(ARGV))
end
return redis.call('LRANGE', KEYS[1], 0, -1)
