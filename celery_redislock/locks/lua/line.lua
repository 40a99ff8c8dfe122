-- Included where a lock may have become free: hands it to the first in its line.
--
--   {N}:line    sorted set id -> place; the id is the waiting message's identity, and the token of its claim
--   {N}:parked  hash id -> `kind NUL to NUL ttl NUL facts NUL text`; ttl (ms) and facts are the claim's
--
--   kind push   the text goes to the front of the list `to`, a queue of the broker on this server
--        ring   likewise, where `to` is the bell of a process that waits; it lives no longer than the claim
--        give   the caller publishes the text, if its home is `to`; it stays in line until that is settled
--        hold   nothing is sent
include('index')
-- Milliseconds: the longest time until somebody looks at a line again; until a line is looked at that only
-- another home can serve; until a key is tried again whose queue takes nothing.
local LATEST, OF_ANOTHER_HOME, IN_TROUBLE = 2000, 1000, 60000

-- Returns nothing where nobody waits, or could be served; an id where that one is on its way; an id and its
-- text where the caller publishes it. `only`: this very one, whatever its place; it holds the lock already.
-- pcall where a key may be of another type: the caller has released a lock, and one key's trouble stays there.
local function wake(lock, index, name, home, only)
  local stem = string.sub(lock, 1, -5)
  local line, parked, lines = stem .. 'line', stem .. 'parked', string.sub(index, 1, -6) .. 'lines'
  local time = call('TIME')
  local now = time[1] * 1000 + math.floor(time[2] / 1000)
  local heads = only and {only} or redis.pcall('ZRANGE', line, 0, 0)
  while heads[1] do
    local id = heads[1]
    local entry = redis.pcall('HGET', parked, id)
    if type(entry) == 'table' then
      redis.pcall('ZADD', lines, now + IN_TROUBLE, name)
      return
    end
    local kind, to, ttl, facts, text = string.match(entry or '', '^(%l+)%z([^%z]*)%z(%d+)%z([^%z]*)%z(.*)$')
    if not kind then
      call('ZREM', line, id) -- nobody could read it; what is there of it stays parked, to be looked at
      heads = call('ZRANGE', line, 0, 0)
    elseif kind == 'give' and to ~= home then
      if only then
        call('PEXPIRE', lock, OF_ANOTHER_HOME) -- it is given when its claim has run out
      end
      redis.pcall('ZADD', lines, now + OF_ANOTHER_HOME, name)
      return
    else
      -- A copy of a message whose run has ended goes without the lock: who sees the result finds that free.
      local takes = call('EXISTS', stem .. 'mark:' .. id) == 0
      if takes then
        call('SET', lock, id .. '\0' .. facts, 'PX', ttl)
        list(index, name, now, tonumber(ttl))
      end
      if kind == 'give' then
        redis.pcall('ZADD', lines, now + ttl, name)
        return id, text
      end
      if kind ~= 'hold' and type(redis.pcall('RPUSH', to, text)) ~= 'number' then
        if takes then
          call('DEL', lock)
        end
        redis.pcall('ZADD', lines, now + IN_TROUBLE, name)
        return
      end
      if kind == 'ring' then
        call('PEXPIRE', to, ttl)
      end
      call('ZREM', line, id)
      call('HDEL', parked, id)
      if call('EXISTS', line) == 0 then
        redis.pcall('ZREM', lines, name)
      else
        -- When this claim has expired; whoever renews it is found alive then.
        redis.pcall('ZADD', lines, 'LT', now + math.min(ttl + 5, LATEST), name)
      end
      if takes then
        return id
      end
      heads = call('ZRANGE', line, 0, 0)
    end
  end
  redis.pcall('ZREM', lines, name)
end

