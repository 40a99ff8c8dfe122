-- Who waits in the line of a lock, in order: one page. Reads only, so that a replica answers too.
--
-- KEYS  1  lock   string `token NUL json`
-- ARGV  1  first  rank of the first that is told
--       2  most   entries that are told
--       3  of     'line'; 'sent': of those that were handed the lock and have not started (sent.lua)
--       4  after  id of the last one of the page before: the page begins behind it, wherever it is by now. Absent,
--                 or gone: at `first`
-- RETURNS {waiting, length, more, is_more, id, entry, sends, ...}   entry: without its text; '' where it is gone.
--         sends: how often its message was sent; of several locks, that is known under the first of them.
--         is_more: 1 where the line goes on behind the last that is told
include('keys')
-- Bytes of texts that one page reads: a millisecond of the server.
local MOST = 262144
local call = redis.call
local stem = stem_of(KEYS[1])
local line, parked = stem .. ARGV[3], stem .. 'parked'
local before = ARGV[4] and call('ZRANK', line, ARGV[4])
local first = before and before + 1 or tonumber(ARGV[1])
local length = call('ZCARD', line)
local answer = {'waiting', length, 'more', 0}
local told, read = 0, 0
for _, id in ipairs(call('ZRANGE', line, first, first + ARGV[2] - 1)) do
  local entry = call('HGET', parked, id) or ''
  local known = string.match(entry, '^(%l+%z[^%z]*%z%d+%z[^%z]*%z)') or ''
  append(answer, {id, known, call('HGET', parked, id .. '\0sent') or '0'})
  told = told + 1
  read = read + #entry
  if read > MOST then
    break
  end
end
answer[4] = first + told < length and 1 or 0
return answer
