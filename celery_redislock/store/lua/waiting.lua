-- Who waits in the line of a lock, in order. Reads only, so that a replica answers too.
--
-- KEYS  1  lock   string `token NUL json`
-- ARGV  1  first  rank of the first that is told
--       2  last   rank of the last, -1 for all
--       3  of     'line'; 'sent': of those that were handed the lock and have not started (sent.lua)
-- RETURNS {waiting, length, entries, n, id, entry, sends, ...}   entry: without its text; '' where it is gone.
--         sends: how often its message was sent; of several locks, that is known under the first of them
include('keys')
local stem = stem_of(KEYS[1])
local line, parked = stem .. ARGV[3], stem .. 'parked'
local ids = redis.call('ZRANGE', line, ARGV[1], ARGV[2])
local answer = {'waiting', redis.call('ZCARD', line), 'entries', #ids}
for _, id in ipairs(ids) do
  local entry = redis.call('HGET', parked, id) or ''
  answer[#answer + 1] = id
  answer[#answer + 1] = string.match(entry, '^(%l+%z[^%z]*%z%d+%z[^%z]*%z)') or ''
  answer[#answer + 1] = redis.call('HGET', parked, id .. '\0sent') or '0'
end
return answer
