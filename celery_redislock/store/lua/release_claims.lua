-- Release the claims of these owners, among some of the locks that are held. Atomic; repeating it is harmless.
-- A period that began under such a claim ends with it. Runs keep their holds, and periods alone stay.
--
-- KEYS  1  index     sorted set of names
-- ARGV  1  cursor    of the last answer, '0' at first; behind `lines:`, of the lines, whose calls nobody joins any more
--       2  count     of locks to look at, more or less
--       3  start     of a lock's keys, up to its name
--       4 ..         the owners
-- RETURNS {walked, cursor, claims, n, name, token, ...}   the released claims; the cursor '0': it is over
include('line')
local index = KEYS[1]
local cursor, count, start = ARGV[1], ARGV[2], ARGV[3]
local is_wanted = {}
for i = 4, #ARGV do
  is_wanted[ARGV[i]] = true
end

-- The state that a holder wrote about itself; it may have written anything.
local function state_of(value)
  local is_json, facts = pcall(cjson.decode, string.match(value, '%z(.*)$') or '')
  return is_json and type(facts) == 'table' and facts.state
end

local claims = {}

-- Later calls of its task do not take the place of a revoked one, and earlier ones do not yield to it (merge.lua).
local function forget(stem)
  for _, what in ipairs({'merge', 'newest'}) do
    local all = redis.pcall('HGETALL', stem .. what)
    for i = 1, #all, 2 do
      local id = string.match(all[i + 1], '^([^%z]*)%z')
      if id and is_wanted[string.match(id, '^(.+)/') or id] then
        redis.pcall('HDEL', stem .. what, all[i])
      end
    end
  end
end

local function release(name, value)
  local stem = stem_at(start, name)
  local lock, period = stem .. 'lock', stem .. 'period'
  local permit = is_marker(value) and permits(lock, index, name, value)
  local tokens = permit and call('HKEYS', stem .. 'holders') or {string.match(value, '^[^%z]*')}
  local gone = {}
  for _, token in ipairs(tokens) do
    local facts = permit and '\0' .. (permit.facts_of(token) or '') or value
    if is_wanted[string.match(token, '^(.+)/') or token] and state_of(facts) == 'queued' then
      gone[#gone + 1] = token
    end
  end
  for _, token in ipairs(gone) do
    drop(lock, index, name, permit, token)
    local accepted = redis.pcall('GET', period)
    if type(accepted) == 'string' and string.find(accepted, token .. '\0', 1, true) == 1 then
      call('DEL', period)
      call('ZREM', index, name .. '\0period')
    end
    claims[#claims + 1] = name
    claims[#claims + 1] = token
  end
  if gone[1] then
    forget(stem)
    wake(lock, index, name, '')
  end
end

-- It changes nothing, but counts as a write, so a replica refuses: it may know only past claims.
call('ZREM', index, '')
local of_lines = string.match(cursor, '^lines:(.*)$')
if of_lines then
  local found = call('ZSCAN', beside(index, 'lines'), of_lines, 'COUNT', count)
  for i = 1, #found[2], 2 do
    pcall(forget, stem_at(start, found[2][i]))
  end
  return {'walked', found[1] == '0' and '0' or 'lines:' .. found[1], 'claims', 0}
end
local found = call('ZSCAN', index, cursor, 'COUNT', count)
for i = 1, #found[2], 2 do
  local name = found[2][i]
  local value = not string.find(name, '%z') and redis.pcall('GET', stem_at(start, name) .. 'lock')
  if type(value) == 'string' then
    pcall(release, name, value) -- one key's trouble must not keep the other claims
  end
end
local answer = {'walked', found[1] == '0' and 'lines:0' or found[1], 'claims', #claims / 2}
for _, field in ipairs(claims) do
  answer[#answer + 1] = field
end
return answer
