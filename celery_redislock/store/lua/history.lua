-- Included where a hold is granted, refused, waits or is taken away: notes what happened, for operators. It never
-- changes an answer. pcall: what the server refuses, and a key of another type, costs the note and nothing else.
--
-- Only tasks are noted, whose facts name one. Beside the lock:
--
--   {N}:refused  hash    task -> `count NUL first NUL last NUL holder NUL token NUL json`: times in ms; the holder's
--                        token; the token and the facts of who was refused last. An hour
--   {N}:forced   string  json: who took it away by force, why and when. An hour (force_release.lua)
--
-- Beside the index, in each slot of a Cluster:
--
--   refusals     sorted set name -> when it was refused last, ms. An hour
--   counts       hash `task NUL what` -> how often; `since` -> when it was begun, ms. Until the next multiple of 30
--                days since the epoch, in all slots at once; the task as JSON has it
local HOUR, MONTH = 3600000, 2592000000
-- Seconds: the bounds of what `redislock_metrics` counts.
local BOUNDS = {0.1, 0.5, 1, 5, 15, 60, 300, 900, 3600}

-- The task that these facts name; of several locks, which are taken together, it counts once, with the last.
local function task_in(facts, name)
  local last = string.match(string.match(facts, '"names":%[(".-")%]') or '', '("[^"]*")$')
  -- pcall: a name with a quotation mark may be cut anywhere.
  local is_json, names = pcall(cjson.decode, '[' .. (last or '') .. ']')
  return (not last or is_json and names[1] == name) and string.match(facts, '"task":"([^"]*)"')
end

local function tally(index, task, what, by)
  if not task then
    return
  end
  local counts = beside(index, 'counts')
  local is_new = redis.pcall('HINCRBY', counts, task .. '\0' .. what, by or 1) == (by or 1)
  local now = is_new and now_ms()
  if now and redis.pcall('HSETNX', counts, 'since', string.format('%.0f', now)) == 1 then
    redis.pcall('PEXPIRE', counts, string.format('%.0f', MONTH - now % MONTH))
  end
end

-- Adds the time since these facts were written, by the clock of who wrote them, where that asks for it.
local function clock_up(index, task, what, facts)
  local since = task and string.find(facts, '"timed":1', 1, true) and string.match(facts, '"since":([%d.]+)')
  if not since then
    return
  end
  local seconds = math.max(0, now_ms() / 1000 - since)
  local bound = 'inf'
  for i = #BOUNDS, 1, -1 do
    bound = seconds <= BOUNDS[i] and BOUNDS[i] or bound
  end
  tally(index, task, what .. '\0' .. bound)
  tally(index, task, what .. '\0ms', math.floor(1000 * seconds))
end

-- A claim was granted, or a run's hold; `claim`: the facts of the one that it took over.
local function note_grant(index, name, facts, claim)
  local task = task_in(facts, name)
  if string.find(facts, '"state":"running"', 1, true) then
    tally(index, task, 'started')
    clock_up(index, task, 'wait', claim or '')
  elseif not claim then
    tally(index, task, 'accepted')
  end
end

-- Who has this value was refused by this holder.
local function note_refusal(lock, index, name, value, holder)
  local owner = string.match(value, '^[^%z]*/')
  local task = string.match(value, '"task":"([^"]*)"')
  -- Another delivery of what holds it is no duplicate.
  if not task or owner and string.find(holder, owner, 1, true) == 1 then
    return
  end
  local strategy = string.match(value, '"on_conflict":"(%l+)"')
  if strategy ~= 'wait' then
    tally(index, task, strategy == 'callable' and 'asked' or 'skipped')
  end
  local refused, refusals = stem_of(lock) .. 'refused', beside(index, 'refusals')
  local now = string.format('%.0f', now_ms())
  local found = redis.pcall('HGET', refused, task)
  local times, first = string.match(type(found) == 'string' and found or '', '^(%d+)%z(%d+)%z')
  local entry = {(times or 0) + 1, first or now, now, string.match(holder, '^[^%z]*'), value}
  -- Not the key of another program, which is of another type.
  if type(redis.pcall('HSET', refused, task, table.concat(entry, '\0'))) == 'number' then
    redis.pcall('PEXPIRE', refused, HOUR)
  end
  if type(redis.pcall('ZADD', refusals, now, name)) == 'number' then
    redis.pcall('PEXPIRE', refusals, HOUR)
    local old = now % 16 == 0 and redis.pcall('ZRANGEBYSCORE', refusals, '-inf', now - HOUR, 'LIMIT', 0, 100)
    if old and old[1] then
      redis.pcall('ZREM', refusals, unpack(old))
    end
  end
end

-- Facts, with what those of the hold before tell of the call's arguments.
local function with_told(facts, before)
  local is_told = string.find(facts, ',"args":"', 1, true)
  local told = not is_told and string.match(before or '', '(,"args":".*)}$')
  return told and string.sub(facts, 1, -2) .. told .. '}' or facts
end
