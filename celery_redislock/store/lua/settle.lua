-- A message that was given to the caller has been published: it leaves the line. It is kept until it has started
-- (sent.lua). One that went without the lock lets the next one have it. Atomic; repeating it is harmless.
--
-- KEYS  1  lock   string `token NUL json`
--       2  index  sorted set of names
-- ARGV  1  id     of the entry
--       2  name   of the lock
--       3  ttl    ms its claim lives from now on
--       4  home   of the caller
--       5  sent   '1'; '0': it was not sent, as it may still be there
-- RETURNS settled
--         missing   it has left before
--         {settled, promoted, sends, kept, id, text}, ...   the caller publishes the next one
include('line')
local lock, index = KEYS[1], KEYS[2]
local id, name, ttl = ARGV[1], ARGV[2], tonumber(ARGV[3])
local home, promoted, text, sends, kept = ARGV[4]
local stem = stem_of(lock)
local _, _, _, facts = read(redis.pcall('HGET', stem .. 'parked', id))
local held = call('GET', lock)
local permit = is_marker(held) and permits(lock, index, name, held)
local is_held = permit and permit.facts_of(id) or held and string.find(held, id .. '\0', 1, true) == 1
local was_in_line = false
if is_held then
  was_in_line = facts and call('ZSCORE', stem .. 'line', id) and hand_over(stem, name, id, facts, ARGV[5])
  extend(lock, index, name, id, ttl, facts or '', permit)
elseif call('EXISTS', stem .. 'note:' .. id, mark_of(stem, id)) > 0 then
  -- It went without the lock. Any other whose claim has ended is in line still, and is looked for in its turn.
  was_in_line = take_out_of_all(stem, name, id, facts or '')
  forget_newest(stem, id, facts)
end
if permit or not held then
  promoted, text, sends, kept = wake(lock, index, name, home)
end
-- Sooner than its message had to be published: who runs it may be killed.
look_by(index, name, stem, is_held and now_ms() + math.min(ttl + 5, LATEST))
return with_promoted({was_in_line and 'settled' or 'missing'}, promoted, text, sends, kept)
