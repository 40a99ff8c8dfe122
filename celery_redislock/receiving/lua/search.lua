-- Search a piece of kombu's hash of unacknowledged messages. Reads only.
--
-- KEYS  1  unacked  hash delivery tag -> JSON
--       2  index    sorted set delivery tag -> when it was received (s)
-- ARGV  1  cursor   '0' to begin
--       2  text     plain, not a pattern
--       3  count    entries to look at, about
-- RETURNS {cursor, tag, JSON, received, …}   entries with the text; cursor '0' at the end
local found = redis.call('HSCAN', KEYS[1], ARGV[1], 'COUNT', ARGV[3])
local answer, entries = {found[1]}, found[2]
for i = 1, #entries, 2 do
  if string.find(entries[i + 1], ARGV[2], 1, true) then
    answer[#answer + 1] = entries[i]
    answer[#answer + 1] = entries[i + 1]
    answer[#answer + 1] = redis.call('ZSCORE', KEYS[2], entries[i]) or '0'
  end
end
return answer
