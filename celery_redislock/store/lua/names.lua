-- The locks held now, and the periods that have not passed, soonest to end first. Or the lines there are, or the
-- locks that have refused a call.
-- Reads only, so that a replica answers too.
--
-- KEYS  1  index   sorted set member -> expiry (ms, server clock)
-- ARGV  1  limit   how many at most
--       2  from    the least score; absent, or '': now
--       3  order   'last': the greatest score first; absent: the least; 'scores': likewise, each with its score
-- RETURNS the members: `name` of a hold, `name NUL period` of a period
include('keys')
local from = ARGV[2] and ARGV[2] ~= '' and ARGV[2] or '(' .. string.format('%.0f', now_ms())
if ARGV[3] == 'last' then
  return redis.call('ZRANGE', KEYS[1], '+inf', from, 'BYSCORE', 'REV', 'LIMIT', 0, tonumber(ARGV[1]))
end
local scores = ARGV[3] and {'WITHSCORES'} or {}
return redis.call('ZRANGEBYSCORE', KEYS[1], from, '+inf', 'LIMIT', 0, tonumber(ARGV[1]), unpack(scores))
