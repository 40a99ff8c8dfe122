-- Put an entry into the lines of several locks (park.lua), all or none. Atomic; repeating it parks once.
--
-- KEYS     as each.lua has them
-- ARGV     likewise
-- RETURNS  likewise; the last one is full where it is in no line
include('each')
include('index')
include('entry')

local function park(KEYS, ARGV)
include('park')
end

return each(park, function(word, i)
  for before = i - 1, word == 'full' and 1 or i, -1 do
    take_out(stem_of(of(KEYS, before)[1]), of(ARGV, before)[1])
  end
  return word == 'full'
end)
