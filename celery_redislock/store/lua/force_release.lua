-- An operator takes a hold away, its period with it; or a period nothing is held under. Atomic.
--
-- KEYS  1  lock      string `token NUL json`
--       2  period    string `token NUL json`
--       3  index     sorted set of names
-- ARGV  1  expected  token that must still hold, as seen before; a foreign lock's whole value
--       2  name      of the lock, the index member
--       3  anybody   '1': from any holder, `expected` is not looked at
--       4  home      of the caller, for messages that wait; '' for none
--       5  by        json: who does it, why and when, kept for an hour; '' for none
-- RETURNS {released, held, 1, value, pttl}   taken away: the victim's value, for the audit line
--         {kept, held, 1, value, pttl}       somebody else holds by now, untouched
--         missing                            nothing was held
--         {released, held, 1, value, pttl, promoted, sends, kept, id, text}   the caller publishes the first in line
--         With `period` in place of `held` where nothing was held and the period was found.
include('line')
include('history')
local lock, period, index = KEYS[1], KEYS[2], KEYS[3]
local expected, name, anybody, home, by = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]

local held = call('GET', lock)
local key = lock
local kind = 'held'
if not held then
  held = call('GET', period)
  key = period
  kind = 'period'
end
if not held then
  return {ok = 'missing'}
end
local pttl = call('PTTL', key)
local prefix = expected .. '\0'
local permit = is_marker(held) and permits(lock, index, name, held)
local facts = permit and permit.facts_of(expected)
if permit and not facts then
  -- The one that ends first is named for all.
  local holders = permit.holders()
  held = holders[2] or held
  pttl = holders[3] or pttl
end
if facts then
  local accepted = call('GET', period) or ''
  permit.drop(expected)
  bring_back(stem_of(lock), name, expected)
  local owner = string.match(expected, '^.*/')
  -- Under its claim, or since it started.
  if owner and string.find(accepted, owner, 1, true) == 1 then
    call('DEL', period)
    redis.pcall('ZREM', index, name .. '\0period')
  end
  held = prefix .. facts
elseif anybody ~= '1' and held ~= expected and string.sub(held, 1, #prefix) ~= prefix then
  return {'kept', kind, 1, held, pttl}
else
  local stem = stem_of(lock)
  call('DEL', lock, period, stem .. 'permits', stem .. 'holders')
  redis.pcall('ZREM', index, name, name .. '\0period')
end
tally(index, task_in(held, name), 'forced')
if by ~= '' then
  redis.pcall('SET', stem_of(lock) .. 'forced', by, 'PX', HOUR)
end
return with_promoted({'released', kind, 1, held, pttl}, wake(lock, index, name, home))
