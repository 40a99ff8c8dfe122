-- Which spellings of brokers were proved, by what, and when. With a spelling, note that it was proved now. Atomic.
--
-- KEYS  1  homes    hash spelling -> `ms NUL name`; ms: of the last proof, server clock
-- ARGV  1  kept     ms after which a spelling that nobody proves is forgotten
--       2  spelling  absent: nothing is noted
--       3  name     what only its broker knows; '' where that cannot be proved
-- RETURNS {homes, n, spelling, name, age, ...}   age: ms since it was proved
include('keys')
local homes, kept = KEYS[1], tonumber(ARGV[1])
local spelling, name = ARGV[2], ARGV[3]
local now = now_ms()
if spelling then
  redis.call('HSET', homes, spelling, string.format('%.0f', now) .. '\0' .. name)
  redis.call('PEXPIRE', homes, kept)
end
local answer = {'homes', 0}
local all = redis.call('HGETALL', homes)
for i = 1, #all, 2 do
  local at, proof = string.match(all[i + 1], '^(%d+)%z(.*)$')
  local age = math.max(0, now - (at or 0))
  if age < kept then
    answer[2] = answer[2] + 1
    append(answer, {all[i], proof, age})
  elseif spelling then
    redis.call('HDEL', homes, all[i])
  end
end
return answer
