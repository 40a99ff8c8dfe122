-- Take the claim of a message that is about to be published, and put the message into its queue. Atomic: no
-- claim without its message, no message without its claim. Repeating it pushes once.
--
-- The KEYS and ARGV of acquire.lua come before these:
--
-- KEYS  last but one note     string, empty: the message has been pushed, although its claim may be gone by now
--       last         queue    list, the broker's
-- ARGV  last but one keep     ms the note lives: longer than a repeated request may take
--       last         message  its text
-- RETURNS as acquire.lua; the message has been pushed where the claim is held under this token now
--         repeated   pushed before: the request was repeated
--
-- A claim that is held under this token without a note gets its message: the publisher was killed between the
-- two, or took the claim alone. Where the note has expired the message is pushed once more, under the same
-- identity.
local queue, note, message, keep = table.remove(KEYS), table.remove(KEYS), table.remove(ARGV), table.remove(ARGV)
local function acquire()
include('acquire')
end
if redis.call('EXISTS', note) == 1 then
  return {ok = 'repeated'} -- also where its message has been run, or dropped, and released since
end
local answer = acquire()
local word = string.match(answer.ok or '', '^[%a_]+')
local is_new = word == 'granted' or word == 'taken_over'
if not is_new and word ~= 'repeated' then
  return answer
end
local lock, period, value, name = KEYS[1], KEYS[4], ARGV[1], ARGV[3]
redis.call('SET', note, '', 'PX', keep)
-- The last step: a script that the server answers with an error has pushed nothing.
local pushed = redis.pcall('LPUSH', queue, message)
if type(pushed) == 'number' then
  return answer
end
redis.call('DEL', note)
if not is_new then
  return pushed
end
include('index')
local permits
include('permits')
local permit = is_marker(call('GET', lock)) and permits(lock, KEYS[2], name, call('GET', lock))
if permit then
  permit.drop(string.match(value, '^[^%z]*'))
else
  call('DEL', lock)
  redis.pcall('ZREM', KEYS[2], name)
end
if period and redis.call('GET', period) == value then
  redis.call('DEL', period)
  redis.pcall('ZREM', KEYS[2], name .. '\0period')
end
return pushed
