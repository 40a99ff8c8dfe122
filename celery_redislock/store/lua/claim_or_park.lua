-- Publish a message that waits where its claim is refused. Take the claim and put the message into its queue, as
-- claim_and_push.lua does; where somebody holds the lock, or waits for it, put the message into the line of the
-- lock. Atomic; repeating it publishes once.
--
-- The KEYS and ARGV of claim_and_push.lua come before these:
--
-- KEYS  last  as there
-- ARGV  last but ten     header   a piece of the message, which is there once
--       last but nine    unclaimed  what is there instead in a message that has no claim
--       last but eight   parked     likewise in one that waits in line
--       last but seven  facts      json, of the claim that it is handed in its turn
--       last but six    band       of its priority: 0 is served first
--       last but five   most       entries there may be
--       last but four   within     ms until it goes without the lock if it is in line then; '' for ever
--       last but three  hand_off   ms the claim lives that it is handed in its turn
--       last but two    named      `task id NUL token`, as they are spelled in the message: it takes the place of the
--                                  one of its task that waits (merge.lua), if there is one; '': it does not
--       last but one    pause      ms without another such call until it is due; 0: it is at once
--       last            longest    ms from the first such call on after which it is; 0: however long they come
-- RETURNS as claim_and_push.lua, but for refusals
--         repeated                              published before, or in line: the request was repeated
--         {merged, n, value}                    it has taken the place of this one, `id NUL facts`, whose id it has
--                                               now; n: how many calls have
--         {parked, place}                       it waits until it is due
--         {parked, place, held, 1, value, pttl}     it waits for this holder; place: how many are before it
--         {parked, place, line, 1, value, pttl}     it waits for the first in line, whom only another home can serve
--         {unclaimed, 0, period, 1, value, pttl}    pushed without a claim, because of the period
--         {unclaimed, 0, held, 1, value, pttl}, ...   likewise, because the line is full, or another program's
include('line')
include('place')
include('history')
include('merge')
local longest, pause, named = tonumber(table.remove(ARGV)), tonumber(table.remove(ARGV)), table.remove(ARGV)
local hand_off, within = table.remove(ARGV), table.remove(ARGV)
local most, band, facts = tonumber(table.remove(ARGV)), table.remove(ARGV), table.remove(ARGV)
local of_parked, unclaimed, header = table.remove(ARGV), table.remove(ARGV), table.remove(ARGV)
local lock, index, note, queue = KEYS[1], KEYS[2], KEYS[#KEYS - 1], KEYS[#KEYS]
local ttl, name, keep, message = ARGV[2], ARGV[3], ARGV[#ARGV - 1], ARGV[#ARGV]
local id = string.match(ARGV[1], '^[^%z]*')
local stem = stem_of(lock)
local line, parked, lines = stem .. 'line', stem .. 'parked', beside(index, 'lines')

local function claim_and_push()
include('claim_and_push')
end

local merged_before, its_value = string.match(call('GET', note) or '', '^(%d+)%z(.*)$')
if its_value then
  return {'merged', tonumber(merged_before), its_value}
end
-- Where there is no note it changes nothing, but a replica refuses it, and a server that is out of memory.
local is_noted = call('SET', note, '', 'XX', 'PX', keep)
-- pcall: one key's trouble stays with that key.
local is_parked = redis.pcall('HEXISTS', parked, id)
if is_noted or is_parked == 1 then
  return {ok = 'repeated'}
end
local task, now = task_in(facts, name), now_ms()
local length = redis.pcall('ZCARD', line)
local has_line = type(length) == 'number' and is_parked == 0
local answer
local held = redis.pcall('GET', lock)
local is_open = not held or type(held) == 'string' and is_marker(held)
if has_line and is_open and (length > 0 or call('EXISTS', stem .. 'sent') == 1) then
  wake(lock, index, name, '') -- a hold has expired: who waits goes first
  length = call('ZCARD', line)
  if length > 0 and call('EXISTS', lock) == 0 then
    local first = first_due(stem, now)
    answer = first and {'refused', 'line', 1, first .. '\0{"state":"queued","published":true}', 1000}
  end
end
local from, to = string.find(message, header, 1, true)

local IGNORED = '"ignored":true'
-- Its arguments take the place of those of the one of its task that waits. Returns nothing where there is none.
local function merge()
  local waiting, _, task_id, token = waiting_of(stem, task)
  local kind, _, _, its_facts, its_text = read(waiting and call('HGET', parked, waiting))
  -- Somebody waits for its result, and this call's message would store none.
  local loses_result = string.find(facts, IGNORED, 1, true) and not string.find(its_facts or '', IGNORED, 1, true)
  if kind ~= 'push' or loses_result then
    return
  end
  local own_id, own_token = string.match(named, '^([^%z]*)%z(.*)$')
  -- It has waited since the first call.
  local since = string.match(its_text, ',\\"l\\":[%d.]+') or ''
  local its_header = renamed(string.gsub(of_parked, ',\\"l\\":[%d.]+', since, 1), own_token, token)
  local text = string.sub(message, 1, from - 1) .. its_header .. string.sub(message, to + 1)
  local timed, due, merged = with_times(facts, now, pause, longest, its_facts)
  local entry = {'push', queue, hand_off, timed, renamed(text, own_id, task_id)}
  local value = waiting .. '\0' .. timed
  call('SET', note, merged .. '\0' .. value, 'PX', keep)
  call('HSET', parked, waiting, table.concat(entry, '\0'))
  let_merge(stem, task, waiting, now_us(), task_id .. '\0' .. token)
  tally(index, task, 'merged')
  if due > 0 then
    redis.pcall('ZADD', lines, 'LT', due, name)
  elseif call('EXISTS', lock) == 0 then
    wake(lock, index, name, '') -- until now it was not due
  end
  return {'merged', merged, value}
end

local is_merged = named ~= '' and has_line and merge()
if is_merged then
  return is_merged
end
local is_put_off = pause > 0 and has_line and length < most
answer = answer or is_put_off and {'refused'} or claim_and_push()
if answer[1] ~= 'refused' then
  return answer
end
local waits = has_line and answer[2] ~= 'period' and length < most
-- Of a call that coalesces, its number stands behind them.
local holders = {unpack(answer, 2, answer[3] and 3 + 2 * answer[3])}
local text = string.sub(message, 1, from - 1) .. (waits and of_parked or unclaimed) .. string.sub(message, to + 1)
if waits then
  call('SET', note, '', 'PX', keep)
  tally(index, task, 'waited')
  local due = 0
  if named ~= '' then
    facts, due = with_times(facts, now, pause, longest)
    let_merge(stem, task, id, now_us(), named)
  end
  put(stem, id, table.concat({'push', queue, hand_off, facts, text}, '\0'), band, 'last')
  let_live({line, parked, stem .. 'until', lines})
  local left = call('PTTL', lock)
  local opens = answer[2] == 'rate' and answer[5] or LATEST
  local latest = left < 0 and math.min(opens, LATEST) or math.min(left + 5, LATEST)
  if due > 0 then
    redis.pcall('ZADD', lines, 'LT', due, name)
  end
  redis.pcall('ZADD', lines, answer[2] == 'rate' and 'LT' or 'NX', now + latest, name)
  if within ~= '' then
    call('ZADD', stem .. 'until', now + within, id)
    redis.pcall('ZADD', lines, 'LT', now + within, name)
  end
  return {'parked', call('ZRANK', line, id), unpack(holders)}
end
local pushed = redis.pcall('LPUSH', queue, text)
if type(pushed) ~= 'number' then
  return pushed
end
call('SET', note, '', 'PX', keep)
return {'unclaimed', 0, unpack(holders)}
