-- Included by the scripts that list holds in the index.
local call = redis.call
include('keys')

-- Lists a member until `now + ttl` (ms, server clock); tells whether it could. An index without an end, or of
-- another type, is somebody else's key.
local function list(index, member, now, ttl)
  local left = call('PTTL', index)
  if left == -1 then
    return
  end
  local added = redis.pcall('ZADD', index, now + ttl, member)
  if type(added) == 'table' then
    if not string.find(added.err, 'WRONGTYPE', 1, true) then
      error(added.err)
    end
    return
  end
  if left < ttl then
    -- Twice as long as it must, so that most calls need not touch it.
    call('PEXPIRE', index, 2 * ttl)
  end
  return 1
end

-- Whether several may hold a lock, by its value (permits.lua).
local function is_marker(value)
  return value and string.find(value, MARKER)
end

-- Takes off expired members: now and then, and a hundred at a time, because all those of a quiet hour would
-- stall the server.
local function tidy(index, now, time)
  if time[2] % 16 == 0 then
    local gone = call('ZRANGEBYSCORE', index, '-inf', now, 'LIMIT', 0, 100)
    if #gone > 0 then
      call('ZREM', index, unpack(gone))
    end
  end
end

