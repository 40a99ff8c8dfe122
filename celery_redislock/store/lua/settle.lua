-- A message that was given to the caller has been published: it leaves the line. One that went without the lock
-- lets the next one have it. Atomic; repeating it is harmless.
--
-- KEYS  1  lock   string `token NUL json`
--       2  index  sorted set of names
-- ARGV  1  id     of the entry
--       2  name   of the lock
--       3  ttl    ms its claim lives from now on
--       4  home   of the caller
-- RETURNS settled
--         missing   it has left before
--         {settled, promoted, 1, id, text}, ...   the caller publishes the next one
include('line')
local lock, index = KEYS[1], KEYS[2]
local id, name, ttl = ARGV[1], ARGV[2], tonumber(ARGV[3])
local home, promoted, text = ARGV[4]
local stem = stem_of(lock)
local line, lines = stem .. 'line', beside(index, 'lines')
-- Where it was refused meanwhile (acquire.lua), it is in line anew. Its run takes it out, or has done so.
local is_anew = call('EXISTS', stem .. 'again:' .. id) == 1 and call('EXISTS', stem .. 'mark:' .. id) == 0
local _, _, _, facts = read(redis.pcall('HGET', stem .. 'parked', id))
local was_in_line = not is_anew and take_out_of_all(stem, name, id, facts or '')
local held = call('GET', lock)
local permit = is_marker(held) and permits(lock, index, name, held)
if held and string.find(held, id .. '\0', 1, true) == 1 then
  call('PEXPIRE', lock, ttl)
  local now = now_ms()
  list(index, name, now, ttl)
  for other, its_name in pairs(others_of(stem, name, string.match(held, '%z(.*)$'))) do
    if string.find(call('GET', other .. 'lock') or '', id .. '\0', 1, true) == 1 then
      call('PEXPIRE', other .. 'lock', ttl)
      list(index, its_name, now, ttl)
    end
  end
  -- Sooner than its message had to be published: who runs it may be killed.
  redis.pcall('ZADD', lines, 'LT', now + math.min(ttl + 5, LATEST), name)
elseif permit or not held then
  if permit then
    permit.renew(id, ttl)
  end
  promoted, text = wake(lock, index, name, home)
end
if call('EXISTS', line) == 0 then
  redis.pcall('ZREM', lines, name)
end
return with_promoted({was_in_line and 'settled' or 'missing'}, promoted, text)
