-- Included by the scripts that put somebody into the line of a lock (line.lua).
--
-- A place is a number within the band: the last one's and 1, for the first the first one's less 1. In the last
-- of 512 bands a number still has a fraction of a 256th.
local WIDTH = 68719476736

-- Puts an entry into a line of this length: `where` is 'last' of its band, 'first' of it, or the id of one it goes
-- before (first, if that has left).
local function put(stem, length, id, entry, band, where)
  local line = stem .. 'line'
  local from = band * WIDTH
  local to = string.format('(%.0f', from + WIDTH)
  local place, first
  local behind = where ~= 'last' and call('ZSCORE', line, where)
  if behind then
    -- Halfway to the one before it, so that those that go before the same one keep their order.
    local before = call('ZREVRANGEBYSCORE', line, '(' .. behind, '-inf', 'WITHSCORES', 'LIMIT', 0, 1)[2]
    place = (math.max(before or behind - 1, behind - 1) + behind) / 2
  elseif length > 0 and where ~= 'last' then
    first = call('ZRANGEBYSCORE', line, from, to, 'WITHSCORES', 'LIMIT', 0, 1)[2]
    place = first and math.ceil(first) - 1
  elseif length > 0 then
    local last = call('ZREVRANGEBYSCORE', line, to, from, 'WITHSCORES', 'LIMIT', 0, 1)[2]
    place = last and math.floor(last) + 1
  end
  if first or not place then
    -- Who was handed the lock goes before it, if that comes back.
    local sent = call('ZREVRANGEBYSCORE', stem .. 'sent', to, from, 'WITHSCORES', 'LIMIT', 0, 1)[2]
    local behind_sent = first and (sent or 0) + 0 >= place and (sent + first) / 2
    place = behind_sent or place or sent and math.floor(sent) + 1 or from + WIDTH / 2
  end
  call('ZADD', line, string.format('%.17g', place), id)
  call('HSET', stem .. 'parked', id, entry)
end
