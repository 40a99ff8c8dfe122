-- Take the claim of a message that is about to be published, and put the message into its queue. Atomic: no
-- claim without its message, no message without its claim. Repeating it pushes once.
--
-- KEYS  1  lock     string `token NUL json`, what this script grants
--       2  index    sorted set name -> expiry (ms, server clock), `name NUL window` for a window's
--       3  note     string, empty: the message has been pushed, although its claim may be gone again by now
--       4  queue    list, the broker's
--       5  window   string `token NUL json`: the last acceptance, while lock_period runs; absent: no period
-- ARGV  1  value    of the claim: `token NUL json`, the token being the message's identity
--       2  ttl      ms
--       3  name     of the lock, the index member
--       4  keep     ms the note lives: longer than a repeated request may take
--       5  message  what is pushed
--       6  period   ms until another one may be accepted
-- RETURNS 1                granted and pushed
--         4                granted and pushed before: the request was repeated
--         'pttl 0 value'   refused by the holder; pttl is -1 for a foreign lock without a ttl
--         'pttl 1 value'   refused by the window
include('index')
local lock, index, note, queue, window = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local value, ttl, name, period = ARGV[1], ARGV[2], ARGV[3], ARGV[6]

local function ours(held)
  return string.find(held, string.match(value, '^[^%z]*') .. '\0', 1, true) == 1
end

local accepted = window and call('GET', window)
-- A replica, and a server short of memory, refuse this SET, as the first write, and so the whole.
local taken = call('SET', lock, value, 'NX', 'PX', ttl)
if not taken or (accepted and not ours(accepted)) then
  if taken then
    call('DEL', lock)
  end
  local held = not taken and call('GET', lock)
  if held and ours(held) or call('EXISTS', note) == 1 then
    return 4
  elseif held then
    return call('PTTL', lock) .. ' 0 ' .. held
  end
  return call('PTTL', window) .. ' 1 ' .. accepted
end
if not call('SET', note, '', 'NX', 'PX', ARGV[4]) then
  call('DEL', lock) -- its message has been run and released since
  return 4
end
local time = call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local opens_window = window and not accepted
if opens_window then
  call('SET', window, value, 'PX', period)
end
if list(index, name, now, tonumber(ttl)) then
  if opens_window then
    list(index, name .. '\0window', now, tonumber(period))
  end
  tidy(index, now, time)
end
-- The last step: whatever the server refuses, what it answers with an error has pushed nothing.
local pushed = redis.pcall('LPUSH', queue, ARGV[5])
if type(pushed) == 'table' then
  call('DEL', lock, note, opens_window and window or note)
  redis.pcall('ZREM', index, name, opens_window and name .. '\0window' or name)
  return pushed
end
return 1
