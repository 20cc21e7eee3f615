-- Runs `effect` once for a barrier key, and marks that key, as one unit. The definition of `effect` stands before this.
--
-- KEYS: the barrier key; that of the effect which this one takes back (else the first once more); the effect's own.
-- ARGV: seconds that marks are kept; 'reverse' if this takes another effect back, else 'forward'; the effect's.
-- Returns {'done', value}, {'marked', mark}, {'skipped'} or {'refused', reason}.

-- The mark is looked at before anything else. The effect may no longer be possible because it has happened (the last
-- unit is gone), and that is a duplicate, not a refusal.
local mark = redis.call('GET', KEYS[1])
if mark then
    return {'marked', mark}
end

if ARGV[2] == 'reverse' then
    local origin = redis.call('GET', KEYS[2])
    if not origin then
        -- What is to be taken back has not happened: see to it that it never does.
        redis.call('SET', KEYS[2], 'rollback', 'EX', ARGV[1])
    end
    if origin ~= 'op' then
        redis.call('SET', KEYS[1], 'op', 'EX', ARGV[1])
        return {'skipped'}
    end
end

local answer = effect({unpack(KEYS, 3)}, {unpack(ARGV, 3)})
if type(answer) == 'table' and answer.refused then
    return {'refused', answer.refused}
end
if type(answer) == 'table' and answer.err then
    return answer
end
-- Redis refuses a script's first write (no memory, a replica) or none, so after the effect's this one succeeds.
redis.call('SET', KEYS[1], 'op', 'EX', ARGV[1])
return {'done', answer}
