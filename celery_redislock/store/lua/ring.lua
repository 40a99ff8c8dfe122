-- Ring a bell: who waits for it is told, now or when it asks. Repeating it rings again.
--
-- KEYS  1  bell  list: empty text, it has rung
-- ARGV  1  ttl   ms until nobody waits for it any more
-- RETURNS rung
redis.call('RPUSH', KEYS[1], '')
redis.call('PEXPIRE', KEYS[1], ARGV[1])
return {ok = 'rung'}
