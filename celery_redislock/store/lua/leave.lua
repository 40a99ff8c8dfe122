-- Take an entry out of the line of a lock, and release the lock if it was handed to it meanwhile. Atomic;
-- repeating it is harmless: the entry of a message is told once more.
--
-- KEYS  1  lock   string `token NUL json`
--       2  index  sorted set of names
--       3  note   string, the entry of a message that this request has taken out before
-- ARGV  1  id     of the entry
--       2  name   of the lock
--       3  home   of the caller; '' for none
--       4  unless_held  '1': not one that holds the lock, unless it was handed that and has not started
--       5  keep   ms the note lives: longer than a repeated request may take
-- RETURNS {left, entry, ...}     it was in line; or `unless_held`, handed the lock and not started. The entry is
--                                `kind NUL to NUL ttl NUL facts NUL text`
--         {released, '', ...}    it held the lock
--         {kept, ''}             it holds the lock, and keeps it
--         {missing, '', ...}     it is not there
--         Behind each, where the end of its hold promotes one: promoted, sends, kept, id, text
include('line')
local lock, index = KEYS[1], KEYS[2]
local id, name, home = ARGV[1], ARGV[2], ARGV[3]
local stem = stem_of(lock)
local held = call('GET', lock)
local permit = is_marker(held) and permits(lock, index, name, held)
local is_own = permit and permit.facts_of(id) or held and string.find(held, id .. '\0', 1, true) == 1
local is_sent = call('ZSCORE', stem .. 'sent', id)
if is_own and ARGV[4] == '1' and not is_sent then
  return {'kept', ''}
end
local entry = call('HGET', stem .. 'parked', id) or ''
local is_in_line = is_sent or call('ZSCORE', stem .. 'line', id)
local _, _, _, facts = read(entry)
take_out_of_all(stem, name, id, facts or '')
if is_in_line then
  forget_newest(stem, id, facts)
end
if is_own then
  drop(lock, index, name, permit, id, facts)
  local word = is_sent and ARGV[4] == '1' and 'left' or 'released'
  if is_sent then
    call('SET', KEYS[3], entry, 'PX', ARGV[5])
  end
  return with_promoted({word, entry}, wake(lock, index, name, home))
end
look_by(index, name, stem)
if is_in_line and string.sub(entry, 1, 4) ~= 'ring' then
  call('SET', KEYS[3], entry, 'PX', ARGV[5])
end
local noted = not is_in_line and call('GET', KEYS[3])
return {(is_in_line or noted) and 'left' or 'missing', noted or entry}
