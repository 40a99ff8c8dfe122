-- Turn one token's hold into another's, if it still holds. Never takes a free lock. Atomic; repeating it is
-- harmless.
--
-- KEYS  1  lock     string `token NUL json`, or a marker (permits.lua)
--       2  index    sorted set name -> expiry (ms, server clock)
--       3  theirs   mark of the new token's message: where it exists, the hold is released instead
--       4  mark     mark to leave behind; absent: none
-- ARGV  1  old      token that must hold
--       2  new      token that holds from now on
--       3  ttl      ms
--       4  facts    json describing the new holder
--       5  name     of the lock, the index member
--       6  home     of the caller, for messages that wait; '' for none
--       7  state    of the mark: `ending`, or `1` for done
--       8  keep     ms the mark lives
-- RETURNS handed_on                      held by `new` now, or already: the request was repeated
--         released                       because of the new message's mark
--         missing                        expired, or released before
--         {kept, held, 1, value, pttl}   held by another token, untouched
--         {handed_on, promoted, sends, kept, id, text}, ...   the caller publishes this one (line.lua)
include('line')
include('told')
local lock, index, theirs, mark = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local old, new, ttl, facts, name = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4], ARGV[5]
local home, promoted, text, sends, kept = ARGV[6]

local function belongs(value, to)
  return value and string.sub(value, 1, #to + 1) == to .. '\0'
end

-- It changes nothing, but counts as a write: a replica, which may not have heard of this hold yet, fails; and
-- a server short of memory refuses SET as a script's first write only.
local value = call('GETEX', lock)
local held = belongs(value, old)
local handed_on = belongs(value, new)
local permit = is_marker(value) and permits(lock, index, name, value)
if permit then
  held = permit.facts_of(old)
  handed_on = permit.facts_of(new)
  value = held or handed_on
end
local goes_on = held and call('EXISTS', theirs) == 0
if goes_on then
  if old ~= new and redis.pcall('ZSCORE', stem_of(lock) .. 'sent', new) then
    -- It waited for several locks, and was handed them with the one before this.
    local _, _, its_ttl, its_facts = read(redis.pcall('HGET', stem_of(lock) .. 'parked', new))
    ttl = tonumber(its_ttl) or ttl
    facts = its_facts or facts
  end
  facts = with_told(facts, permit and held or value)
  if permit then
    permit.grant(new, facts, ttl, old)
  else
    call('SET', lock, new .. '\0' .. facts, 'PX', ttl)
    list(index, name, now_ms(), ttl)
  end
  if old == new then
    take_out(stem_of(lock), old) -- it keeps what it was handed, and goes on by itself
    look_by(index, name, stem_of(lock))
  elseif type(redis.pcall('ZSCORE', stem_of(lock) .. 'line', new)) == 'string' then
    -- It came before its claim was there, and waits: nobody else would publish it.
    promoted, text, sends, kept = wake(lock, index, name, home, new)
  end
elseif permit then
  permit.drop(old)
elseif held or not value then
  drop(lock, index, name, nil, old)
end
if mark then
  call('SET', mark, ARGV[7], 'PX', ARGV[8], unpack(ARGV[7] ~= '1' and {'NX'} or {}))
end
if not goes_on and (held or not value) then
  promoted, text, sends, kept = wake(lock, index, name, home)
end
local word = (goes_on or handed_on) and 'handed_on' or held and 'released' or not value and 'missing'
if word then
  return with_promoted({word}, promoted, text, sends, kept)
end
return {'kept', 'held', 1, value, call('PTTL', lock)}
