-- Where a piece of an index ends: members of so many scores are read by a plain command, which is four times as fast
-- as a script that returns them. Reads only, so that a replica answers too.
--
-- KEYS  1  index   sorted set member -> expiry (ms, server clock)
-- ARGV  1  count   members of the piece
--       2  from    the least score; '': now
-- RETURNS {from, to}   as ZRANGEBYSCORE takes them; to: `+inf` where no more are left than the piece has
include('keys')
local count, from = unpack(ARGV)
from = from == '' and '(' .. string.format('%.0f', now_ms()) or from
local last = redis.call('ZRANGEBYSCORE', KEYS[1], from, '+inf', 'WITHSCORES', 'LIMIT', count - 1, 1)
return {from, last[2] or '+inf'}
