-- Look at one lock; changes nothing.
--
-- KEYS  1  lock     string `token NUL json`
--       2  period   string `token NUL json`
-- ARGV  1  decides  '1': something is decided by the answer, so a GETEX, which counts as a write, lets a replica
--                   refuse: it may know only a past holder
--       2  most     holders that are told; absent: all
-- RETURNS {found, held, n, value, pttl, ...}   its holders, the one that ends first before the others
--         {found, period, 1, value, pttl}   it is free, but its period has not passed
--         free
local call = redis.call
include('keys')
local found = call('GET', KEYS[1])
local answer
if found and string.find(found, MARKER) then
  -- Reads only, unlike permits.lua.
  local stem = stem_of(KEYS[1])
  local now = now_ms()
  local most = ARGV[2] or -1
  local permits = call('ZRANGEBYSCORE', stem .. 'permits', '(' .. now, '+inf', 'WITHSCORES', 'LIMIT', 0, most)
  answer = permits[1] and {'found', 'held', #permits / 2}
  for n = 1, #permits, 2 do
    local facts = call('HGET', stem .. 'holders', permits[n]) or ''
    append(answer, {permits[n] .. '\0' .. facts, permits[n + 1] - now})
  end
elseif found then
  answer = {'found', 'held', 1, found, call('PTTL', KEYS[1])}
end
if not answer then
  local accepted = call('GET', KEYS[2])
  answer = accepted and {'found', 'period', 1, accepted, call('PTTL', KEYS[2])} or {ok = 'free'}
end
if not answer.ok and ARGV[1] == '1' then
  call('GETEX', KEYS[1])
end
return answer
