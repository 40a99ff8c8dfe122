-- Release one hold, if it is ours. Atomic; repeating it is harmless.
--
-- KEYS  1  lock     string `token NUL json`; or a marker (permits.lua), and the token's permit is released
--       2  index    sorted set of names
--       3  period   string `token NUL json`; absent unless a period ends as well
--       last  mark  to leave behind; only with a state
-- ARGV  1  token    of the hold to release, and NUL
--       2  name     of the lock, the index member
--       3  home     of the caller, for messages that wait; '' for none
--       4  opened_by  token, and NUL, under which the period began that ends; absent without one
--       4 or 5      state of the mark: `ending`, or `1` for done; absent: none is left
--       last  keep  ms the mark lives
-- RETURNS released
--         missing                        expired, or released before
--         {kept, held, 1, value, pttl}   held by another token, untouched
--         {released, promoted, sends, kept, id, text}, {missing, ...}   the caller publishes the first in line (line.lua)
local call = redis.call
local opened_by = #ARGV % 2 == 0 and table.remove(ARGV, 4)
local token, name, home, state, keep = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local mark = state and table.remove(KEYS)
local lock, index, period = KEYS[1], KEYS[2], KEYS[3]

local function belongs(value, to)
  return value and string.find(value, to, 1, true) == 1
end

-- It changes nothing, but counts as a write: a replica, which may not have heard of this hold yet, fails; and
-- a server short of memory refuses SET as a script's first write only.
local held = call('GETEX', lock)
local ours = belongs(held, token)
local is_over = opened_by and belongs(call('GET', period), opened_by)
local permit
if held and not ours and belongs(held, 'permits/') then
include('index')
  local permits
include('permits')
  permit = permits(lock, index, name, held)
  ours = permit and permit.drop(string.sub(token, 1, -2), true)
end
if ours and not permit then
  call('DEL', lock)
end
if not permit and (ours or not held) then
  -- pcall: a broken index is no reason to keep a lock.
  redis.pcall('ZREM', index, name)
end
if is_over then
  call('DEL', period)
  redis.pcall('ZREM', index, name .. '\0period')
end
local facts = permit and ours or ours and held
local runs = facts and string.find(facts, '"state":"running"', 1, true)
if opened_by and facts then
include('keys')
include('entry')
  forget_newest(stem_of(lock), string.sub(token, 1, -2), facts)
end
if runs and string.find(facts, '"timed":1', 1, true) then
include('keys')
include('history')
  clock_up(index, task_in(facts, name), 'hold', facts)
end
if mark then
  call('SET', mark, state, 'PX', keep, unpack(state ~= '1' and {'NX'} or {}))
end
-- As keys.lua names it, without that: each run pays for this look.
local stem = string.sub(lock, 1, -5)
local has_line = call('EXISTS', stem .. 'line', stem .. 'sent') > 0
if has_line and not runs then
include('keys')
include('entry')
  -- Whose turn is over is not sent again, also where its claim has ended before.
  take_out(stem, string.sub(token, 1, -2))
  look_by(index, name, stem)
end
if ours or permit or not held then
  local word = ours and 'released' or 'missing'
  if has_line then
include('line')
    word = with_promoted({word}, wake(lock, index, name, home, nil, permit))
  end
  if permit and permit.is_unmarked then
    permit.mark()
  end
  return type(word) == 'table' and word or {ok = word}
end
return {'kept', 'held', 1, held, call('PTTL', lock)}
