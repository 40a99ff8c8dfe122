-- Move an entry of a line to its front or its end. Atomic; repeating it is harmless.
--
-- KEYS  1  line   sorted set id -> place
-- ARGV  1  id     of the entry
--       2  place  'first' or 'last' of the whole line: in the band of the one that has been there
-- RETURNS moved    or there already
--         missing
local call = redis.call
local line, id, is_first = KEYS[1], ARGV[1], ARGV[2] == 'first'
if not call('ZSCORE', line, id) then
  return {ok = 'missing'}
end
local rank = is_first and 0 or -1
local at = call('ZRANGE', line, rank, rank, 'WITHSCORES')
if at[1] ~= id then
  -- Whole numbers, as in park.lua.
  local place = is_first and math.ceil(at[2]) - 1 or math.floor(at[2]) + 1
  call('ZADD', line, string.format('%.17g', place), id)
end
return {ok = 'moved'}
