-- One unit of changes, if the fence is exactly the writer's. Without arguments: a further step of deleting ranges.
--
-- KEYS: the fence; the ranges that are still to be deleted; then, of each area, its values and the order of its keys.
-- ARGV: epoch, unit; the number of ranges, and of each its area, its start and its end; then runs of one kind, each
-- 'delete' or 'put', its area, how many values follow, and these: keys, or keys and values by turns.
-- Returns -1 if the fence is another one, else how many ranges are left to be deleted.

local IN_ONE_STEP = 20000 -- keys of ranges: nobody else is answered meanwhile
local IN_ONE_COMMAND = 4000 -- Lua hands at most 8000 values to a command

local function values_of(area)
    return KEYS[1 + 2 * area]
end

local function order_of(area)
    return KEYS[2 + 2 * area]
end

-- Deletes up to `most` keys of the ranges, which lie flat in a list, and returns the place of the first one that is left.
local function delete_ranges(ranges, most)
    local place = 1
    while most > 0 and ranges[place] do
        local area, start, stop = unpack(ranges, place, place + 2)
        local gone = redis.call(
            'ZRANGE', order_of(area), '[' .. start, '(' .. stop, 'BYLEX', 'LIMIT', 0, math.min(most, IN_ONE_COMMAND)
        )
        if #gone > 0 then
            redis.call('HDEL', values_of(area), unpack(gone))
            redis.call('ZREM', order_of(area), unpack(gone))
            most = most - #gone
        else
            place = place + 3
        end
    end
    return place
end

local function keep_for_later(ranges, place)
    redis.call('DEL', KEYS[2])
    for first = place, #ranges, 3 do
        redis.call('RPUSH', KEYS[2], unpack(ranges, first, first + 2))
    end
    return (#ranges + 1 - place) / 3
end

local ranges = redis.call('LRANGE', KEYS[2], 0, -1)
if #ARGV == 0 then
    return #ranges > 0 and keep_for_later(ranges, delete_ranges(ranges, IN_ONE_STEP)) or 0
end

local fence = redis.call('HMGET', KEYS[1], 'epoch', 'unit')
if fence[1] ~= ARGV[1] or fence[2] ~= ARGV[2] then
    return -1
end

-- Ranges of an earlier unit, whose writer was cut off, go first and as a whole: this unit may put keys into them.
local most = #ranges > 0 and math.huge or IN_ONE_STEP
local place = 4
for _ = 1, 3 * ARGV[3] do
    ranges[#ranges + 1] = ARGV[place]
    place = place + 1
end
local left = 0
if #ranges > 0 then
    left = keep_for_later(ranges, delete_ranges(ranges, most))
end

while ARGV[place] do
    local kind, area, first = ARGV[place], ARGV[place + 1], place + 3
    local last = place + 2 + ARGV[place + 2]
    if kind == 'delete' then
        redis.call('HDEL', values_of(area), unpack(ARGV, first, last))
        redis.call('ZREM', order_of(area), unpack(ARGV, first, last))
    elseif redis.call('HSET', values_of(area), unpack(ARGV, first, last)) > 0 then
        local scored = {}
        for key = first, last, 2 do
            scored[#scored + 1] = '0'
            scored[#scored + 1] = ARGV[key]
        end
        redis.call('ZADD', order_of(area), unpack(scored))
    end
    place = last + 1
end

if place == 4 and #ranges == 0 then
    -- A unit without changes only counts. As the first change of a script, that would be refused where Redis is full,
    -- and with it the owner that opens the store again to delete something.
    redis.call('HDEL', KEYS[1], '')
end

-- At the end: Redis undoes nothing if a script fails half-way, and a unit that is counted is taken for whole. One that
-- is not will be sent again, and changes the same keys to the same.
redis.call('HINCRBY', KEYS[1], 'unit', 1)
return left
