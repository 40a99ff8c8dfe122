-- Release the claims of these owners, among some of the locks that are held. Atomic; repeating it is harmless.
-- A period that began under such a claim ends with it. Runs keep their holds, and periods alone stay.
--
-- KEYS  1  index     sorted set of names
-- ARGV  1  cursor    of the last answer, '0' at first
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

local function key_of(name, part)
  return stem_at(start, name) .. part
end

-- The state that a holder wrote about itself; it may have written anything.
local function state_of(value)
  local is_json, facts = pcall(cjson.decode, string.match(value, '%z(.*)$') or '')
  return is_json and type(facts) == 'table' and facts.state
end

local claims = {}

-- A claim was released: the period that began under it ends.
local function tell(name, token)
  local accepted = redis.pcall('GET', key_of(name, 'period'))
  if type(accepted) == 'string' and string.find(accepted, token .. '\0', 1, true) == 1 then
    call('DEL', key_of(name, 'period'))
    call('ZREM', index, name .. '\0period')
  end
  claims[#claims + 1] = name
  claims[#claims + 1] = token
end

-- It changes nothing, but counts as a write, so a replica refuses: it may know only past claims.
call('ZREM', index, '')
local found = call('ZSCAN', index, cursor, 'COUNT', count)
local members = found[2]
for i = 1, #members, 2 do
  local name = members[i]
  -- pcall: one key of another type must not keep the other claims.
  local value = not string.find(name, '%z') and redis.pcall('GET', key_of(name, 'lock'))
  local permit = type(value) == 'string' and is_marker(value) and permits(key_of(name, 'lock'), index, name, value)
  for _, token in ipairs(permit and call('HKEYS', key_of(name, 'holders')) or {}) do
    if is_wanted[string.match(token, '^(.+)/') or token] and state_of('\0' .. permit.facts_of(token)) == 'queued' then
      permit.drop(token)
      wake(key_of(name, 'lock'), index, name, '')
      tell(name, token)
    end
  end
  local token = type(value) == 'string' and string.match(value, '^([^%z]*)%z')
  if token and is_wanted[string.match(token, '^(.+)/') or token] and state_of(value) == 'queued' then
    call('DEL', key_of(name, 'lock'))
    call('ZREM', index, name)
    wake(key_of(name, 'lock'), index, name, '')
    tell(name, token)
  end
end
local answer = {'walked', found[1], 'claims', #claims / 2}
for _, field in ipairs(claims) do
  answer[#answer + 1] = field
end
return answer
