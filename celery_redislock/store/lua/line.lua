-- Included where a lock may have become free: hands it to the first in its line.
--
--   {N}:line    sorted set id -> place; the id is the waiting message's identity, and the token of its claim
--   {N}:parked  hash id -> `kind NUL to NUL ttl NUL facts NUL text`; ttl (ms) and facts are the claim's
--   {N}:until   sorted set id -> when it goes without the lock (ms, server clock), for those that do not wait
--               for longer; a process that waits sets it anew as long as it lives. Who leaves the line leaves it too
--   With nothing but processes in line since it was empty, these end a minute after the last sign of life (place.lua)
--
--   kind push   the text goes to the front of the list `to`, a queue of the broker on this server. Its facts name
--               the broker's hash of deliveries, where that is not `unacked`
--        ring   likewise, where `to` is the bell of a process that waits; it lives no longer than the claim
--        give   the caller publishes the text, if `to` is one of its homes; it stays in line until that is settled. If
--               it was sent before, the caller looks first whether it is there yet
--        hold   nothing is sent
--
-- A message that was pushed or given is kept until it has started (sent.lua).
--
-- Who is not due yet, as its facts begin (`{"due":MS,`), is passed over; nobody has the lock kept for it (merge.lua).
--
-- Who waits for several locks, which its facts name (`"names":[...]`), is in the lines of them all, and is handed
-- them all once they are free and it is the first in each: nobody goes before it in any of them, and lines in which
-- two wait have them in one order, as they were entered in one step.
include('index')
include('rate')
local permits
include('permits')
include('found')
-- Milliseconds: the longest time until somebody looks at a line again; until a line is looked at that only
-- another home can serve; until a key is tried again whose queue takes nothing.
local LATEST, OF_ANOTHER_HOME, IN_TROUBLE = 2000, 1000, 60000

-- The other locks that it has waited for, by their stems, and holds.
local function held_beside(stem, name, id, facts)
  local held = others_of(stem, name, facts)
  for other in pairs(held) do
    if string.find(call('GET', other .. 'lock') or '', id .. '\0', 1, true) ~= 1 then
      held[other] = nil
    end
  end
  return held
end

-- Ends one hold of a lock; by its facts, also what it holds of other locks that it has waited for.
local function drop(lock, index, name, permit, token, facts)
  for other, its_name in pairs(facts and held_beside(stem_of(lock), name, token, facts) or {}) do
    drop(other .. 'lock', index, its_name)
    redis.pcall('ZADD', beside(index, 'lines'), 'XX', 'LT', now_ms(), its_name)
  end
  if permit then
    permit.drop(token)
    return
  end
  call('DEL', lock)
  -- pcall: a broken index is no reason to keep a lock.
  redis.pcall('ZREM', index, name)
end

-- Lets the claim that one was handed live for `ttl` from now on.
local function extend(lock, index, name, id, ttl, facts, permit)
  if permit then
    permit.renew(id, ttl)
    return
  end
  local now = now_ms()
  call('PEXPIRE', lock, ttl)
  list(index, name, now, ttl)
  for other, its_name in pairs(held_beside(stem_of(lock), name, id, facts)) do
    call('PEXPIRE', other .. 'lock', ttl)
    list(index, its_name, now, ttl)
  end
end

-- An answer, and behind it what the caller publishes: how often that was sent, and extended, before.
local function with_promoted(answer, promoted, text, sends, kept)
  return append(answer, text and {'promoted', sends, kept, promoted, text} or {})
end

-- The home that alone can serve the first in the line that was looked at last; nil where that is not another one.
local elsewhere

-- When somebody in the line that was looked at last may start, by a due time, a rate or a period; nil where none keeps
-- anybody.
local soonest

-- Returns nothing where nobody waits, or could be served; an id, its text and how often it was sent and extended where
-- the caller publishes it, and others after it when that is settled.
-- Those that are pushed leave as long as there is room. `only`: this very
-- one, whatever its place; it holds the lock already. `permit`: of the lock, where the caller knows it.
-- pcall where a key may be of another type: the caller has released a lock, and one key's trouble stays there.
local function hand_on(lock, index, name, home, only, permit, pushed)
  local stem = stem_of(lock)
  local line, parked, lines = stem .. 'line', stem .. 'parked', beside(index, 'lines')
  local sent = stem .. 'sent'
  local now = now_ms()
  elsewhere = nil
  soonest = nil
  local rank, is_on_its_way = 0
  if not only and not permit and call('EXISTS', sent) == 1 then
    local held = call('GET', lock)
    permit = is_marker(held) and permits(lock, index, name, held) or nil
    for _, id in ipairs(held and {} or redis.pcall('ZRANGE', sent, 0, -1)) do
      bring_back(stem, name, id)
    end
  end
  local function head()
    return only or redis.pcall('ZRANGE', line, rank, rank)[1]
  end
  for id in head do
    local entry = redis.pcall('HGET', parked, id)
    if type(entry) == 'table' then
      redis.pcall('ZADD', lines, now + IN_TROUBLE, name)
      return
    end
    local kind, to, ttl, facts, text = read(entry)
    local till = kind == 'ring' and redis.pcall('ZSCORE', stem .. 'until', id)
    if not kind then
      call('ZREM', line, id) -- nobody could read it; what is there of it stays parked, to be looked at
      redis.pcall('ZREM', stem .. 'until', id)
      only = nil
    elseif type(till) == 'string' and tonumber(till) <= now and not only then
      -- Its process is dead, or stands still. Elsewhere it would stand before those who go before it here.
      take_out_of_all(stem, name, id, facts)
    elseif not only and due_of(facts) > now then
      soonest = math.min(soonest or math.huge, due_of(facts))
      rank = rank + 1
    elseif kind == 'give' and not is_home(home, to) then
      -- It is given when its claim has run out.
      if only and is_marker(call('GET', lock)) then
        permits(lock, index, name, call('GET', lock)).renew(id, OF_ANOTHER_HOME)
      elseif only then
        call('PEXPIRE', lock, OF_ANOTHER_HOME)
      end
      look_by(index, name, stem, now + OF_ANOTHER_HOME)
      elsewhere = to
      return
    else
      -- A copy of a message whose run has ended goes without the lock: who sees the result finds that free.
      local takes = kind == 'ring' or call('EXISTS', mark_of(stem, id)) == 0
      local held = not permit and call('GET', lock)
      local limit = string.match(facts, '"limit":(%d+)')
      permit = permit or (limit or is_marker(held)) and permits(lock, index, name, held)
      local has_permit = permit and permit.facts_of(id)
      local is_here = has_permit or permit and permit.copy_of(id)
      local room = permit and permit.room(limit) or held and 0 or 1
      local needs = permit and permit.weight_in(facts) or 1
      local others = takes and not only and others_of(stem, name, facts) or {}
      for other in pairs(others) do
        local holder = call('GET', other .. 'lock')
        local is_own = holder and string.find(holder, id .. '\0', 1, true) == 1
        -- It is being parked where it is not in that line: behind all who are.
        local first = first_due(other, now)
        local is_free = not holder and (not first or first == id) and redis.pcall('EXISTS', other .. 'sent') == 0
        needs = (is_own or is_free) and needs or math.huge
      end
      local pending = permit and permit.pending(id) or 0
      local closed = takes and not only and closed_for(stem, facts, pending, now, id) or 0
      if takes and is_here and not only then
        -- Given, and not settled; or another delivery of what runs, which ends first.
        rank, is_on_its_way = rank + 1, true
      elseif takes and room < needs and not only then
        local left = permit and permit.ends_in(0) or call('PTTL', lock)
        -- Sooner where it is due sooner: those who ask come as often as they like.
        look_by(index, name, stem, now + math.min(left < 0 and LATEST or left + 5, LATEST))
        return
      elseif closed > 0 then
        -- Nobody goes before it, whatever rate or period that one has.
        soonest = math.min(soonest or math.huge, now + closed)
        look_by(index, name, stem, soonest)
        return
      else
        if takes and permit and (limit or has_permit) then
          permit.grant(id, facts, ttl)
        elseif takes then
          call('SET', lock, id .. '\0' .. facts, 'PX', ttl)
          list(index, name, now, tonumber(ttl))
          if permit then
            permit.is_unmarked = nil
          end
          permit = nil
          for other, its_name in pairs(others) do
            call('SET', other .. 'lock', id .. '\0' .. facts, 'PX', ttl)
            list(index, its_name, now, tonumber(ttl))
          end
        end
        end_merging(stem, id)
        local noted = kind ~= 'ring' and noted_at(stem, name, facts)
        local sends = noted and note_of(noted, id, 'sent') or 0
        if kind == 'give' then
          look_by(index, name, stem, now + math.min(ttl, takes and LATEST or ttl))
          return id, text, takes and sends or 0, note_of(noted, id, 'kept')
        end
        local is_there = takes and sends > 0 and found_in(to, text, facts, sends, DEEP)
        local as_sent = kind == 'push' and tagged(text, sends + 1) or text
        local as_it_is = kind == 'hold' or is_there
        local is_told = as_it_is or kind == 'push' and type(redis.pcall('LINDEX', to, 0)) ~= 'table'
        if is_told and not as_it_is then
          append(pushed, {to, as_sent})
        elseif not is_told and type(redis.pcall('RPUSH', to, as_sent)) ~= 'number' then
          if takes then
            drop(lock, index, name, permit, id, facts)
          end
          redis.pcall('ZADD', lines, now + IN_TROUBLE, name)
          return
        end
        if kind == 'ring' then
          call('PEXPIRE', to, ttl)
        end
        if kind == 'push' and takes then
          hand_over(stem, name, id, facts, is_there and '0' or '1')
        else
          take_out_of_all(stem, name, id, facts)
        end
        for other, its_name in pairs(others) do
          look_by(index, its_name, other, now + LATEST)
        end
        -- When this claim has expired; whoever renews it is found alive then.
        look_by(index, name, stem, now + math.min(ttl + 5, LATEST))
        if takes and (only or not permit or permit.room(limit) < 1) then
          return id
        end
        if only then
          drop(lock, index, name, permit, id)
        end
        only = nil
      end
    end
  end
  -- For those that were passed over, or are on their way.
  if not soonest or is_on_its_way or call('EXISTS', sent) == 1 then
    soonest = math.min(soonest or math.huge, now + LATEST)
  end
  look_by(index, name, stem, soonest)
end

-- The last one of a queue is received first: those that are handed the lock at once are pushed from the last one on.
local function wake(lock, index, name, home, only, permit)
  local pushed = {}
  local id, text, sends, kept = hand_on(lock, index, name, home, only, permit, pushed)
  for i = #pushed - 1, 1, -2 do
    call('RPUSH', pushed[i], pushed[i + 1])
  end
  return id, text, sends, kept
end
