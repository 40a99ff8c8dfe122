-- Turn one token's hold into another's, if it still holds. Never takes a free lock. Atomic; repeating it is
-- harmless.
--
-- KEYS  1  lock     string `token NUL json`
--       2  index    sorted set name -> expiry (ms, server clock)
--       3  theirs   mark of the new token's message: where it exists, the hold is released instead
--       4  mark     mark to leave behind; absent: none
-- ARGV  1  old      token that must hold
--       2  new      token that holds from now on
--       3  ttl      ms
--       4  facts    json describing the new holder
--       5  name     of the lock, the index member
--       6  state    of the mark: `ending` or `done`
--       7  keep     ms the mark lives
-- RETURNS handed_on                      held by `new` now, or already: the request was repeated
--         released                       because of the new message's mark
--         missing                        expired, or released before
--         {kept, held, 1, value, pttl}   held by another token, untouched
include('index')
local lock, index, theirs, mark = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local old, new, ttl, facts, name = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4], ARGV[5]

local function belongs(value, to)
  return value and string.sub(value, 1, #to + 1) == to .. '\0'
end

-- It changes nothing, but counts as a write: a replica, which may not have heard of this hold yet, fails; and
-- a server short of memory refuses SET as a script's first write only.
local value = call('GETEX', lock)
local held = belongs(value, old)
local goes_on = held and call('EXISTS', theirs) == 0
if goes_on then
  call('SET', lock, new .. '\0' .. facts, 'PX', ttl)
  local time = call('TIME')
  list(index, name, math.floor(time[1] * 1000 + time[2] / 1000), ttl)
elseif held or not value then
  if held then
    call('DEL', lock)
  end
  -- pcall: a broken index is no reason to keep a lock.
  redis.pcall('ZREM', index, name)
end
if mark then
  call('SET', mark, ARGV[6], 'PX', ARGV[7], unpack(ARGV[6] ~= 'done' and {'NX'} or {}))
end
if goes_on or belongs(value, new) then
  return {ok = 'handed_on'}
end
if held or not value then
  return {ok = held and 'released' or 'missing'}
end
return {'kept', 'held', 1, value, call('PTTL', lock)}
