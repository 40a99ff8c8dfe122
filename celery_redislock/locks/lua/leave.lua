-- Take an entry out of the line of a lock, and release the lock if it was handed to it meanwhile. Atomic;
-- repeating it is harmless.
--
-- KEYS  1  lock   string `token NUL json`
--       2  index  sorted set of names
-- ARGV  1  id     of the entry
--       2  name   of the lock
--       3  home   of the caller; '' for none
--       4  unless_held  '1': not one that holds the lock
-- RETURNS {left, entry, ...}     it was in line: `kind NUL to NUL ttl NUL facts NUL text`
--         {released, '', ...}    it held the lock
--         {kept, ''}             it holds the lock, and keeps it
--         {missing, '', ...}     it is not there
--         Behind each, where the end of its hold promotes one that the caller publishes: promoted, 1, id, text
include('line')
local lock, index = KEYS[1], KEYS[2]
local id, name, home = ARGV[1], ARGV[2], ARGV[3]
local stem = stem_of(lock)
local line = stem .. 'line'
local held = call('GET', lock)
local permit = is_marker(held) and permits(lock, index, name, held)
local is_own = permit and permit.facts_of(id) or held and string.find(held, id .. '\0', 1, true) == 1
if is_own and ARGV[4] == '1' then
  return {'kept', ''}
end
local entry = call('HGET', stem .. 'parked', id)
local answer = {call('ZREM', line, id) == 1 and 'left' or 'missing', entry or ''}
call('HDEL', stem .. 'parked', id)
call('ZREM', stem .. 'until', id)
if is_own then
  answer[1] = 'released'
  if permit then
    permit.drop(id)
  else
    call('DEL', lock)
    redis.pcall('ZREM', index, name)
  end
  local promoted, text = wake(lock, index, name, home)
  if text then
    answer = {answer[1], answer[2], 'promoted', 1, promoted, text}
  end
elseif call('EXISTS', line) == 0 then
  redis.pcall('ZREM', lines_beside(index), name)
end
return answer
