-- Tell who would refuse a claim of one lock now; takes nothing. Atomic.
--
-- KEYS  1  lock     string `token NUL json`
--       2  index    sorted set of names
--       3  period   string `token NUL json`: the last acceptance; absent: not looked at
-- ARGV  1  value    of the claim, `token NUL json`: a hold or a period under its token refuses nobody
--       2  limit    of holders, where several may hold it (permits.lua); absent: one
-- RETURNS {refused, held, n, value, pttl, ...}     the holder would
--         {refused, period, 1, value, pttl}   the period would
--         {refused, rate, 1, value, pttl}   the rate that its facts say would
--         free                                nobody
local token = string.match(ARGV[1], '^[^%z]*%z')
-- GETEX changes nothing here, but counts as a write, so a replica refuses: it may know only a past holder.
local value = redis.call('GETEX', KEYS[1])
local key = KEYS[1]
local kind = 'held'
local permit
if value and (ARGV[2] or string.sub(value, 1, 8) == 'permits/') then
include('index')
  local permits
include('permits')
  permit = permits(key, '', '', value)
  if permit and (permit.room(ARGV[2]) > 0 or permit.facts_of(string.sub(token, 1, -2))) then
    value = nil
  end
end
if not value and KEYS[3] then
  key = KEYS[3]
  kind = 'period'
  value = redis.call('GET', key)
end
local by_rate
if not value and string.find(ARGV[1], '"rate":"', 1, true) then
include('keys')
include('rate')
  local pending = permit and permit.pending() or 0
  local left, last = closed_for(stem_of(KEYS[1]), ARGV[1], pending, now_ms())
  by_rate = left > 0 and refusal_by_rate(left, last, ARGV[1])
  value, kind = by_rate and by_rate[4], 'rate'
end
if not value or string.find(value, token, 1, true) == 1 then
  return {ok = 'free'}
end
include('keys')
include('refusal')
local holders = by_rate and {unpack(by_rate, 3)}
  or permit and kind == 'held' and permit.holders() or {1, value, redis.call('PTTL', key)}
local copy = permit and permit.copy_of(string.sub(token, 1, -2))
note_refusal(KEYS[1], KEYS[2], string.match(KEYS[1], '{(.*)}:lock$'), ARGV[1], copy or holders[2])
return {'refused', kind, unpack(holders)}
