-- Included where the entries of a line (line.lua) are read or taken out.

-- Its kind, destination, ttl, facts and text; nil where nobody could read it.
local function read(entry)
  return string.match(type(entry) == 'string' and entry or '', '^(%l+)%z([^%z]*)%z(%d+)%z([^%z]*)%z(.*)$')
end

-- Tells whether it was in line. pcall: one key's trouble stays with that key.
local function take_out(stem, id)
  redis.pcall('HDEL', stem .. 'parked', id)
  redis.pcall('ZREM', stem .. 'until', id)
  return redis.pcall('ZREM', stem .. 'line', id) == 1
end
