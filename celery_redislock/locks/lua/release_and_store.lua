-- Release one hold, if it is ours, and store the result of its run. Atomic; repeating it is harmless.
--
-- The KEYS and ARGV of release.lua come before these:
--
-- KEYS  last         result   of the task, and the channel on which it is announced
-- ARGV  last but one text     of the result
--       last         seconds  it lives; 0 for no end
-- RETURNS {1, ...}   stored, or a success is there, which stays; and what release.lua returns
--         {0, ...}   not stored: what is there is not kombu's JSON, or cannot be replaced
local key, seconds, text = table.remove(KEYS), tonumber(table.remove(ARGV)), table.remove(ARGV)
local function release()
include('release')
end
local answer = release()
-- pcall: the hold is released, whatever becomes of the result.
local known = redis.pcall('GETRANGE', key, 0, 63)
local state = type(known) == 'string' and string.match(known, '^{"status": "([^"\\]+)"')
local stored = state == 'SUCCESS'
if known == '' or state and not stored then
  local set = seconds > 0 and redis.pcall('SETEX', key, seconds, text) or redis.pcall('SET', key, text)
  stored = not set.err and type(redis.pcall('PUBLISH', key, text)) == 'number'
end
return {stored and 1 or 0, unpack(type(answer) == 'table' and answer or {answer})}
