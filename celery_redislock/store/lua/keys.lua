-- Included where a script touches keys of a lock that it was not given. What they are called is derived here only:
-- all have the lock's hash tag, so a Cluster keeps them in one slot, and the index of lines is given with them.
--
--   {N}:lock  {N}:period  {N}:fence                 given, wherever they are touched
--   {N}:line  {N}:parked  {N}:until                 who waits (line.lua)
--   {N}:sent                                        who was handed the lock and has not started (sent.lua)
--   {N}:permits  {N}:holders  {N}:limit             who holds, where several may (permits.lua)
--   {N}:refused  {N}:forced                         what happened (history.lua)
--   {N}:mark:NONCE  {N}:note:NONCE  {N}:bell:NONCE

-- The value of a lock that several hold (permits.lua). Below zero: Lua could not write the number.
local MARKER = '^permits/(%-?%d+)%z{"limit":%-?%d+(,?)'

-- `{N}:`, of the key of a lock; and of the start of all such keys and a lock's name.
local function stem_of(lock)
  return string.sub(lock, 1, -5)
end
local function stem_at(start, name)
  return start .. name .. '}:'
end

-- The mark of a message, by the nonce of its token: marks are most of what a busy server keeps. A nonce that is too
-- short to be random tells no messages apart.
local function mark_of(stem, message)
  local nonce = string.match(message, '[^/]*$')
  return stem .. 'mark:' .. (#nonce < 12 and message or nonce)
end

-- A list with more behind it.
local function append(list, more)
  for _, each in ipairs(more) do
    list[#list + 1] = each
  end
  return list
end

-- The server's clock, in ms.
local function now_ms()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

-- What is beside the index of locks: `lines`, `counts`, `refusals`.
local function beside(index, what)
  return string.sub(index, 1, -6) .. what
end
