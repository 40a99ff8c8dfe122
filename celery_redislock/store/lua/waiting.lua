-- Who waits in the line of a lock, in order. Reads only, so that a replica answers too.
--
-- KEYS  1  lock   string `token NUL json`
-- ARGV  1  first  rank of the first that is told
--       2  last   rank of the last, -1 for all
-- RETURNS {waiting, length, entries, n, id, entry, ...}   entry: without its text; '' where it is gone
include('keys')
local stem = stem_of(KEYS[1])
local line, parked = stem .. 'line', stem .. 'parked'
local ids = redis.call('ZRANGE', line, ARGV[1], ARGV[2])
local answer = {'waiting', redis.call('ZCARD', line), 'entries', #ids}
for _, id in ipairs(ids) do
  local entry = redis.call('HGET', parked, id) or ''
  answer[#answer + 1] = id
  answer[#answer + 1] = string.match(entry, '^(%l+%z[^%z]*%z%d+%z[^%z]*%z)') or ''
end
return answer
