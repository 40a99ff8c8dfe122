-- Included where the entries of a line (line.lua) are read or taken out.

-- The last place before `to`: of who waits, or was handed the lock and comes back unless it starts.
local function last_before(stem, to, from)
  local last
  for _, of in ipairs({'line', 'sent'}) do
    local place = redis.call('ZREVRANGEBYSCORE', stem .. of, to, from, 'WITHSCORES', 'LIMIT', 0, 1)[2]
    last = place and math.max(last or place, place) or last
  end
  return last
end

-- The place behind who is there; nil where nobody is.
local function place_behind(stem, to, from)
  local last = last_before(stem, to, from)
  return last and math.floor(last) + 1
end

-- The place before this one, halfway to the one before it: those that go before the same one keep their order.
local function place_before(stem, place)
  return (math.max(last_before(stem, '(' .. place, '-inf') or place - 1, place - 1) + place) / 2
end

-- Its kind, destination, ttl, facts and text; nil where nobody could read it.
local function read(entry)
  return string.match(type(entry) == 'string' and entry or '', '^(%l+)%z([^%z]*)%z(%d+)%z([^%z]*)%z(.*)$')
end

-- Whether a process of these homes, one a line, publishes what is given to this one.
local function is_home(home, to)
  return string.find('\n' .. home .. '\n', '\n' .. to .. '\n', 1, true)
end

-- When its time comes (ms, server clock); 0 for at once.
local function due_of(facts)
  return tonumber(string.match(facts or '', '^{"due":(%d+)') or 0)
end

local function is_due(stem, id, now)
  local _, _, _, facts = read(redis.pcall('HGET', stem .. 'parked', id))
  return due_of(facts) <= now
end

-- The first in line whose time has come; nil where nobody is.
local function first_due(stem, now)
  local rank, id = -1
  repeat
    rank = rank + 1
    id = redis.pcall('ZRANGE', stem .. 'line', rank, rank)[1]
  until not id or is_due(stem, id, now)
  return id
end

-- Nobody takes the place of this one any more (merge.lua).
local function end_merging(stem, id)
  local _, _, _, facts = read(redis.pcall('HGET', stem .. 'parked', id))
  local task = string.match(facts or '', '"task":"([^"]*)"')
  if task and string.find(redis.call('HGET', stem .. 'merge', task) or '', id .. '\0', 1, true) == 1 then
    redis.call('HDEL', stem .. 'merge', task)
  end
end

-- One that leaves without a run is nobody's newer one (merge.lua).
local function forget_newest(stem, id, facts)
  local task = string.match(facts or '', '"task":"([^"]*)"')
  if task and string.find(redis.call('HGET', stem .. 'newest', task) or '', id .. '\0', 1, true) == 1 then
    redis.call('HDEL', stem .. 'newest', task)
  end
end

-- Tells whether it was in line, or handed the lock and not started (sent.lua). pcall: one key's trouble stays with
-- that key.
local function take_out(stem, id)
  end_merging(stem, id)
  redis.pcall('HDEL', stem .. 'parked', id, id .. '\0sent', id .. '\0kept', id .. '\0at', id .. '\0gone')
  redis.pcall('ZREM', stem .. 'until', id)
  local was_sent = redis.pcall('ZREM', stem .. 'sent', id) == 1
  return redis.pcall('ZREM', stem .. 'line', id) == 1 or was_sent
end

-- Nobody looks at a line any more in which nobody is; another one is looked at by then (ms, server clock), if given.
local function look_by(index, name, stem, by)
  if redis.call('EXISTS', stem .. 'line', stem .. 'sent') == 0 then
    redis.pcall('ZREM', beside(index, 'lines'), name)
  elseif by then
    redis.pcall('ZADD', beside(index, 'lines'), 'LT', by, name)
  end
end

-- The stem of another lock, by the stem and name of this one.
local function stem_beside(stem, name, other)
  return string.sub(stem, 1, -3 - #name) .. other .. '}:'
end

-- The other locks, by their stems, that who has these facts waits for as well (line.lua).
local function others_of(stem, name, facts)
  local others = {}
  for _, other in ipairs(string.find(facts, '"names":[', 1, true) and cjson.decode(facts).names or {}) do
    if other ~= name then
      others[stem_beside(stem, name, other)] = other
    end
  end
  return others
end

-- Takes it out of this line, and out of those of the other locks.
local function take_out_of_all(stem, name, id, facts)
  for other in pairs(others_of(stem, name, facts)) do
    take_out(other, id)
  end
  return take_out(stem, id)
end
