-- Included where a lock may be held by several at once; the including script declares `local permits` before.
--
--   {N}:lock     string `permits/N NUL {"limit":N}`, as long as the last permit: who knows only strings, as any
--                client's SET NX, finds the lock held. N: the least limit under which one is held, or less.
--                `{"limit":N,"weighs":1}`: a holder may take more than one place
--   {N}:permits  sorted set token -> expiry (ms, server clock)
--   {N}:holders  hash token -> facts, json; `"limit"` is the one that its process knows, `"permits"` the places
--                that it takes, where they are several
--   {N}:limit    string `N NUL json`: replaces what processes know, until it expires
--
-- A larger number is not written, which Lua may not be able to: a marker may name less than the least.
local MOST = 1000000000

-- Returns the permits of a lock as they are now; nil where one holder has it alone. `held`: the lock's value.
include('sent')
permits = function(lock, index, name, held)
  local marked, weighs = string.match(held or '', MARKER)
  if held and not marked then
    return
  end
  local stem = stem_of(lock)
  local set, holders = stem .. 'permits', stem .. 'holders'
  local now = now_ms()
  local self = {}
  local set_limit

  -- One that took over a claim may know of no limit: it counts as one that is to be alone.
  local function limit_in(facts)
    return tonumber(string.match(facts, '"limit":(%d+)') or 1)
  end

  -- The places that one with these facts takes.
  function self.weight_in(facts)
    return tonumber(string.match(facts, '"permits":(%d+)') or 1)
  end

  -- The places that are taken.
  local function taken()
    local count = call('ZCARD', set)
    for _, facts in ipairs(weighs == ',' and call('HVALS', holders) or {}) do
      count = count + self.weight_in(facts) - 1
    end
    return count
  end

  for _, token in ipairs(call('ZRANGEBYSCORE', set, '-inf', now)) do
    call('ZREM', set, token)
    call('HDEL', holders, token)
    bring_back(stem, name, token)
  end

  -- Milliseconds until the first (0) or the last (-1) permit expires; nil where there is none.
  function self.ends_in(which)
    local expiry = call('ZRANGE', set, which, which, 'WITHSCORES')[2]
    return expiry and expiry - now
  end

  -- The lock is held as long as one permit is, and listed; tells whether it could be.
  function self.mark()
    self.is_unmarked = nil
    local left = self.ends_in(-1)
    if not left then
      call('DEL', lock, set, holders)
      redis.pcall('ZREM', index, name)
      return
    end
    local weight = weighs == ',' and ',"weighs":1}' or '}'
    call('SET', lock, 'permits/' .. marked .. '\0{"limit":' .. marked .. weight, 'PX', left)
    call('PEXPIRE', set, left)
    call('PEXPIRE', holders, left)
    return list(index, name, now, left)
  end

  -- How many more may hold it; and the limit that counts: the one that was set, or else the least among the one
  -- that is asked for and those of the holders. Who knows of none holds it alone.
  function self.room(asked)
    local count = taken()
    if not asked then
      return 1 - count, 1
    end
    set_limit = set_limit or redis.pcall('GET', stem .. 'limit')
    local limit = type(set_limit) == 'string' and tonumber(string.match(set_limit, '^(%d+)%z'))
    self.is_set = limit
    if not limit then
      limit = tonumber(asked)
      -- It may be that of a holder that has gone.
      local least = count > 0 and (not marked or tonumber(marked) < limit) and call('HVALS', holders) or {}
      for _, facts in ipairs(least) do
        limit = math.min(limit, limit_in(facts))
      end
    end
    return limit - count, limit
  end

  -- Whether this one, which has a permit, may run beside those that run. It may not where that was granted under
  -- another limit than its process knows, or theirs.
  function self.may_run(own, asked)
    if call('ZCARD', set) == 1 then
      return true
    end
    self.room(asked)
    local least = tonumber(asked or 1)
    local running = 0
    local all = call('HGETALL', holders)
    for i = 1, #all, 2 do
      if all[i] ~= own then
        local runs = string.find(all[i + 1], '"state":"running"', 1, true)
        running = running + (runs and self.weight_in(all[i + 1]) or 0)
        least = math.min(least, limit_in(all[i + 1]))
      end
    end
    return running < (asked and self.is_set or least)
  end

  -- Another delivery's permit for the same task id: it never has two.
  function self.copy_of(token)
    local owner = string.match(token, '^(.+)/') or token
    for _, held_by in ipairs(call('HKEYS', holders)) do
      if held_by ~= token and (string.match(held_by, '^(.+)/') or held_by) == owner then
        return held_by
      end
    end
  end

  -- The first in a line whose time has come, and that neither holds it already nor is another delivery of what does.
  function self.first_in(line)
    local rank = -1
    local id
    repeat
      rank = rank + 1
      id = call('ZRANGE', line, rank, rank)[1]
    until not id or is_due(stem, id, now) and not (self.facts_of(id) or self.copy_of(id))
    return id
  end

  -- How many have a place and are on their way to a start, but this one (rate.lua). An older claim waits for a time.
  function self.pending(but)
    local HAND_OFF = 60000
    local count = 0
    local all = call('HGETALL', holders)
    for i = 1, #all, 2 do
      local since = string.match(all[i + 1], '"since":(%d+)')
      local is_running = string.find(all[i + 1], '"state":"running"', 1, true)
      local is_handed = string.find(all[i + 1], '"line":1', 1, true)
      local is_on_its_way = not is_running and (is_handed or since and math.abs(now - since * 1000) < HAND_OFF)
      count = count + (all[i] ~= but and is_on_its_way and 1 or 0)
    end
    return count
  end

  function self.facts_of(token)
    return call('ZSCORE', set, token) and (call('HGET', holders, token) or '')
  end

  -- Gives one, or makes one last for `ttl` from now on, in the place of `from` where that is given.
  function self.grant(token, facts, ttl, from)
    local asked = limit_in(facts)
    weighs = self.weight_in(facts) > 1 and ',' or weighs
    local _, limit = self.room(asked)
    if from then
      call('ZREM', set, from)
      call('HDEL', holders, from)
    end
    call('ZADD', set, now + ttl, token)
    call('HSET', holders, token, facts)
    -- While one is set, the holders' own are not compared.
    marked = string.format('%d', math.min(limit, asked, self.is_set and tonumber(marked) or asked, MOST))
    return self.mark()
  end

  -- Tells whether it was there.
  function self.renew(token, ttl)
    if not call('ZSCORE', set, token) then
      return false
    end
    call('ZADD', set, now + ttl, token)
    self.mark()
    return true
  end

  -- Returns its facts, false where it was not there. `later`: the caller may grant one first, and then marks what
  -- is left `is_unmarked`.
  function self.drop(token, later)
    local facts = call('HGET', holders, token) or ''
    call('HDEL', holders, token)
    if call('ZREM', set, token) == 0 then
      return false
    end
    self.is_unmarked = true
    if not later then
      self.mark()
    end
    return facts
  end

  -- Its holders, the one that ends first before the others, sixteen at most: count, and value and ttl of each.
  -- `only`: this one.
  function self.holders(only)
    local found = only and {only, call('ZSCORE', set, only)} or call('ZRANGE', set, 0, 15, 'WITHSCORES')
    local fields = {#found / 2}
    for i = 1, #found, 2 do
      fields[#fields + 1] = found[i] .. '\0' .. (call('HGET', holders, found[i]) or '')
      fields[#fields + 1] = found[i + 1] - now
    end
    return fields
  end

  return self
end

