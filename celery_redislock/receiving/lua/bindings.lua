-- Look for the queues that kombu has bound, in a piece of the broker's keys. Reads only. For an operator.
--
-- ARGV  1  cursor   '0' to begin
--       2  pattern  of kombu's sets of bindings
-- RETURNS {cursor, binding, ...}   cursor '0' at the end; of a binding the last part is the queue
local found = redis.call('SCAN', ARGV[1], 'MATCH', ARGV[2], 'COUNT', 1000)
local answer = {found[1]}
for _, key in ipairs(found[2]) do
  local members = redis.pcall('SMEMBERS', key)
  for i = 1, #members do
    answer[#answer + 1] = members[i]
  end
end
return answer
