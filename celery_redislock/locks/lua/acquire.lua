-- Take the exclusive hold on one lock, keep it, or take it over from a named token. Atomic.
--
-- KEYS  1  lock     string `token NUL json`, what this script grants
--       2  window   string `token NUL json`: the last acceptance, while lock_period runs
--       3  fence    the strict fence's last number
--       4  mark     string `ending` or `done`, of the message this hold is for
--       5  index    sorted set name -> expiry (ms, server clock), `name NUL window` for a window's;
--                   absent where it would live in another slot
-- ARGV  1  token    of the hold asked for
--       2  ttl      ms
--       3  about    json describing the holder
--       4  from     token this hold may be taken over from; '' for none
--       5  name     of the lock, the index member
--       6  period   ms until another one may be accepted; 0 for no window
--       7  strict   ms the strict fence key outlives this acquire; 0 for time fences
--       8  starts   '1': a run starts with this hold, so a lack of memory does not refuse it
-- RETURNS {1, fence}            granted, the lock was free
--         {2, fence}            granted, taken over from `from`
--         {4, fence}            granted, already ours: the request was repeated
--         {0, value, pttl, 0}   refused by the holder; pttl is -1 for a foreign lock without a ttl
--         {0, value, pttl, 1}   refused by the window
--         {3, done, pttl}       refused by the message's mark: done is 1, or 0 while its run is ending
local lock, window, fence_key, mark, index = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local token, ttl, about, from, name = ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[4], ARGV[5]
local period, strict, starts = tonumber(ARGV[6]), tonumber(ARGV[7]), ARGV[8] == '1'

local function belongs(value, to)
  return to ~= '' and string.sub(value, 1, #to + 1) == to .. '\0'
end

-- GETEX changes nothing here, but counts as a write: a replica, which may know only what is long past,
-- fails at it instead of refusing somebody. At the end, because a script that has written is not stopped
-- any more by a lack of memory.
local function refused(answer)
  redis.call('GETEX', lock)
  return answer
end

-- Every read comes before the first write: a key of the wrong type then refuses the whole, not the rest of it.
local value = redis.call('GET', lock)
local ours = value and belongs(value, token)
local kept = value and (ours or belongs(value, from))
local opens_window = false
-- The mark comes first: a copy of a message that has run takes nothing, not even its own claim.
local state = not ours and redis.call('GET', mark)
if state then
  return refused({3, state == 'done' and 1 or 0, redis.call('PTTL', mark)})
end
if value and not kept then
  return refused({0, value, redis.call('PTTL', lock), 0})
end
if not kept and period > 0 then
  local accepted = redis.call('GET', window)
  if accepted and not belongs(accepted, token) and not belongs(accepted, from) then
    return refused({0, accepted, redis.call('PTTL', window), 1})
  end
  opens_window = not accepted
end
local time = redis.call('TIME')
local fence = tonumber(time[1]) * 1000000 + tonumber(time[2])
if strict > 0 then
  fence = math.max(fence, (tonumber(redis.call('GET', fence_key) or '0') or 0) + 1)
end
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
-- An index without an end, or of another type, is somebody else's key. A hundred at a time: the first acquire
-- after a quiet hour must not stall the server.
local gone = index and redis.call('PTTL', index) ~= -1
  and redis.pcall('ZRANGEBYSCORE', index, '-inf', now, 'LIMIT', 0, 100)
if not gone or gone.err then
  index = nil
end

-- Short of memory, a server refuses SET as a script's first write, before anything has changed; not as its
-- second one, and GETEX counts as the first. What was accepted must be able to start, run and end.
if kept or starts then
  redis.call('GETEX', lock)
end
redis.call('SET', lock, token .. '\0' .. about, 'PX', ttl)
if opens_window then
  redis.call('SET', window, token .. '\0' .. about, 'PX', period)
end
if strict > 0 then
  redis.call('SET', fence_key, string.format('%.0f', fence), 'PX', strict)
end
if index then
  if #gone > 0 then
    redis.call('ZREM', index, unpack(gone))
  end
  local longest = ttl
  redis.call('ZADD', index, now + ttl, name)
  if opens_window then
    -- An entry of its own: the hold's is moved by renewals and taken off by the release.
    redis.call('ZADD', index, now + period, name .. '\0window')
    longest = math.max(ttl, period)
  end
  if redis.call('PTTL', index) < longest then
    redis.call('PEXPIRE', index, longest)
  end
end
return {ours and 4 or kept and 2 or 1, fence}
