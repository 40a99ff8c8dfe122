-- What an operator did is noted, and the oldest acts are forgotten. Atomic.
--
-- KEYS  1  acts   sorted set json -> when (ms, server clock)
-- ARGV  1  kept   ms after which an act is forgotten
--       2  most   so many are kept
--       3  act    json
-- RETURNS nothing
include('keys')
local acts = KEYS[1]
local now = now_ms()
local expired = string.format('%.0f', now - ARGV[1])
redis.call('ZADD', acts, string.format('%.0f', now), ARGV[3])
redis.call('PEXPIRE', acts, ARGV[1])
local old = append(redis.call('ZRANGEBYSCORE', acts, '-inf', expired), redis.call('ZRANGE', acts, 0, -1 - ARGV[2]))
if #old > 0 then
  redis.call('ZREM', acts, unpack(old))
end
return {}
