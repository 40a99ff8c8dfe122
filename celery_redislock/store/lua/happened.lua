-- What happened to one lock in the last hour; and count what only its caller has seen.
--
-- KEYS  1  lock   string `token NUL json`
--       2  index  sorted set of names
-- ARGV  1  task   whose count is meant; '' for none
--       2  what   is counted
--       3  times  that it happened
--       4  nonce  of the request: repeated within `keep`, it counts once
--       5  keep   ms
--       6  name   of the lock
--       7  value  of who was refused so many times, `token NUL json`: noted as such; '' for none
--       8  holder its token
-- RETURNS {happened, forced, n, task, entry, ...}   forced: '' where nobody has released it by force; the entries
--         as history.lua has them
local call = redis.call
include('keys')
include('history')
local stem = stem_of(KEYS[1])
local task, times = ARGV[1], tonumber(ARGV[3])
if task ~= '' and call('SET', stem .. 'note:' .. ARGV[4], '', 'NX', 'PX', ARGV[5]) then
  if ARGV[7] == '' then
    tally(KEYS[2], task, ARGV[2], times)
  else
include('refusal')
    note_refusal(KEYS[1], KEYS[2], ARGV[6], ARGV[7], ARGV[8], times)
  end
end
local entries = call('HGETALL', stem .. 'refused')
return {'happened', call('GET', stem .. 'forced') or '', #entries / 2, unpack(entries)}
