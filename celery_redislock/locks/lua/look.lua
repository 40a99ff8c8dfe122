-- Tell who would refuse a claim of one lock now; changes nothing. Atomic.
--
-- KEYS  1  lock     string `token NUL json`
--       2  period   string `token NUL json`: the last acceptance; absent: not looked at
-- ARGV  1  token    of the claim, and NUL: a hold or a period under it refuses nobody
-- RETURNS {value, pttl, 0}   the holder would
--         {value, pttl, 1}   the period would
--         {}                 nobody
local token = ARGV[1]
-- GETEX changes nothing here, but counts as a write: a replica, which may know only what is long past, refuses.
local value = redis.call('GETEX', KEYS[1])
local key = 1
if not value and KEYS[2] then
  value = redis.call('GET', KEYS[2])
  key = 2
end
if not value or string.find(value, token, 1, true) == 1 then
  return {}
end
return {value, redis.call('PTTL', KEYS[key]), key - 1}
