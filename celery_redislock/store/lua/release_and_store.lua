-- Release one hold, if it is ours, and store the result of its run. Atomic; repeating it is harmless.
--
-- The KEYS and ARGV of release.lua come before these:
--
-- KEYS  last         result   of the task, and the channel on which it is announced
-- ARGV  last but one text     of the result
--       last         seconds  it lives; 0 for no end
-- RETURNS stored     or a success is there, which stays
--         unstored   the present result is not kombu's JSON, or cannot be replaced
--         and behind it the answer of release.lua
local key, seconds, text = table.remove(KEYS), tonumber(table.remove(ARGV)), table.remove(ARGV)
local function release()
include('release')
end
local answer = release()
-- pcall: the hold is released, although the result may not be stored.
local known = redis.pcall('GETRANGE', key, 0, 63)
local state = type(known) == 'string' and string.match(known, '^{"status": "([^"\\]+)"')
local stored = state == 'SUCCESS'
if known == '' or state and not stored then
  local set = seconds > 0 and redis.pcall('SETEX', key, seconds, text) or redis.pcall('SET', key, text)
  stored = not set.err and type(redis.pcall('PUBLISH', key, text)) == 'number'
end
local word = stored and 'stored' or 'unstored'
return answer.ok and {ok = word .. ' ' .. answer.ok} or {word, unpack(answer)}
