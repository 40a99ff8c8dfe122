-- What was counted of tasks (history.lua). Reads only, so that a replica answers too.
--
-- KEYS  1  counts  hash `task NUL what` -> how often
-- RETURNS the fields and their values
return redis.call('HGETALL', KEYS[1])
