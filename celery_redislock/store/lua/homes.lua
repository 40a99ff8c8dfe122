-- Which spellings of brokers were proved, by what, and when. With a spelling, note that it was proved now. Atomic.
--
-- KEYS  1  homes    hash spelling -> `ms NUL name`; ms: of the last proof, server clock
-- ARGV  1  kept     ms after which a spelling that nobody proves is forgotten
--       2  spelling  absent: nothing is noted
--       3  name     what only its broker knows; '' where that cannot be proved
--       4  instead  of this name; one that another worker has noted meanwhile stays
-- RETURNS {homes, n, spelling, name, age, ...}   age: ms since it was proved
include('keys')
local homes, kept = KEYS[1], tonumber(ARGV[1])
local spelling, name, instead = ARGV[2], ARGV[3], ARGV[4]
local now = now_ms()

local function proof_of(value)
  local at, proof = string.match(value or '', '^(%d+)%z(.*)$')
  local age = math.max(0, now - (tonumber(at) or 0))
  return age, age < kept and proof or ''
end

if spelling then
  local _, noted = proof_of(redis.call('HGET', homes, spelling) or nil)
  if noted == '' or noted == name or noted == instead then
    redis.call('HSET', homes, spelling, string.format('%.0f', now) .. '\0' .. name)
    redis.call('PEXPIRE', homes, kept)
  end
end
local answer = {'homes', 0}
local all = redis.call('HGETALL', homes)
for i = 1, #all, 2 do
  local age, proof = proof_of(all[i + 1])
  if age < kept then
    answer[2] = answer[2] + 1
    append(answer, {all[i], proof, age})
  elseif spelling then
    redis.call('HDEL', homes, all[i])
  end
end
return answer
