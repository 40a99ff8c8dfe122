-- Included, behind history.lua, where a call may take the place of a waiting one of its task.
--
--   {N}:merge   hash task -> `id NUL number NUL task id NUL token` of the one that waits. number: when the
--               call was made whose arguments wait, in microseconds of the server's clock. The task id and the token
--               are spelled as in the text of the entry. It ends when that is handed the lock, or leaves
--   {N}:newest  hash task -> `id NUL number` of the newest call that was accepted. An hour
--
--   The facts of such an entry begin with `{"due":MS,"first":MS,"merged":N,`: before when it does not start, 0 for at
--   once; when the first call was made; how many were merged into it.

-- The server's clock, in microseconds.
local function now_us()
  local time = redis.call('TIME')
  return time[1] * 1000000 + time[2]
end

-- The one of this task that waits: its id, number, and the spellings of its task id and token; nil for none.
local function waiting_of(stem, task)
  local found = redis.call('HGET', stem .. 'merge', task)
  local id, number, task_id, token =
    string.match(found or '', '^([^%z]*)%z(%d+)%z([^%z]*)%z(.*)$')
  if id and redis.call('ZSCORE', stem .. 'line', id) then
    return id, tonumber(number), task_id, token
  end
end

-- The newest call of this task that was accepted, and its number; nil for none.
local function newest_of(stem, task)
  local id, number = string.match(redis.call('HGET', stem .. 'newest', task) or '', '^([^%z]*)%z(%d+)$')
  return id, tonumber(number)
end

-- Notes the newest call that was accepted.
local function note_newest(stem, task, id, number)
  redis.call('HSET', stem .. 'newest', task, id .. '\0' .. string.format('%.0f', number))
  redis.call('PEXPIRE', stem .. 'newest', HOUR)
end

-- From now on others of its task take the place of this one. `named`: the spellings of its task id and token.
local function let_merge(stem, task, id, number, named)
  redis.call('HSET', stem .. 'merge', task, id .. '\0' .. string.format('%.0f', number) .. '\0' .. named)
  note_newest(stem, task, id, number)
end

-- The facts of an entry, with its times: of the entry before, whose place it takes, if there is one. `pause`: ms
-- without another call until it is due; `longest`: ms from the first call on after which it is, 0 for ever.
local function with_times(facts, now, pause, longest, before)
  local first, merged = string.match(before or '', '^{"due":%d+,"first":(%d+),"merged":(%d+),')
  first = tonumber(first or now)
  merged = merged and merged + 1 or 0
  local due = pause > 0 and math.min(now + pause, longest > 0 and first + longest or math.huge) or 0
  local times = string.format('{"due":%.0f,"first":%.0f,"merged":%d,', due, first, merged)
  return times .. string.sub(facts, 2), due, merged
end

-- The text, with each `from` in it replaced.
local function renamed(text, from, to)
  local pieces, at = {}, 1
  local first, last = string.find(text, from, at, true)
  while first do
    append(pieces, {string.sub(text, at, first - 1), to})
    at = last + 1
    first, last = string.find(text, from, at, true)
  end
  return table.concat(pieces) .. string.sub(text, at)
end
