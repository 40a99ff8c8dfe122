-- An operator takes a hold away, its period with it; or a period nothing is held under. Atomic.
--
-- KEYS  1  lock      string `token NUL json`
--       2  period    string `token NUL json`
--       3  index     sorted set of names
-- ARGV  1  expected  token that must still hold, as seen before; a foreign lock's whole value
--       2  name      of the lock, the index member
--       3  anybody   '1': whoever holds, `expected` is not looked at
-- RETURNS {1, value, pttl, p}    taken away, the victim's value for the audit line; p = 1 if it was a period
--         0                      nothing was held
--         {-1, value, pttl, p}   somebody else holds by now, untouched
local lock, period, index = KEYS[1], KEYS[2], KEYS[3]
local expected, name, anybody = ARGV[1], ARGV[2], ARGV[3]

local held, key, is_period = redis.call('GET', lock), lock, 0
if not held then
  held, key, is_period = redis.call('GET', period), period, 1
end
if not held then
  return 0
end
local pttl = redis.call('PTTL', key)
local prefix = expected .. '\0'
if anybody ~= '1' and held ~= expected and string.sub(held, 1, #prefix) ~= prefix then
  return {-1, held, pttl, is_period}
end
redis.call('DEL', lock, period)
redis.pcall('ZREM', index, name, name .. '\0period')
return {1, held, pttl, is_period}
