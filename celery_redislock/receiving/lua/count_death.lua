-- Count a worker that has died while it ran a message, within a day.
--
-- KEYS  1  deaths  counter of the message
-- RETURNS how many there were
local count = redis.call('INCR', KEYS[1])
redis.call('PEXPIRE', KEYS[1], 86400000)
return count
