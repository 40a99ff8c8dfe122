-- Look at the lines whose time has come, each for all processes that sweep: hand free locks to the first in line.
-- Atomic. One key's trouble stays with that key.
--
-- KEYS  1  lines  sorted set name -> when to look next (ms, server clock)
--       2  index  sorted set of names
-- ARGV  1  start  of a lock's keys, up to its name
--       2  home   of the caller; '' for none
--       3  count  of lines at most
-- RETURNS {swept, next, lines, n, name, word, id, text, ...}   next: ms until the next line is due, -1 for none
--         name held value ''        somebody holds the lock
--         name promoted id text     the caller publishes this one
--         name broken error ''      its keys are another program's; looked at again in a minute
include('line')
local lines, index = KEYS[1], KEYS[2]
local start, home, count = ARGV[1], ARGV[2], ARGV[3]
local time = call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local found = {}

local function tell(...)
  for _, field in ipairs({...}) do
    found[#found + 1] = field
  end
end

for _, name in ipairs(call('ZRANGEBYSCORE', lines, '-inf', now, 'LIMIT', 0, count)) do
  -- It changes nothing, but counts as a write: a server short of memory refuses ZADD as the first one only.
  call('ZREM', lines, '')
  local lock = start .. name .. '}:lock'
  local line = start .. name .. '}:line'
  local held = redis.pcall('GET', lock)
  local length = redis.pcall('ZCARD', line)
  local trouble = type(held) == 'table' and held.err or type(length) == 'table' and length.err
  if trouble then
    call('ZADD', lines, now + IN_TROUBLE, name)
    tell(name, 'broken', trouble, '')
  elseif length == 0 then
    call('ZREM', lines, name)
  elseif held and not is_marker(held) then
    local left = call('PTTL', lock)
    call('ZADD', lines, now + math.min(left < 0 and LATEST or left + 5, LATEST), name)
    tell(name, 'held', held, '')
  else
    call('ZADD', lines, now + LATEST, name)
    local is_well, promoted, text = pcall(wake, lock, index, name, home)
    if not is_well then
      call('ZADD', lines, now + IN_TROUBLE, name)
      tell(name, 'broken', type(promoted) == 'table' and promoted.err or promoted, '')
    elseif text then
      tell(name, 'promoted', promoted, text)
    end
    if is_well and held then
      local permit = permits(lock, index, name, held)
      local holders = permit and permit.holders() or {}
      for i = 2, #holders, 2 do
        tell(name, 'held', holders[i], '')
      end
    end
  end
end
local after = call('ZRANGE', lines, 0, 0, 'WITHSCORES')[2]
local answer = {'swept', after and math.max(0, math.floor(after - now)) or -1, 'lines', #found / 4}
for _, field in ipairs(found) do
  answer[#answer + 1] = field
end
return answer
