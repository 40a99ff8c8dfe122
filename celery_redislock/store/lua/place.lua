-- Included by the scripts that put somebody into the line of a lock (line.lua).
--
-- A place is a number within the band: behind the last one's, or halfway to the one before it. In the last of 512
-- bands a number still has a fraction of a 256th.
local WIDTH = 68719476736

-- Puts an entry into a line: `where` is 'last' of its band, 'first' of it, or the id of one it goes before (first, if
-- that has left).
local function put(stem, id, entry, band, where)
  local line = stem .. 'line'
  local from = band * WIDTH
  local to = string.format('(%.0f', from + WIDTH)
  local next_one = where ~= 'last' and (call('ZSCORE', line, where)
    or call('ZRANGEBYSCORE', line, from, to, 'WITHSCORES', 'LIMIT', 0, 1)[2])
  local place = next_one and place_before(stem, next_one) or place_behind(stem, to, from) or from + WIDTH / 2
  call('ZADD', line, string.format('%.17g', place), id)
  call('HSET', stem .. 'parked', id, entry)
end
