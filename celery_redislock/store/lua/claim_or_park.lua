-- Publish a message that waits where its claim is refused. Take the claim and put the message into its queue, as
-- claim_and_push.lua does; where somebody holds the lock, or waits for it, put the message into the line of the
-- lock. Atomic; repeating it publishes once.
--
-- The KEYS and ARGV of claim_and_push.lua come before these:
--
-- KEYS  last  as there
-- ARGV  last but seven  header     a piece of the message, which is there once
--       last but six    unclaimed  what is there instead in a message that has no claim
--       last but five   parked     likewise in one that waits in line
--       last but four   facts      json, of the claim that it is handed in its turn
--       last but three  band       of its priority: 0 is served first
--       last but two    most       entries there may be
--       last but one    within     ms until it goes without the lock if it is in line then; '' for ever
--       last            hand_off   ms the claim lives that it is handed in its turn
-- RETURNS as claim_and_push.lua, but for refusals
--         repeated                              published before, or in line: the request was repeated
--         {parked, place, held, 1, value, pttl}     it waits for this holder; place: how many are before it
--         {parked, place, line, 1, value, pttl}     it waits for the first in line, whom only another home can serve
--         {unclaimed, 0, period, 1, value, pttl}    pushed without a claim, because of the period
--         {unclaimed, 0, held, 1, value, pttl}, ...   likewise, because the line is full, or another program's
include('line')
include('place')
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

-- Where there is no note it changes nothing, but a replica refuses it, and a server that is out of memory.
local is_noted = call('SET', note, '', 'XX', 'PX', keep)
-- pcall: one key's trouble stays with that key.
local is_parked = redis.pcall('HEXISTS', parked, id)
if is_noted or is_parked == 1 then
  return {ok = 'repeated'}
end
local length = redis.pcall('ZCARD', line)
local has_line = type(length) == 'number' and is_parked == 0
local answer
local held = redis.pcall('GET', lock)
local is_open = not held or type(held) == 'string' and is_marker(held)
if has_line and is_open and (length > 0 or call('EXISTS', stem .. 'sent') == 1) then
  wake(lock, index, name, '') -- a hold has expired: who waits goes first
  length = call('ZCARD', line)
  if length > 0 and call('EXISTS', lock) == 0 then
    local first = call('ZRANGE', line, 0, 0)[1]
    answer = {'refused', 'line', 1, first .. '\0{"state":"queued","published":true}', 1000}
  end
end
answer = answer or claim_and_push()
if answer[1] ~= 'refused' then
  return answer
end
local waits = has_line and answer[2] ~= 'period' and length < most
local from, to = string.find(message, header, 1, true)
local text = string.sub(message, 1, from - 1) .. (waits and of_parked or unclaimed) .. string.sub(message, to + 1)
if waits then
  call('SET', note, '', 'PX', keep)
include('history')
  tally(index, task_in(facts, name), 'waited')
  put(stem, id, table.concat({'push', queue, hand_off, facts, text}, '\0'), band, 'last')
  let_live({line, parked, stem .. 'until', lines})
  local left = call('PTTL', lock)
  local now = now_ms()
  redis.pcall('ZADD', lines, 'NX', now + math.min(left < 0 and LATEST or left + 5, LATEST), name)
  if within ~= '' then
    call('ZADD', stem .. 'until', now + within, id)
    redis.pcall('ZADD', lines, 'LT', now + within, name)
  end
  return {'parked', call('ZRANK', line, id), unpack(answer, 2)}
end
local pushed = redis.pcall('LPUSH', queue, text)
if type(pushed) ~= 'number' then
  return pushed
end
call('SET', note, '', 'PX', keep)
return {'unclaimed', 0, unpack(answer, 2)}
