-- An operator takes a hold away, its window with it; or a window nothing is held under. Atomic.
--
-- KEYS  1  lock      string `token NUL json`
--       2  window    string `token NUL json`
--       3  index     sorted set of names
-- ARGV  1  expected  token that must still hold, as seen before; a foreign lock's whole value
--       2  name      of the lock, the index member
--       3  anybody   '1': whoever holds, `expected` is not looked at
-- RETURNS {1, value, pttl, w}    taken away, the victim's value for the audit line; w = 1 if it was a window
--         0                      nothing was held
--         {-1, value, pttl, w}   somebody else holds by now, untouched
local lock, window, index = KEYS[1], KEYS[2], KEYS[3]
local expected, name, anybody = ARGV[1], ARGV[2], ARGV[3]

local held, key, is_window = redis.call('GET', lock), lock, 0
if not held then
  held, key, is_window = redis.call('GET', window), window, 1
end
if not held then
  return 0
end
local pttl = redis.call('PTTL', key)
local prefix = expected .. '\0'
if anybody ~= '1' and held ~= expected and string.sub(held, 1, #prefix) ~= prefix then
  return {-1, held, pttl, is_window}
end
redis.call('DEL', lock, window)
redis.pcall('ZREM', index, name, name .. '\0window')
return {1, held, pttl, is_window}
