-- Return what only this broker knows: a key, that lives on. Made if there is none, where a value is given. Atomic.
--
-- KEYS  1  home   string
-- ARGV  1  ttl    ms
--       2  value  absent: only asked
-- RETURNS the value of the key; '' for none
if ARGV[2] then
  redis.call('SET', KEYS[1], ARGV[2], 'NX', 'PX', ARGV[1])
end
redis.call('PEXPIRE', KEYS[1], ARGV[1])
return redis.call('GET', KEYS[1]) or ''
