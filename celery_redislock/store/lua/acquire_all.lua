-- Take the holds on several locks (acquire.lua), all or none. Atomic.
--
-- KEYS     as each.lua has them
-- ARGV     likewise
-- RETURNS  likewise; the last one is refused where none is held
include('each')
include('keys')

-- A message that is refused them all keeps its places in their lines: left in some, it would stand behind one there
-- that is behind it in others.
local message = string.sub(of(ARGV, 1)[4] or '', 1, -2)
local kept = {}
for i = 1, message ~= '' and count or 0 do
  local lock, index = unpack(of(KEYS, i))
  local stem = stem_of(lock)
  local place = redis.pcall('ZSCORE', stem .. 'line', message) or redis.pcall('ZSCORE', stem .. 'sent', message)
  local entry = redis.pcall('HGET', stem .. 'parked', message)
  if type(place) == 'string' and type(entry) == 'string' then
    kept[i] = {place = place, till = redis.pcall('ZSCORE', stem .. 'until', message), fields = {}}
    kept[i].look = redis.pcall('ZSCORE', beside(index, 'lines'), of(ARGV, i)[3])
    for _, what in ipairs({'', '\0sent', '\0kept', '\0at', '\0gone'}) do
      kept[i].fields[message .. what] = redis.pcall('HGET', stem .. 'parked', message .. what)
    end
  end
end

local function put_back(i)
  local lock, index = unpack(of(KEYS, i))
  local stem = stem_of(lock)
  if redis.pcall('HEXISTS', stem .. 'parked', message) == 1 then
    return
  end
  -- pcall: one key's trouble stays with that key.
  redis.pcall('ZADD', stem .. 'line', kept[i].place, message)
  if type(kept[i].till) == 'string' then
    redis.pcall('ZADD', stem .. 'until', kept[i].till, message)
  end
  for field, value in pairs(kept[i].fields) do
    if type(value) == 'string' then
      redis.pcall('HSET', stem .. 'parked', field, value)
    end
  end
  local look = type(kept[i].look) == 'string' and kept[i].look or now_ms()
  redis.pcall('ZADD', beside(index, 'lines'), 'NX', look, of(ARGV, i)[3])
end

local function acquire(KEYS, ARGV)
include('acquire')
end

local function release(KEYS, ARGV)
include('release')
end

local answers = each(acquire, function(word, i)
  local is_held = word == 'granted' or word == 'taken_over' or word == 'sent_again' or word == 'repeated'
  for at in pairs(word == 'refused' and kept or {}) do
    put_back(at)
  end
  for taken = is_held and 0 or i - 1, 1, -1 do
    local args = of(ARGV, taken)
    -- As from nobody's home: what only the caller could publish is served by a sweep.
    release(of(KEYS, taken), {string.match(args[1], '^[^%z]*') .. '\0', args[3], ''})
  end
  return not is_held
end)

-- Strict fences are counted for each lock, and the holder of all has one number: the largest.
local fences = {}
for i = 1, #of(KEYS, 1) >= 5 and #answers == 1 + 3 * count and count or 0 do
  fences[i] = tonumber(answers[1 + 3 * i])
end
for i = 1, #fences do
  local largest = string.format('%.0f', math.max(unpack(fences)))
  answers[1 + 3 * i] = largest
  redis.call('SET', of(KEYS, i)[5], largest, 'PX', of(ARGV, i)[7])
end
return answers
