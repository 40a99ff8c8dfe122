-- Included by permits.lua: who was handed the lock and has not started. Nobody passes it, and it is never lost.
--
--   {N}:sent    sorted set id -> place: it has left the line, and comes back to its place unless it starts
--   {N}:parked  its entry stays (line.lua). Beside it, under the first of several locks that it waited for:
--               `id NUL sent`  how often its message was sent
--               `id NUL kept`  how often its claim was extended since then, because a look found it
--               `id NUL at`    when it was sent or extended last (ms), where it was pushed
--               `id NUL gone`  when a look found it nowhere (ms)
include('entry')
-- After so many sends without a start it goes to the end of its line.
local MOST_SENDS = 3

local function noted_at(stem, name, facts)
  local names = string.find(facts, '"names":[', 1, true) and cjson.decode(facts).names
  return (names and stem_beside(stem, name, names[1]) or stem) .. 'parked'
end

local function note_of(noted, id, what)
  return tonumber(redis.pcall('HGET', noted, id .. '\0' .. what) or 0) or 0
end

-- Moves it between `line` and `sent`, in all lines where it is; tells whether it was in any.
local function move_in_all(stem, name, id, facts, from, to, is_last)
  local stems = others_of(stem, name, facts)
  stems[stem] = name
  local was_there = false
  for each in pairs(stems) do
    local place = redis.pcall('ZSCORE', each .. from, id)
    if type(place) == 'string' then
      if is_last then
        local is_well, last = pcall(place_behind, each, '+inf', '-inf')
        place = is_well and string.format('%.17g', last) or place
      end
      if type(redis.pcall('ZADD', each .. to, place, id)) == 'number' then
        redis.pcall('ZREM', each .. from, id)
      end
      was_there = true
    end
  end
  return was_there
end

-- Its message was sent.
local function note_sent(noted, id)
  if redis.pcall('HINCRBY', noted, id .. '\0sent', 1) ~= 1 then
    redis.pcall('HDEL', noted, id .. '\0kept')
  end
  redis.pcall('HSET', noted, id .. '\0at', now_ms())
end

-- It was handed the lock. `sent`: '1', its message was sent for that; '0', it may still be there.
local function hand_over(stem, name, id, facts, sent)
  local noted = noted_at(stem, name, facts)
  if sent == '1' then
    note_sent(noted, id)
  else
    redis.pcall('HINCRBY', noted, id .. '\0kept', 1)
  end
  return move_in_all(stem, name, id, facts, 'line', 'sent')
end

-- Its hand-off has ended without a start.
local function bring_back(stem, name, id)
  local kind, _, _, facts = read(redis.pcall('HGET', stem .. 'parked', id))
  if not kind then
    take_out(stem, id)
    return
  end
  local noted = noted_at(stem, name, facts)
  local sends = note_of(noted, id, 'sent')
  redis.pcall('HDEL', noted, id .. '\0gone')
  -- One that was found since it was sent is not lost.
  local is_last = sends > 0 and sends % MOST_SENDS == 0 and note_of(noted, id, 'kept') == 0
  move_in_all(stem, name, id, facts, 'sent', 'line', is_last)
end

-- The text as it is pushed for the n-th time, and its delivery tag: each has its own, as the broker keeps them by it.
-- Without one, nobody can tell where it is.
local function tagged(text, n)
  local before, tag, after = string.match(text, '^(.*"delivery_tag": ?")([^"]*)(.*)$')
  if n < 2 or not tag then
    return text, tag
  end
  tag = tag .. '~' .. n
  return before .. tag .. after, tag
end

-- The text of an entry as it is pushed next.
local function next_text(stem, name, id, facts, text)
  return (tagged(text, note_of(noted_at(stem, name, facts), id, 'sent') + 1))
end
