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

-- Milliseconds that the keys of a line in which only processes wait outlive the last one's sign of life.
local OUTLIVE = 60000

-- Lets keys of a line that is new live for so many ms; those of another one that has an end, not less than they do.
-- Without `lives` they have no end any more: a message waits, and is kept also when it was handed the lock.
local function let_live(keys, lives, is_new)
  for _, key in ipairs(keys) do
    local left = lives and call('PTTL', key)
    if not lives then
      call('PERSIST', key)
    elseif is_new or left >= 0 and left < lives then
      call('PEXPIRE', key, lives)
    end
  end
end
