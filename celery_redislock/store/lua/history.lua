-- Included, inside the branch, where a hold is granted, refused (refusal.lua), waits or is taken away: notes what
-- happened, for operators. Starts are added up by the processes of the runs (locks/notes.py). It never changes an
-- answer. pcall: what the server refuses, and a key of another type, costs the note and nothing else.
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

-- The task that these facts name; of several locks, which are taken together, it counts once, with the last.
local function task_in(facts, name)
  local all = string.match(facts, '"names":%[(".-")%]')
  if all then
    -- pcall: a name with a quotation mark may be cut anywhere.
    local is_json, names = pcall(cjson.decode, '[' .. string.match(all, '("[^"]*")$') .. ']')
    if not is_json or names[1] ~= name then
      return
    end
  end
  return string.match(facts, '"task":"([^"]*)"')
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
  -- Seconds: the bounds of what `redislock_metrics` counts.
  local BOUNDS = {0.1, 0.5, 1, 5, 15, 60, 300, 900, 3600}
  local bound = 'inf'
  for i = #BOUNDS, 1, -1 do
    bound = seconds <= BOUNDS[i] and BOUNDS[i] or bound
  end
  tally(index, task, what .. '\0' .. bound)
  tally(index, task, what .. '\0ms', math.floor(1000 * seconds))
end
