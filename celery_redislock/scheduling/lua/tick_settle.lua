-- Replace the state a beat has written when it took a tick, if that is still there. Atomic; repeating it is
-- harmless.
--
-- KEYS  1  state  string `until srv json`
-- ARGV  1  mine   the state that was written
--       2  next   what is to be there instead, '' for nothing
--       3  ttl    ms it lives
-- RETURNS 1  it is there; 0 another beat has taken the tick meanwhile
local key, mine, next, ttl = KEYS[1], ARGV[1], ARGV[2], ARGV[3]
local found = redis.pcall('GET', key) or ''
if found ~= mine then
  return found == next and 1 or 0
end
if next == '' then
  redis.call('DEL', key)
else
  redis.call('SET', key, next, 'PX', ttl)
end
return 1
