-- Take the holds on several locks (acquire.lua), all or none. Atomic.
--
-- KEYS     as each.lua has them
-- ARGV     likewise
-- RETURNS  likewise; the last one is refused where none is held
include('each')

local function acquire(KEYS, ARGV)
include('acquire')
end

local function release(KEYS, ARGV)
include('release')
end

local answers = each(acquire, function(word, i)
  local is_held = word == 'granted' or word == 'taken_over' or word == 'sent_again' or word == 'repeated'
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
