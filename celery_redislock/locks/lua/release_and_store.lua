-- Release one hold, if it is ours, and store the result of its run. Atomic; repeating it is harmless.
--
-- The KEYS and ARGV of release.lua come before these:
--
-- KEYS  5  result   of the task, and the channel on which it is announced
-- ARGV  6  text     of the result
--       7  seconds  it lives; 0 for no end
-- RETURNS {1, ...}   stored, or a success is there, which stays; and what release.lua returns
--         {0, ...}   not stored: what is there is not kombu's JSON, or cannot be replaced
local function release()
include('release')
end
local answer = release()
local key, text, seconds = KEYS[5], ARGV[6], tonumber(ARGV[7])
-- pcall: the hold is released, whatever becomes of the result.
local known = redis.pcall('GETRANGE', key, 0, 63)
local state = type(known) == 'string' and string.match(known, '^{"status": "([^"\\]+)"')
local stored = state == 'SUCCESS'
if known == '' or state and not stored then
  local set = seconds > 0 and redis.pcall('SETEX', key, seconds, text) or redis.pcall('SET', key, text)
  stored = not set.err and type(redis.pcall('PUBLISH', key, text)) == 'number'
end
return {stored and 1 or 0, unpack(answer)}
