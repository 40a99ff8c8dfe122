-- The slots of a Cluster whose lines are to be looked at now, each for one of all processes that sweep. Atomic.
--
-- KEYS  1  slots  sorted set slot -> when to look at its lines next (ms, server clock); infinity where none are
-- ARGV  1  most   how many at most
-- RETURNS {due, next, n, slot, score, ...}   next: ms until the next one is due, -1 for none; score: it has now,
--                                            a minute on: whoever dies with it is replaced then
local call = redis.call
include('keys')
local MINUTE = 60000
local now = now_ms()
local answer = {'due', -1, 0}
for _, slot in ipairs(call('ZRANGEBYSCORE', KEYS[1], '-inf', now, 'LIMIT', 0, tonumber(ARGV[1]))) do
  call('ZADD', KEYS[1], now + MINUTE, slot)
  answer[3] = answer[3] + 1
  answer[#answer + 1] = slot
  answer[#answer + 1] = call('ZSCORE', KEYS[1], slot)
end
local after = call('ZRANGE', KEYS[1], 0, 0, 'WITHSCORES')[2]
if after and tonumber(after) < math.huge then
  answer[2] = math.max(0, math.floor(after - now))
end
return answer
