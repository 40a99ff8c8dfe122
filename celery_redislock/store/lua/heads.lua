-- The lengths and the first of some lines. Reads only, so that a replica answers too.
--
-- KEYS  1 .. n  lock  string `token NUL json`
-- RETURNS {length, id, entry, sends, ...}   of the first of these locks, or all: so many that the server is soon free
--         again. entry, sends: as in waiting.lua. Where nobody waits the length is 0, and the id is that of one who was
--         handed the lock and has not started; '' for none
--
-- pcall where a key may be of another type: one broken key must not hide the other lines.
include('keys')
-- Bytes of texts that one request reads: a millisecond of the server.
local MOST = 262144
local answer, read = {}, 0
for _, lock in ipairs(KEYS) do
  local stem = stem_of(lock)
  local parked = stem .. 'parked'
  local id = redis.pcall('ZRANGE', stem .. 'line', 0, 0)[1]
  local length = id and redis.call('ZCARD', stem .. 'line') or 0
  id = id or redis.pcall('ZRANGE', stem .. 'sent', 0, 0)[1] or ''
  local entry = redis.pcall('HGET', parked, id)
  local sends = redis.pcall('HGET', parked, id .. '\0sent')
  entry = type(entry) == 'string' and entry or ''
  -- A pattern takes a microsecond for a hundred characters; facts may have several.
  local facts = string.match(entry, '^%l+%z[^%z]*%z%d+%z()')
  local last = facts and string.find(entry, '\0', facts, true)
  local known = last and string.sub(entry, 1, last) or ''
  append(answer, {length, id, known, type(sends) == 'string' and sends or '0'})
  read = read + #entry
  if read > MOST then
    break
  end
end
return answer
