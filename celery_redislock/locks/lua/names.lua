-- The names of the locks held now, soonest to expire first; entries of locks that are gone are dropped.
--
-- KEYS  1  index   sorted set name -> expiry (ms, server clock)
-- ARGV  1  limit   how many at most
-- RETURNS the names
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now)
return redis.call('ZRANGE', KEYS[1], 0, tonumber(ARGV[1]) - 1)
