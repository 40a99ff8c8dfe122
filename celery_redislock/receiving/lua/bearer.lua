-- Whose name that is, and when it lapses. Reads only.
--
-- KEYS  1  workers  sorted set name -> when it lapses (ms, server clock)
--       2  bearers  hash name -> JSON
-- ARGV  1  name
-- RETURNS {JSON, ms}   '' where nobody bears it; ms until it lapses, 0 where it has
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local lapses = redis.call('ZSCORE', KEYS[1], ARGV[1]) or now
return {redis.call('HGET', KEYS[2], ARGV[1]) or '', math.max(0, lapses - now)}
