-- Take one tick of an entry of the schedule, if the shared state is what this beat knows of it. Atomic.
--
-- A state is `until srv json`: until (ms) the tick is being sent, 0 once it is; when it was taken (ms), by the
-- server's clock; and what the beats make of it.
--
-- KEYS  1  state   string as above
--       2  pause   string `until NUL json`, until a number, `inf` among them; the rest may be missing. While it
--                  is there, ticks are spent and nothing is sent
--       3  index   sorted set name -> expiry (ms, server clock)
-- ARGV  1  known   the state this beat knows, '' for none
--       2  json    of the new one; it holds a nonce, so that a repeated request is known
--       3  bound   ms after which another beat may send it
--       4  ttl     ms the state lives
--       5  name    of the entry, the index member
-- RETURNS {'taken', state, now}
--         {'paused', state, now}    spent: the entry is paused
--         {'sending', state, now}   another beat sends it. Over a minute is not believed: the clock was set back
--         {'refused', state, now}   another state is there; '' for none
include('index')
local key, pause, entries = KEYS[1], KEYS[2], KEYS[3]
local known, json, bound, ttl, name = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4]), ARGV[5]
local time = call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

local function ms(number)
  return string.format('%.0f', number)
end

-- What is no state is shown as text that a beat can send back. The beat that knows this replaces it.
local found = redis.pcall('GET', key) or ''
if type(found) ~= 'string' then
  found = 'no string'
end
found = string.gsub(found, '[^\32-\126]', '?')
local ends, said = string.match(found, '^(%d+) %d+ (.*)$')
if said == json then
  return {ends == '0' and 'paused' or 'taken', found, ms(now)}
end
local left = ends and tonumber(ends) - now or 0
local is_sending = left > 0 and left <= 60000
if is_sending or found ~= known then
  return {is_sending and 'sending' or 'refused', found, ms(now)}
end
local said_of_pause = redis.pcall('GET', pause)
local is_paused = type(said_of_pause) == 'string' and tonumber(string.match(said_of_pause, '^[^%z]*')) ~= nil
local state = (is_paused and '0' or ms(now + bound)) .. ' ' .. ms(now) .. ' ' .. json
call('SET', key, state, 'PX', ttl)
if list(entries, name, now, ttl) then
  tidy(entries, now, time)
end
return {is_paused and 'paused' or 'taken', state, ms(now)}
