-- What happened to one lock in the last hour; and count what only its caller has seen.
--
-- KEYS  1  lock   string `token NUL json`
--       2  index  sorted set of names
-- ARGV  1  task   whose count is meant; '' for none
--       2  what   is counted
-- RETURNS {happened, forced, n, task, entry, ...}   forced: '' where nobody has released it by force; the entries
--         as history.lua has them
local call = redis.call
include('keys')
include('history')
local stem = stem_of(KEYS[1])
if ARGV[1] ~= '' then
  tally(KEYS[2], ARGV[1], ARGV[2])
end
local entries = call('HGETALL', stem .. 'refused')
return {'happened', call('GET', stem .. 'forced') or '', #entries / 2, unpack(entries)}
