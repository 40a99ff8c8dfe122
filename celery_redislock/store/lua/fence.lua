-- Write a fence back: the largest of a quorum, to this server, if the hold it belongs to is still there. Atomic;
-- repeating it is harmless.
--
-- KEYS  1  lock   string `token NUL json`
--       2  fence  the strict fence's last number
-- ARGV  1  token  of the hold, and NUL
--       2  given  the number; a larger one stays
--       3  keep   ms the fence's key outlives this
-- RETURNS written
--         missing   the hold is not this token's
local call = redis.call
local held = call('GET', KEYS[1])
if not held or string.find(held, ARGV[1], 1, true) ~= 1 then
  return {ok = 'missing'}
end
local last = tonumber(call('GET', KEYS[2]) or '0') or 0
if last < tonumber(ARGV[2]) then
  call('SET', KEYS[2], ARGV[2], 'PX', ARGV[3])
end
return {ok = 'written'}
