-- A broker tells of itself, and sees everybody.
--
-- KEYS: the members; the ids of the stores, in order.
-- ARGV: the member's id, and the member.
-- Returns all members, the stores' ids, and this node's clock in seconds and microseconds.

-- Where memory is used up, Redis refuses a script whose first change needs room, and no other.
redis.call('HDEL', KEYS[1], ARGV[1])
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
return { redis.call('HVALS', KEYS[1]), redis.call('LRANGE', KEYS[2], 0, -1), redis.call('TIME') }
