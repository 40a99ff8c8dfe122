-- Move an entry of a line to its front or its end; one that waits for several locks, in the lines of them all.
-- Atomic; repeating it is harmless.
--
-- KEYS  1  line   sorted set id -> place
-- ARGV  1  id     of the entry
--       2  place  'first' or 'last' of the whole line: in the band of the one that has been there
--       3  name   of the lock
-- RETURNS moved    or there already
--         missing
local call = redis.call
include('keys')
include('entry')
local line, id, is_first, name = KEYS[1], ARGV[1], ARGV[2] == 'first', ARGV[3]
local stem = stem_of(line)

local function move(its_stem)
  local moved = its_stem .. 'line'
  local rank = is_first and 0 or -1
  local at = call('ZRANGE', moved, rank, rank, 'WITHSCORES')
  if at[1] ~= id and call('ZSCORE', moved, id) then
    local place = is_first and place_before(its_stem, at[2]) or place_behind(its_stem, '+inf', '-inf')
    call('ZADD', moved, string.format('%.17g', place), id)
  end
end

if not call('ZSCORE', line, id) then
  return {ok = 'missing'}
end
move(stem)
local _, _, _, facts = read(redis.pcall('HGET', stem .. 'parked', id))
for other in pairs(others_of(stem, name, facts or '')) do
  move(other)
end
return {ok = 'moved'}
