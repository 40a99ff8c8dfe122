-- Look at the lines whose time has come, each for all processes that sweep: hand free locks to the first in line.
-- While a lock is held, those go without it, whatever their place, that have waited for as long as they may.
-- Atomic. One key's trouble stays with that key.
--
-- KEYS  1  lines  sorted set name -> when to look next (ms, server clock)
--       2  index  sorted set of names
-- ARGV  1  start  of a lock's keys, up to its name
--       2  home   of the caller; '' for none
--       3  count  of lines at most
-- RETURNS {swept, next, lines, n, name, word, id, text, ...}   next: ms until the next line is due, -1 for none
--         name held value ''        somebody holds the lock
--         name promoted id text     the caller publishes this one: the lock is its own, or it has waited for
--                                   too long
--         name broken error ''      its keys are another program's; looked at again in a minute
include('line')
local lines, index = KEYS[1], KEYS[2]
local start, home, count = ARGV[1], ARGV[2], ARGV[3]
local now = now_ms()
local found = {}

local function tell(...)
  for _, field in ipairs({...}) do
    found[#found + 1] = field
  end
end

-- Entries of one line that a look lets go: a millisecond of the server.
local AT_ONCE = 100

-- Returns when to look at the line next, at the latest.
local function let_go(name, stem)
  -- pcall: one key's trouble stays with that key.
  local late = redis.pcall('ZRANGEBYSCORE', stem .. 'until', '-inf', now, 'LIMIT', 0, AT_ONCE)
  local gone = 0
  for _, id in ipairs(late) do
    local kind, to, ttl, facts, text = read(redis.pcall('HGET', stem .. 'parked', id))
    if kind == 'give' then
      -- It stays in line until it is published. The note keeps another process from doing that meanwhile.
      if to == home and call('SET', stem .. 'note:' .. id, '', 'NX', 'PX', ttl) then
        tell(name, 'promoted', id, text)
      end
    elseif not kind or kind == 'ring' or type(redis.pcall('RPUSH', to, text)) == 'number' then
      if kind then
        take_out_of_all(stem, name, id, facts)
      else
        call('ZREM', stem .. 'until', id)
      end
      gone = gone + 1
    end
  end
  if gone == AT_ONCE then
    return now
  end
  local first = redis.pcall('ZRANGEBYSCORE', stem .. 'until', '(' .. now, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
  return math.min(tonumber(first[2]) or math.huge, now + LATEST)
end

local function look(name)
  local stem = stem_at(start, name)
  local lock = stem .. 'lock'
  local held = call('GET', lock)
  if call('ZCARD', stem .. 'line') == 0 then
    call('ZREM', lines, name)
    return
  end
  local latest = held and let_go(name, stem) or now + LATEST
  if held and not is_marker(held) then
    local left = call('PTTL', lock)
    call('ZADD', lines, math.min(left < 0 and latest or now + left + 5, latest), name)
    tell(name, 'held', held, '')
    return
  end
  call('ZADD', lines, latest, name)
  local promoted, text = wake(lock, index, name, home)
  if text then
    tell(name, 'promoted', promoted, text)
  end
  if held then
    call('ZADD', lines, 'XX', 'LT', latest, name)
    local permit = permits(lock, index, name, held)
    local holders = permit and permit.holders() or {}
    for i = 2, #holders, 2 do
      tell(name, 'held', holders[i], '')
    end
  end
end

for _, name in ipairs(call('ZRANGEBYSCORE', lines, '-inf', now, 'LIMIT', 0, count)) do
  -- It changes nothing, but counts as a write: a server short of memory refuses ZADD as the first one only.
  call('ZREM', lines, '')
  local is_well, trouble = pcall(look, name)
  if not is_well then
    call('ZADD', lines, now + IN_TROUBLE, name)
    tell(name, 'broken', type(trouble) == 'table' and trouble.err or trouble, '')
  end
end
local after = call('ZRANGE', lines, 0, 0, 'WITHSCORES')[2]
local answer = {'swept', after and math.max(0, math.floor(after - now)) or -1, 'lines', #found / 4}
for _, field in ipairs(found) do
  answer[#answer + 1] = field
end
return answer
