-- What operators did, the last act last; or one more is noted, and the oldest are forgotten. Atomic.
--
-- KEYS  1  acts   sorted set json -> when (ms, server clock)
-- ARGV  1  kept   ms after which an act is forgotten
--       2  most   so many are kept
--       3  act    json. Absent: nothing is changed, so that a replica answers too
-- RETURNS the acts; none where one was noted
include('keys')
local acts, act = KEYS[1], ARGV[3]
local now = now_ms()
local expired = string.format('%.0f', now - ARGV[1])
if not act then
  return redis.call('ZRANGEBYSCORE', acts, '(' .. expired, '+inf')
end
redis.call('ZADD', acts, string.format('%.0f', now), act)
redis.call('PEXPIRE', acts, ARGV[1])
local old = append(redis.call('ZRANGEBYSCORE', acts, '-inf', expired), redis.call('ZRANGE', acts, 0, -1 - ARGV[2]))
if #old > 0 then
  redis.call('ZREM', acts, unpack(old))
end
return {}
