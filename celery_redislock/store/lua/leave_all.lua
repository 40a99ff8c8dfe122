-- Take an entry out of the lines of several locks (leave.lua), and let those go on that waited behind it. Atomic;
-- repeating it is harmless.
--
-- KEYS     as each.lua has them
-- ARGV     likewise
-- RETURNS  likewise
include('each')

local function leave(KEYS, ARGV)
include('leave')
end

local function look(KEYS, ARGV)
include('line')
  if redis.call('EXISTS', KEYS[1]) == 0 then
    wake(KEYS[1], KEYS[2], ARGV[2], '')
  end
end

local answer = each(leave)
for i = 1, count do
  look(of(KEYS, i), of(ARGV, i))
end
return answer
