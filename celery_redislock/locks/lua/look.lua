-- Tell who would refuse a claim of one lock now; takes nothing. Atomic.
--
-- KEYS  1  lock     string `token NUL json`
--       2  period   string `token NUL json`: the last acceptance; absent: not looked at
-- ARGV  1  token    of the claim, and NUL: a hold or a period under it refuses nobody
--       2  limit    of holders, where several may hold it (permits.lua); absent: one
-- RETURNS {refused, held, n, value, pttl, ...}     the holder would
--         {refused, period, 1, value, pttl}   the period would
--         free                                nobody
local token = ARGV[1]
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
if not value and KEYS[2] then
  key = KEYS[2]
  kind = 'period'
  value = redis.call('GET', key)
end
if not value or string.find(value, token, 1, true) == 1 then
  return {ok = 'free'}
end
if permit and kind == 'held' then
  return {'refused', kind, unpack(permit.holders())}
end
return {'refused', kind, 1, value, redis.call('PTTL', key)}
