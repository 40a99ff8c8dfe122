-- Note when a call was made that starts now, and tell whether another one of its task was made later. Atomic.
--
-- KEYS  1  lock    string `token NUL json`
-- ARGV  1  task
--       2  id      identity of the call's message
--       3  number  when it was made (merge.lua); '' where nobody knows, and nothing is noted then
-- RETURNS newest         no other one
--         {older, id}    that one was
local call = redis.call
include('keys')
include('history')
include('merge')
local stem, task, id, number = stem_of(KEYS[1]), ARGV[1], ARGV[2], tonumber(ARGV[3])
-- It changes nothing, but counts as a write, so a replica refuses: it may know only past calls.
call('GETEX', KEYS[1])
local newest, at = newest_of(stem, task)
if newest and newest ~= id and at > (number or 0) then
  return {'older', newest}
end
if number then
  note_newest(stem, task, id, number)
end
return {ok = 'newest'}
