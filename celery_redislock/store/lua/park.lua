-- Put a waiting message, or a process that waits, into the line of a lock, unless it may have the lock. Atomic;
-- repeating it parks once.
--
-- KEYS  1  lock     string `token NUL json`
--       2  index    sorted set of names
--       3  note     string, empty: this request has parked before; the entry may have left since
--       4  unacked  hash of the broker's deliveries, where the broker is this server; absent: not acknowledged here
--       5  tags     sorted set of their tags
-- ARGV  1  id       of the entry: the identity of a message, and the token of the claim it will be handed
--       2  name     of the lock
--       3  entry    `kind NUL to NUL ttl NUL facts NUL text`, see line.lua
--       4  how      'ask': it may run where the lock is free; 'behind': it waits also then, because one before it
--                   is on its way to the lock; 'refused': it waits, and is woken at once where the lock is free
--       5  home     of the caller, for entries to be given; '' for none
--       6  band     of its priority: 0 is served first
--       7  place    'last' of its band; 'first' of it; or the id of one it goes before: first, if that has left
--       8  most     entries there may be
--       9  keep     ms the note lives: longer than a repeated request may take
--       10  ahead   `token NUL json`: where the lock is free, nobody waits and it waits 'behind', the claim of the
--                   one before it; '' for none. Else that one would be refused in favour of those that wait for it.
--                   Where somebody waits, that one may wait as well by now, and would not take it over
--       11  within  ms until it goes without the lock if it is in line then (sweep.lua); '' for ever. A process
--                   that waits leaves the line then, unless it has parked again
--       12  tag     of the delivery that is acknowledged; '' or absent for none
--       13  named   `task id NUL token`, as they are spelled in its text: of a call that takes the place of an older
--                   one of its task (merge.lua), or gives way to a newer one. Absent, with all that follows: of none
--       14  number  when it was made; '' where nobody knows: then whoever is parked later is newer
--       15  pause   as in claim_or_park.lua, and so is
--       16  longest
--       17  older   id of the one whose caller was told that it gives way; '' for none
--       18  marked  ms for which a copy of that one may come
-- RETURNS {parked, place}                        place: how many are before it. The lock is free, but 'behind'
--         {parked, place, held, n, value, pttl, ...}  by the holder
--         {parked, place, promoted, sends, kept, id, text} the lock was free, and the caller publishes this one
--         woken                                  parked, and on its way: the lock was free, or its own already
--         repeated                               parked before
--         runs                                   not parked: the lock is free, or its own claim's
--         full                                   not parked
--         done                                   not parked: it has run, or has given way
--         {newer, id}                            not parked: this one of its task waits, and is newer
--         {older, value}                         not parked: this one waits, `id NUL facts`, and is to give way
include('line')
include('place')
include('history')
include('merge')
local lock, index, note = KEYS[1], KEYS[2], KEYS[3]
local id, name, entry, how, home = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local stem = stem_of(lock)
local line, parked, lines = stem .. 'line', stem .. 'parked', beside(index, 'lines')
-- Of a process; a message waits for ever.
local lives = string.sub(entry, 1, 4) == 'ring' and ARGV[11] ~= '' and ARGV[11] + OUTLIVE

-- Milliseconds until one that is ahead has begun, or those behind it go on.
local AHEAD = 10000

local function acknowledge()
  if KEYS[4] then
    call('ZREM', KEYS[5], ARGV[12])
    call('HDEL', KEYS[4], ARGV[12])
  end
end

local named, number, older = ARGV[13], tonumber(ARGV[14]), ARGV[17]
local pause, longest = tonumber(ARGV[15]), tonumber(ARGV[16])
local task

if call('EXISTS', note) == 1 then
  return {ok = 'repeated'}
end
if named and call('GET', mark_of(stem, id)) == '1' then
  return {ok = 'done'}
end
local held = call('GET', lock)
local is_own = held and string.find(held, id .. '\0', 1, true) == 1
local _, _, _, facts = read(entry)
local limit = string.match(facts or '', '"limit":(%d+)')
local permit = not is_own and (limit or is_marker(held)) and permits(lock, index, name, held)
if permit then
  is_own = permit.facts_of(id)
end
local is_sent = call('ZSCORE', stem .. 'sent', id)
if is_sent and not is_own then
  bring_back(stem, name, id) -- its hand-off has ended before it came
end
-- One that holds the lock, and is given up although it was handed that, is missed by a look, or when its claim ends.
if call('HEXISTS', parked, id) == 1 and (call('ZSCORE', line, id) or is_sent and how == 'refused') then
  acknowledge() -- another delivery of it
  if named then
    -- Its place may have been taken since.
  elseif string.sub(entry, 1, 4) ~= 'ring' then
    redis.pcall('HSET', parked, id, entry) -- who refused it may know another limit than who parked it first
  elseif lives then
    call('ZADD', stem .. 'until', now_ms() + ARGV[11], id)
    let_live({line, parked, stem .. 'until', lines}, lives)
  end
  if string.sub(entry, 1, 4) == 'give' then
    redis.pcall('SET', note, '', 'PX', ARGV[9])
  end
  return {ok = 'repeated'}
end
if permit then
  held = permit.room(limit) < permit.weight_in(facts) and held
end
local length = call('ZCARD', line)
-- Where some hold it, all who were handed it and hold it no more are in line again.
local is_free = not held and length == 0 and (permit and permit.ends_in(0) or call('EXISTS', stem .. 'sent') == 0)
is_free = is_free and closed_for(stem, facts, permit and permit.pending(id) or 0, now_ms(), id) == 0
if how ~= 'refused' and (is_own or how == 'ask' and is_free and not (pause and pause > 0)) then
  return {ok = 'runs'}
end
local waiting, its_number, its_facts, at, its_until
if named and not is_own then
  task = task_in(facts, name)
  local newest, made = newest_of(stem, task)
  if number and newest and newest ~= id and made > number then
    return {'newer', newest} -- it was accepted, and may have run
  end
  waiting, its_number = waiting_of(stem, task)
  local is_newer = number and its_number and number < its_number or not number and ARGV[7] ~= 'last'
  if waiting and is_newer then
    return {'newer', waiting}
  end
  _, _, _, its_facts = read(waiting and call('HGET', parked, waiting))
  if waiting and waiting ~= older then
    return {'older', waiting .. '\0' .. (its_facts or '')}
  end
end
if not is_own and not waiting and length >= tonumber(ARGV[8]) then
  return {ok = 'full'}
end
local is_first, is_new = call('EXISTS', lines) == 0, call('EXISTS', line, parked, stem .. 'sent') == 0
local now, due = now_ms(), 0
if task then
  local kind, to, hand_off, _, text = read(entry)
  facts, due = with_times(facts, now, pause, longest, its_facts)
  entry = table.concat({kind, to, hand_off, facts, text}, '\0')
  at = waiting and call('ZSCORE', line, waiting)
  its_until = waiting and call('ZSCORE', stem .. 'until', waiting)
end
if waiting then
  take_out(stem, waiting)
  call('SET', mark_of(stem, waiting), '1', 'PX', ARGV[18])
  call('ZADD', line, at, id)
  call('HSET', parked, id, entry)
else
  put(stem, id, entry, ARGV[6], ARGV[7])
end
if task then
  let_merge(stem, task, id, number or now_us(), named)
end
tally(index, task_in(facts or '', name), waiting and 'merged' or 'waited')
if its_until then
  call('ZADD', stem .. 'until', its_until, id)
elseif ARGV[11] ~= '' then
  call('ZADD', stem .. 'until', now + ARGV[11], id)
end
let_live({line, parked, stem .. 'until'}, lives, is_new)
let_live({lines}, lives)
-- A process that waits may be parked twice: it asks who holds the lock anyway.
if string.sub(entry, 1, 4) ~= 'ring' then
  call('SET', note, '', 'PX', ARGV[9])
end
acknowledge()
local promoted, text, sends, kept
if is_own then
  promoted, text, sends, kept = wake(lock, index, name, home, id)
elseif not held and how ~= 'behind' then
  promoted, text, sends, kept = wake(lock, index, name, home)
end
if not text and not call('ZSCORE', line, id) then
  return {ok = 'woken'}
end
local rank = call('ZRANK', line, id) or 0
if text then
  return with_promoted({'parked', rank}, promoted, text, sends, kept)
end
if is_free and how == 'behind' and ARGV[10] ~= '' then
  held = ARGV[10]
  call('SET', lock, held, 'PX', AHEAD)
  list(index, name, now, AHEAD)
end
if due > 0 then
  redis.pcall('ZADD', lines, 'LT', due, name)
end
local left = held and (permit and permit.ends_in(0) or call('PTTL', lock)) or LATEST
redis.pcall('ZADD', lines, 'NX', now + math.min(left < 0 and LATEST or left + 5, LATEST), name)
if ARGV[11] ~= '' then
  redis.pcall('ZADD', lines, 'LT', now + ARGV[11], name)
end
if lives then
  let_live({lines}, lives, is_first)
end
if held and permit then
  return {'parked', rank, 'held', unpack(permit.holders())}
end
if held then
  return {'parked', rank, 'held', 1, held, call('PTTL', lock)}
end
return {'parked', rank}
