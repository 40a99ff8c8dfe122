-- Included, inside the branch, where somebody was refused: notes it, as history.lua says.
include('history')

-- Who has this value was refused by this holder; so many times, once by default, and last of them this one.
local function note_refusal(lock, index, name, value, holder, by)
  local owner = string.match(value, '^[^%z]*/')
  local task = string.match(value, '"task":"([^"]*)"')
  -- Another delivery of what holds it is no duplicate.
  if not task or owner and string.find(holder, owner, 1, true) == 1 then
    return
  end
  local strategy = string.match(value, '"on_conflict":"(%l+)"')
  -- Whom an operator holds up waits, whatever its strategy (`locks/hold.py`).
  local waits = strategy == 'wait' or strategy == 'coalesce' or string.find(holder, '^[^%z]*/hold:')
  if not waits then
    tally(index, task, strategy == 'callable' and 'asked' or 'skipped', by)
  end
  local refused, refusals = stem_of(lock) .. 'refused', beside(index, 'refusals')
  local now = string.format('%.0f', now_ms())
  local found = redis.pcall('HGET', refused, task)
  local times, first = string.match(type(found) == 'string' and found or '', '^(%d+)%z(%d+)%z')
  local entry = {(times or 0) + (by or 1), first or now, now, string.match(holder, '^[^%z]*'), value}
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
