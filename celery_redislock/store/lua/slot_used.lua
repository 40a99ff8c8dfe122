-- Note when the lines of a slot are to be looked at, or that there are none. Atomic; repeating it is harmless.
--
-- KEYS  1  slots  sorted set slot -> when to look at its lines next (ms, server clock); infinity where none are
-- ARGV  1  slot   a number
--       2  ms     until it is looked at, unless that is sooner; '' for never
--       3  score  that it must have still to be looked at never; '' where it must be new
-- RETURNS noted
local call = redis.call
include('keys')
local slot, ms, score = ARGV[1], ARGV[2], ARGV[3]
if ms ~= '' then
  call('ZADD', KEYS[1], 'LT', now_ms() + ms, slot)
elseif score == '' then
  call('ZADD', KEYS[1], 'NX', '+inf', slot)
elseif call('ZSCORE', KEYS[1], slot) == score then
  call('ZADD', KEYS[1], '+inf', slot)
end
return {ok = 'noted'}
