-- Look for a text in a piece of a queue of kombu's, whose workers take from the right. Reads only.
--
-- KEYS  1  queue  list of JSON
-- ARGV  1  text   plain, not a pattern
--       2  from   how many of those that workers take first are left out
--       3  count  messages to look at
-- RETURNS {length, place, message}   of the first with the text, 1 is taken next; 0 and '' for none of these
local length = redis.call('LLEN', KEYS[1])
local found = redis.call('LRANGE', KEYS[1], -(ARGV[2] + ARGV[3]), -(ARGV[2] + 1))
for i = #found, 1, -1 do
  if string.find(found[i], ARGV[1], 1, true) then
    return {length, ARGV[2] + #found - i + 1, found[i]}
  end
end
return {length, 0, ''}
