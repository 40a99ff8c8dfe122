-- Turn an exclusive hold into one of several, under the same token, and let those start who may be beside it.
-- Atomic; repeating it is harmless.
--
-- KEYS  1  lock   string `token NUL json`; afterwards a marker (permits.lua)
--       2  index  sorted set of names
-- ARGV  1  token  of the hold
--       2  ttl    ms it lives from now on
--       3  facts  json; `"limit"`: so many may hold it from now on
--       4  name   of the lock, the index member
--       5  home   of the caller, for messages that wait; '' for none
-- RETURNS released                       it is exclusive no more, or had been made so before
--         missing                        expired, or released before
--         {kept, held, 1, value, pttl}   held by another token, untouched
--         {released, promoted, sends, kept, id, text}   the caller publishes this one (line.lua)
include('line')
local lock, index = KEYS[1], KEYS[2]
local token, ttl, facts, name, home = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]

-- It changes nothing, but counts as a write: a replica, which may not have heard of this hold yet, fails.
local held = call('GETEX', lock)
local permit = is_marker(held) and permits(lock, index, name, held)
if held and string.find(held, token .. '\0', 1, true) == 1 then
  call('DEL', lock)
  permits(lock, index, name).grant(token, facts, ttl)
elseif not permit or not permit.facts_of(token) then
  return held and {'kept', 'held', 1, held, call('PTTL', lock)} or {ok = 'missing'}
end
return with_promoted({'released'}, wake(lock, index, name, home))
