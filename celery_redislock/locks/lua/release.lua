-- Release one hold, if it is ours. Atomic; repeating it is harmless.
--
-- KEYS  1  lock     string `token NUL json`
--       2  window   string `token NUL json`
--       3  mark     mark to leave behind
--       4  index    sorted set of names; absent where it would live in another slot
-- ARGV  1  token    of the hold to release
--       2  name     of the lock, the index member
--       3  undo     '1': what was accepted never ran, so its window ends as well
--       4  state    `ending` or `done`, what the mark says
--       5  keep     ms the mark lives; 0 leaves none
-- RETURNS {1}                 released
--         {0}                 missing: expired, or released before
--         {-1, value, pttl}   held by another token, untouched
local lock, window, mark, index = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local token, name, undo, state, keep = ARGV[1], ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[5])
local prefix = token .. '\0'

local function ours(value)
  return value and string.sub(value, 1, #prefix) == prefix
end

local value = redis.call('GET', lock)
-- It changes nothing, but counts as a write: a replica, which may not have heard of this hold yet, fails; and
-- a server short of memory refuses SET as a script's first write only.
redis.call('GETEX', lock)
local opened = undo == '1' and ours(redis.call('GET', window))
if ours(value) then
  redis.call('DEL', lock)
end
if index and (ours(value) or not value) then
  -- pcall: a broken index is no reason to keep a lock.
  redis.pcall('ZREM', index, name)
end
if opened then
  redis.call('DEL', window)
  if index then
    redis.pcall('ZREM', index, name .. '\0window')
  end
end
if keep > 0 and state == 'done' then
  redis.call('SET', mark, state, 'PX', keep)
elseif keep > 0 then
  redis.call('SET', mark, state, 'PX', keep, 'NX')
end
if not value then
  return {0}
end
if not ours(value) then
  return {-1, value, redis.call('PTTL', lock)}
end
return {1}
