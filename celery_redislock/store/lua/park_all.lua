-- Put an entry into the lines of several locks (park.lua), all or none. Atomic; repeating it parks once.
--
-- KEYS     as each.lua has them
-- ARGV     likewise
-- RETURNS  likewise; the last one is full where it is in no line, and all run or none
include('each')
include('index')
include('entry')

local may_run, places = true, 0
for i = 1, count do
  local lock, id = of(KEYS, i)[1], of(ARGV, i)[1]
  local held = call('GET', lock)
  local is_own = held and string.find(held, id .. '\0', 1, true) == 1
  may_run = may_run and (is_own or not held and call('EXISTS', stem_of(lock) .. 'line', stem_of(lock) .. 'sent') == 0)
  places = places + (call('ZSCORE', stem_of(lock) .. 'line', id) and 1 or 0)
end
-- A process that is missing in one line enters all anew: two that stand in two orders would wait for each other.
local is_missing = places % count > 0 and read(of(ARGV, 1)[3]) == 'ring'
for i = 1, is_missing and count or 0 do
  take_out(stem_of(of(KEYS, i)[1]), of(ARGV, i)[1])
end

local function park(KEYS, ARGV)
  if not may_run and ARGV[4] == 'ask' then
    ARGV[4] = 'refused'
  end
include('park')
end

return each(park, function(word, i)
  for before = i - 1, word == 'full' and 1 or i, -1 do
    take_out(stem_of(of(KEYS, before)[1]), of(ARGV, before)[1])
  end
  return word == 'full'
end)
