-- Count a worker that has died while it ran a message.
--
-- KEYS  1  deaths  counter of the message
-- ARGV  1  kept    ms
-- RETURNS how many there were within that time
local count = redis.call('INCR', KEYS[1])
redis.call('PEXPIRE', KEYS[1], ARGV[1])
return count
