-- A check-back: if nothing has happened under this barrier key, nothing ever will. Returns the mark.
--
-- KEYS: the barrier key. ARGV: seconds that the mark is kept.
local mark = redis.call('GET', KEYS[1])
if not mark then
    mark = 'rollback'
    redis.call('SET', KEYS[1], mark, 'EX', ARGV[1])
end
return mark
