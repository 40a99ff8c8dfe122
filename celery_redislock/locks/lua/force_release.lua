-- An operator takes a hold away, its window with it. Atomic.
--
-- KEYS  1  lock      string `token NUL json`
--       2  window    string `token NUL json`
--       3  index     sorted set of names; absent where it would live in another slot
-- ARGV  1  expected  token that must still hold, as seen before; '*' for whoever does
--       2  name      of the lock, the index member
-- RETURNS {1, value}    taken away, the victim's value for the audit line
--         {0}           nothing was held
--         {-1, value}   somebody else holds by now, untouched
local lock, window, index = KEYS[1], KEYS[2], KEYS[3]
local expected, name = ARGV[1], ARGV[2]

local value = redis.call('GET', lock)
local held = value or redis.call('GET', window)
if not held then
  return {0}
end
local prefix = expected .. '\0'
if expected ~= '*' and string.sub(held, 1, #prefix) ~= prefix then
  return {-1, held}
end
redis.call('DEL', lock, window)
if index then
  redis.call('ZREM', index, name)
end
return {1, held}
