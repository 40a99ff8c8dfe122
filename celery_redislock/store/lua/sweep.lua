-- Look at the lines whose time has come, each for all processes that sweep: hand free locks to the first in line.
-- While a lock is held, or only a time keeps who waits from it, those go without it, whatever their place, that have
-- waited for as long as they may; and messages are sent again that were lost on their way.
-- Atomic. One key's trouble stays with that key.
--
-- KEYS  1  lines  sorted set name -> when to look next (ms, server clock)
--       2  index  sorted set of names
-- ARGV  1  start  of a lock's keys, up to its name
--       2  home   of the caller; '' for none
--       3  count  of lines at most: fewer where many messages are looked through for those that were handed a lock
-- RETURNS {swept, next, lines, n, name, word, 4 fields, ...}   next: ms until the next line is due, -1 for none
--         name held value '' 0 0            somebody holds the lock
--         name promoted id text sends kept  the caller publishes this one: the lock is its own, or it has waited for
--                                           too long
--         name elsewhere home '' 0 0        only that home can serve the first in line
--         name lies id queue n 0            it was handed the lock, and lies in its queue: its claim was extended n
--                                           times
--         name often id queue n 0           its message was sent n times without a start: it is at the end of the line
--         name broken error '' 0 0          its keys are another program's; looked at again in a minute
include('line')
local lines, index = KEYS[1], KEYS[2]
local start, home, count = ARGV[1], ARGV[2], ARGV[3]
local now = now_ms()
local found = {}

-- A row of the answer.
local function tell(name, word, first, second, number, more)
  append(found, {name, word, first, second, number or 0, more or 0})
end

-- Entries of one line that a look lets go, and seeks: a millisecond of the server.
local AT_ONCE, SOUGHT = 100, 16
-- Milliseconds between two looks that find a message nowhere, at first; the last ones of a claim, in which it is
-- extended.
local DOUBT, LAST = 1000, 5000
-- It lies in its queue for so many extensions until that is told.
local LIES = 3
-- Milliseconds by which a claim that somebody renews ends later than it was granted for.
local RENEWED = 500

-- Returns when to look at the line next, at the latest.
local function let_go(name, stem, is_held)
  -- pcall: one key's trouble stays with that key.
  local late = redis.pcall('ZRANGEBYSCORE', stem .. 'until', '-inf', now, 'LIMIT', 0, AT_ONCE)
  local gone = 0
  for _, id in ipairs(late) do
    local kind, to, ttl, facts, text = read(redis.pcall('HGET', stem .. 'parked', id))
    if kind and is_held(id) then
      -- Its turn has come.
    elseif kind == 'give' then
      -- It stays in line until it is published. The note keeps another process from doing that meanwhile.
      if is_home(home, to) and call('SET', stem .. 'note:' .. id, '', 'NX', 'PX', ttl) then
        tell(name, 'promoted', id, text)
      end
    elseif not kind or kind == 'ring'
        or type(redis.pcall('RPUSH', to, next_text(stem, name, id, facts, text))) == 'number' then
      if kind then
        take_out_of_all(stem, name, id, facts)
        forget_newest(stem, id, facts)
      else
        call('ZREM', stem .. 'until', id)
      end
      gone = gone + 1
    end
  end
  if gone == AT_ONCE then
    return now
  elseif gone < #late then
    return now + LATEST -- for those that another process publishes, or that could not go
  end
  local first = redis.pcall('ZRANGEBYSCORE', stem .. 'until', '(' .. now, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
  return tonumber(first[2]) or math.huge
end

-- One that was handed the lock, was pushed, and has not started: its claim is extended while its message is there.
-- Found nowhere twice, that is sent again. Returns when to look next; nil where it went to the end of the line.
local function seek(name, stem, id, permit, to, ttl, facts, text)
  local lock, noted = stem .. 'lock', noted_at(stem, name, facts)
  local sends = note_of(noted, id, 'sent')
  local left = permit and call('ZSCORE', stem .. 'permits', id) - now or call('PTTL', lock)
  local last = math.min(LAST, ttl / 2)
  local where = found_in(to, text, facts, sends, left <= last and DEEP or NEAR)
  -- Acknowledged early, it is nowhere until it starts, and the worker that has it renews its claim.
  local renewed_at = now + left - ttl
  if renewed_at > note_of(noted, id, 'at') + RENEWED and now - renewed_at < ttl / 2 then
    where = where or 'hand'
  end
  local gone = note_of(noted, id, 'gone')
  if where then
    local kept = note_of(noted, id, 'kept')
    if gone > 0 then
      call('HDEL', noted, id .. '\0gone')
    end
    if left <= last then
      extend(lock, index, name, id, ttl, facts, permit)
      left = ttl
      kept = call('HINCRBY', noted, id .. '\0kept', 1)
      call('HSET', noted, id .. '\0at', now)
      if kept >= LIES and where == 'queue' then
        tell(name, 'lies', id, to, kept)
      end
    end
    return now + math.min(left - last + 1, math.max(LATEST, (kept * ttl + ttl - left) / 4))
  end
  -- Twice as long after each send: who runs it without a start may be a worker without this package.
  local doubt = math.min(DOUBT * 2 ^ (sends - 1), ttl / 2)
  if gone == 0 then
    call('HSET', noted, id .. '\0gone', now)
    return now + doubt
  elseif now - gone < doubt then
    return gone + doubt
  end
  call('HDEL', noted, id .. '\0gone')
  if sends % MOST_SENDS > 0 then
    if type(redis.pcall('RPUSH', to, (tagged(text, sends + 1)))) == 'number' then
      extend(lock, index, name, id, ttl, facts, permit)
      note_sent(noted, id)
    end
    return now + LATEST
  end
  tell(name, 'often', id, to, sends)
  drop(lock, index, name, permit, id, facts)
  bring_back(stem, name, id)
end

-- Seeks those that were handed the lock. Returns when to look next, at the latest, and whether the lock is free now.
local function seek_all(name, stem, permit, is_held)
  local count = call('ZCARD', stem .. 'sent')
  -- Of many, some, and others at other looks.
  local from = count > SOUGHT and now % count or 0
  local soonest, is_freed = math.huge, false
  for _, id in ipairs(count > 0 and call('ZRANGE', stem .. 'sent', from, from + SOUGHT - 1) or {}) do
    local kind, to, ttl, facts, text = read(redis.pcall('HGET', stem .. 'parked', id))
    if sought > MOST_SOUGHT then
      return now, is_freed
    elseif not kind or not is_held(id) then
      bring_back(stem, name, id)
      soonest = now
    elseif kind == 'push' and noted_at(stem, name, facts) == stem .. 'parked' then
      local again = seek(name, stem, id, permit, to, tonumber(ttl), facts, text)
      is_freed = is_freed or not again
      soonest = math.min(soonest, again or now)
    end
  end
  return soonest, is_freed
end

-- When to look again at who holds a lock: soon after it has started, as its process may be killed; later and later
-- while it holds it. One that was handed it is sought instead, or its claim ends.
local function next_of(holder)
  local since = string.match(holder, '"since":(%d+)')
  local age = since and now - since * 1000 or 0
  return string.find(holder, '"line":1', 1, true) and math.huge or now + math.max(LATEST, age / 4)
end

local function look(name)
  local stem = stem_at(start, name)
  local lock = stem .. 'lock'
  local held = call('GET', lock)
  if call('ZCARD', stem .. 'line') + call('ZCARD', stem .. 'sent') == 0 then
    call('ZREM', lines, name)
    return
  end
  call('ZADD', lines, now + LATEST, name)
  local permit = held and is_marker(held) and permits(lock, index, name, held) or nil
  local function is_held(id)
    return permit and permit.facts_of(id) or held and string.find(held, id .. '\0', 1, true) == 1
  end
  local latest, is_freed = math.huge, not held
  if held then
    local first = let_go(name, stem, is_held)
    latest, is_freed = seek_all(name, stem, permit, is_held)
    latest = math.min(latest, first)
  end
  local promoted, text, sends, kept
  if is_freed or permit then
    local before = call('ZCARD', stem .. 'sent')
    promoted, text, sends, kept = wake(lock, index, name, home, nil, permit)
    if elsewhere then
      tell(name, 'elsewhere', elsewhere, '')
      let_go(name, stem, is_held)
    end
    promoted = promoted or call('ZCARD', stem .. 'sent') > before
  end
  if text then
    tell(name, 'promoted', promoted, text, sends, kept)
  end
  if is_freed then
    if soonest then
      call('ZADD', lines, 'XX', math.min(soonest, let_go(name, stem, is_held)), name)
      look_by(index, name, stem)
    end
    return
  end
  local holders = permit and permit.holders() or {1, held, call('PTTL', lock)}
  for i = 2, #holders, 2 do
    tell(name, 'held', holders[i], '')
    latest = math.min(latest, next_of(holders[i]))
  end
  local left = permit and permit.ends_in(0) or not permit and call('PTTL', lock)
  latest = left and left >= 0 and math.min(latest, now + left + 5) or latest
  latest = soonest and math.min(latest, soonest) or latest
  latest = permit and elsewhere and math.min(latest, now + OF_ANOTHER_HOME) or latest
  if not promoted then
    call('ZADD', lines, 'XX', latest < math.huge and latest or now + LATEST, name)
  end
end

for _, name in ipairs(call('ZRANGEBYSCORE', lines, '-inf', now, 'LIMIT', 0, count)) do
  if sought > MOST_SOUGHT then
    break -- the others stay due
  end
  -- It changes nothing, but counts as a write: a server short of memory refuses ZADD as the first one only.
  call('ZREM', lines, '')
  local is_well, trouble = pcall(look, name)
  if not is_well then
    call('ZADD', lines, now + IN_TROUBLE, name)
    tell(name, 'broken', type(trouble) == 'table' and trouble.err or trouble, '')
  end
end
local after = call('ZRANGE', lines, 0, 0, 'WITHSCORES')[2]
return append({'swept', after and math.max(0, math.floor(after - now)) or -1, 'lines', #found / 6}, found)
