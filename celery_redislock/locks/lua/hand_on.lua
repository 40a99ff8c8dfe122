-- Turn one token's hold into another's, if it still holds. Never takes a free lock. Atomic; repeating it is
-- harmless.
--
-- KEYS  1  lock     string `token NUL json`
--       2  theirs   mark of the new token's message: where it exists, the hold is released instead
--       3  mark     mark to leave behind
--       4  index    sorted set name -> expiry (ms, server clock); absent where it would live in another slot
-- ARGV  1  old      token that must hold
--       2  new      token that holds from now on
--       3  ttl      ms
--       4  about    json describing the new holder
--       5  name     of the lock, the index member
--       6  state    `ending` or `done`, what the mark says
--       7  keep     ms the mark lives; 0 leaves none
-- RETURNS {1}                 handed on, or released because of the new message's mark
--         {2}                 held by `new` already: the request was repeated
--         {0}                 missing: expired, or released before
--         {-1, value, pttl}   held by another token, untouched
local lock, theirs, mark, index = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local old, new, ttl, about, name = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4], ARGV[5]
local state, keep = ARGV[6], tonumber(ARGV[7])

local function belongs(value, to)
  return value and string.sub(value, 1, #to + 1) == to .. '\0'
end

local value = redis.call('GET', lock)
local held = belongs(value, old)
local goes_on = held and redis.call('EXISTS', theirs) == 0
local time = redis.call('TIME')
-- It changes nothing, but counts as a write: a replica, which may not have heard of this hold yet, fails; and
-- a server short of memory refuses SET as a script's first write only.
redis.call('GETEX', lock)
if goes_on then
  redis.call('SET', lock, new .. '\0' .. about, 'PX', ttl)
elseif held then
  redis.call('DEL', lock)
end
if keep > 0 and state == 'done' then
  redis.call('SET', mark, state, 'PX', keep)
elseif keep > 0 then
  redis.call('SET', mark, state, 'PX', keep, 'NX')
end
-- pcall: a broken index is no reason to keep a lock. Without an end it is somebody else's key.
if index and goes_on then
  local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
  local added = redis.call('PTTL', index) ~= -1 and redis.pcall('ZADD', index, now + ttl, name)
  if type(added) == 'number' and redis.call('PTTL', index) < ttl then
    redis.call('PEXPIRE', index, ttl)
  end
elseif index and (held or not value) then
  redis.pcall('ZREM', index, name)
end
if held then
  return {1}
end
if not value then
  return {0}
end
if belongs(value, new) then
  return {2}
end
return {-1, value, redis.call('PTTL', lock)}
