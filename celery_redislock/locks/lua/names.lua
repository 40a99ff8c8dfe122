-- The names of the locks held now, soonest to expire first. Reads only, so that a replica answers too.
--
-- KEYS  1  index   sorted set name -> expiry (ms, server clock)
-- ARGV  1  limit   how many at most
-- RETURNS the names
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
return redis.call('ZRANGEBYSCORE', KEYS[1], '(' .. string.format('%.0f', now), '+inf', 'LIMIT', 0, tonumber(ARGV[1]))
