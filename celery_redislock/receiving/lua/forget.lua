-- Forget a name that was taken: nothing is left to restore of what its worker had in hand.
--
-- KEYS  1  taken    sorted set of names
--       2  bearers  hash name -> JSON
-- ARGV  1  name
-- RETURNS nothing
redis.call('ZREM', KEYS[1], ARGV[1])
redis.call('HDEL', KEYS[2], ARGV[1])
