-- Replace the limit that the processes of a task know for one lock, or take that back; who waits may start at once.
-- Atomic.
--
-- KEYS  1  lock    string, as permits.lua says
--       2  index   sorted set of names
-- ARGV  1  name    of the lock
--       2  home    of the caller, for messages that wait; '' for none
--       3  value   `N NUL json`; '' takes it back. Absent, with what follows: nothing is changed
--       4  ttl     ms
-- RETURNS {limit, value, pttl}, ...   what is set now; '' and -2 for nothing. The caller publishes what comes behind
local name, home, value = ARGV[1], ARGV[2], ARGV[3]
include('line')
local key = stem_of(KEYS[1]) .. 'limit'
local promoted, text, sends, kept
if value == '' then
  call('DEL', key)
elseif value then
  call('SET', key, value, 'PX', ARGV[4])
end
if value then
  promoted, text, sends, kept = wake(KEYS[1], KEYS[2], name, home)
end
return with_promoted({'limit', call('GET', key) or '', call('PTTL', key)}, promoted, text, sends, kept)
