-- Tell who would refuse a claim of one lock now; changes nothing. Atomic.
--
-- KEYS  1  lock     string `token NUL json`
--       2  period   string `token NUL json`: the last acceptance; absent: not looked at
-- ARGV  1  token    of the claim, and NUL: a hold or a period under it refuses nobody
-- RETURNS {refused, held, 1, value, pttl}     the holder would
--         {refused, period, 1, value, pttl}   the period would
--         free                                nobody
local token = ARGV[1]
-- GETEX changes nothing here, but counts as a write, so a replica refuses: it may know only a past holder.
local value = redis.call('GETEX', KEYS[1])
local key = KEYS[1]
local kind = 'held'
if not value and KEYS[2] then
  key = KEYS[2]
  kind = 'period'
  value = redis.call('GET', key)
end
if not value or string.find(value, token, 1, true) == 1 then
  return {ok = 'free'}
end
return {'refused', kind, 1, value, redis.call('PTTL', key)}
