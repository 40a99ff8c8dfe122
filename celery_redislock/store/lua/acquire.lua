-- Take the exclusive hold on one lock, keep it, or take it over from a named token. Atomic.
--
-- KEYS  1  lock     string `token NUL json`: the hold that this script grants
--       2  index    sorted set name -> expiry (ms, server clock), `name NUL period` for a period's
--       3  mark     string `ending`, or `1` for done, of the message this hold is for; absent: not looked at
--       4  period   string `token NUL json`: the last acceptance, while lock_period runs; absent: no period
--       5  fence    the strict fence's last number; absent: time fences
-- ARGV  1  value    of the new hold: `token NUL json`
--       2  ttl      ms
--       3  name     of the lock, the index member
--       4  from     `token NUL` this hold may be taken over from; '' for none. Absent, with all that follows:
--                   only a free lock is taken
--       5  starts   '1': a run starts with this hold, so a lack of memory does not refuse it
--       6  period   ms until another one may be accepted; 0 for no period
--       7  strict   ms the strict fence key outlives this acquire
--       8  limit    of holders, where several may hold it (permits.lua); absent: one
-- RETURNS granted fence                          the lock was free; fence 0 above a limit of 1 and beside others
--         taken_over fence                       from the token `from`
--         sent_again fence                       likewise, and its message was sent more than once (sent.lua)
--         repeated fence                         held under this token already: the request was repeated
--         {refused, held, n, value, pttl, ...}   by the holder; pttl is -1 for a foreign lock without a ttl. Behind
--                                each refusal of a call that coalesces: number, its microseconds (merge.lua)
--         {refused, period, 1, value, pttl}      by the period
--         {refused, rate, 1, value, pttl}        by the rate that its facts say, for pttl; value: of who started last
--         {refused, line, 1, value, pttl}        there is room for the first in its line, whom another home serves,
--                                                or who waits for other locks as well
--         ending pttl                            by the message's mark: its run is ending
--         done pttl                              by the message's mark: nothing is left to do
include('index')
-- Milliseconds: the longest time until somebody looks at a line again whose holder has just started.
local LATEST = 2000
-- What the facts of a task say whose duplicates coalesce.
local COALESCES = '"on_conflict":"coalesce"'
local lock, index, mark, period, fence_key = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local value, ttl, name, from, starts = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5] == '1'
local limit, held, ours, taken, was_in_line, opens_period, permit, copy = ARGV[8]

local has_rate = string.find(value, '"rate":"', 1, true)

local function is_ours(found)
  return string.find(found, string.match(value, '^[^%z]*') .. '\0', 1, true) == 1
end

-- nil where one holds it alone.
local function permits_now()
  local permits
include('permits')
  return permits(lock, index, name, held)
end

-- A call that coalesces is told when it was made: of two that were refused the newer one counts.
-- It is noted what happened, when nothing of this script can fail any more. Not where that would be waited for (WAIT).
local function noted(answer)
  if answer[1] == 'refused' and string.find(value, COALESCES, 1, true) then
    local time = call('TIME')
    append(answer, {'number', string.format('%.0f', time[1] * 1000000 + time[2])})
  end
  if answer[1] == 'refused' and not string.find(value, '"confirmed":1', 1, true) then
include('refusal')
    note_refusal(lock, index, name, value, answer[4])
  end
  return answer
end

local function refused()
  local several = (permit or is_marker(held)) and (permit or permits_now()).holders(copy) or {0}
  if several[1] == 0 then
    -- Nobody holds it where fewer may than one asks for.
    several = {1, held or 'limit', held and call('PTTL', lock) or 1000}
  end
  return {'refused', 'held', unpack(several)}
end

-- Nobody goes before who waits in line: not where a hold has expired, and not where the first one is also in the
-- line of another lock that is held.
local function first_in_line()
  local stem = string.sub(lock, 1, -5)
  local line = stem .. 'line'
  if call('EXISTS', line, stem .. 'sent') == 0 then
    return
  end
include('line')
  wake(lock, index, name, '')
  held = call('GET', lock)
  return not held and first_due(stem, now_ms())
end

local function behind(first)
  return {'refused', 'line', 1, first .. '\0{"state":"queued","published":true}', 1000}
end

if not from then
  local first = first_in_line()
  if first then
    return noted(behind(first))
  end
  if has_rate and call('EXISTS', lock) == 0 then
include('rate')
    local left, last = closed_for(stem_of(lock), value, 0, now_ms())
    if left > 0 then
      return noted(refusal_by_rate(left, last, value))
    end
  end
  -- A write: a replica refuses it, as it may know only a past holder, and so does a server short of memory.
  if not call('SET', lock, value, 'NX', 'PX', ttl) then
    held = call('GET', lock)
    ours = is_ours(held)
    if not ours then
      return noted(refused())
    end
    call('PEXPIRE', lock, ttl)
  end
else
  -- GETEX changes nothing here, but counts as a write: a replica fails at it, and a lack of memory does not
  -- stop a script any more that has written. So it comes first where a run starts, and else last.
  -- Every read comes before the first change: a key of the wrong type refuses the whole, not a part of it.
  held = call(starts and 'GETEX' or 'GET', lock)
  taken = held and from ~= '' and string.find(held, from, 1, true) == 1
  -- Handed to a message that has waited in line, a claim is no acceptance: its period counts, and begins.
  was_in_line = taken and string.find(held, '"line":1', 1, true)
  ours = held and not taken and is_ours(held)
  -- Also where the caller knows no limit: its publisher may have been deployed first.
  if not taken and not ours and (limit or is_marker(held)) then
    permit = permits_now()
  end
  local is_full = held
  local first
  if permit then
    ours = permit.facts_of(string.match(value, '^[^%z]*'))
    taken = not ours and permit.facts_of(string.sub(from, 1, -2))
    was_in_line = taken and string.find(taken, '"line":1', 1, true)
    copy = not taken and not ours and permit.copy_of(string.match(value, '^[^%z]*'))
    is_full = copy or permit.room(limit) < permit.weight_in(value)
  end
  local is_new = not taken and not ours
  if is_new and not is_full and (starts or permit) then
    local line, sent = stem_of(lock) .. 'line', stem_of(lock) .. 'sent'
    if held then
      first = permit.first_in(line)
    elseif call('EXISTS', line, sent) > 0 then
include('sent')
      for _, id in ipairs(call('ZRANGE', sent, 0, -1)) do
        bring_back(stem_of(lock), name, id)
      end
      first = first_due(stem_of(lock), now_ms())
    end
    if first and first .. '\0' == from then
      first = nil -- its hand-off has ended, and it is the first
      was_in_line = true
    end
  elseif is_new and not is_full then
    first = first_in_line()
    is_full = held
  end
  local closed, by_time = 0
  if has_rate and (is_new and not is_full or taken and starts) then
include('rate')
    local last
    local pending = permit and permit.pending(string.sub(from, 1, -2)) or 0
    closed, last = closed_for(stem_of(lock), value, pending, now_ms())
    by_time = refusal_by_rate(closed, last, value)
  elseif (is_new and not is_full or was_in_line) and period and ARGV[6] ~= '0' then
    local accepted = call('GET', period)
    opens_period = not accepted
    if accepted and not is_ours(accepted) and not (from ~= '' and string.find(accepted, from, 1, true) == 1) then
      closed = math.max(call('PTTL', period), 1)
      by_time = {'refused', 'period', 1, accepted, closed}
    end
  end
  -- The mark comes first: a copy of a message that has run takes nothing, not even its own claim.
  local state = mark and not ours and call('GET', mark)
  local answer
  if state then
    answer = {ok = (state == '1' and 'done ' or 'ending ') .. call('PTTL', mark)}
  elseif is_new and is_full then
    answer = refused()
  elseif permit and taken and starts and not permit.may_run(string.sub(from, 1, -2), limit) then
    -- Its place was granted under another limit. It has none from now on, and waits as any other.
    local token = string.sub(from, 1, -2)
include('sent')
    permit.drop(token)
    bring_back(stem_of(lock), name, token)
    answer = refused()
  elseif first then
    answer = behind(first)
  elseif closed > 0 and taken then
    -- It has no place in the rate yet, or another one was accepted, and it waits. What waits for a time keeps none.
    local token = string.sub(from, 1, -2)
include('sent')
    if permit then
      permit.drop(token)
    else
      call('DEL', lock)
      redis.pcall('ZREM', index, name)
    end
    bring_back(stem_of(lock), name, token)
    look_by(index, name, stem_of(lock), now_ms() + closed)
    answer = by_time
  elseif closed > 0 then
    answer = by_time
  end
  if answer then
    call('GETEX', lock)
    if state then
include('entry')
      -- It does not go on: its turn is over.
      take_out(stem_of(lock), string.sub(from, 1, -2))
    end
    return noted(answer)
  end
end

if has_rate and starts and not ours then
include('rate')
  note_start(stem_of(lock), value, string.match(value, '^[^%z]*'), now_ms())
end
local time = call('TIME')
local fence = time[1] * 1000000 + time[2]
local word = taken and 'taken_over' or ours and 'repeated' or 'granted'
local now = math.floor(fence / 1000)
local is_listed
if fence_key then
  fence = math.max(fence, (tonumber(call('GET', fence_key) or '0') or 0) + 1)
end
if was_in_line then
include('sent')
  local token = string.sub(from, 1, -2)
  local noted_in = noted_at(stem_of(lock), name, string.match(value, '%z(.*)$'))
  -- One that is in line yet is being sent now.
  local is_given = call('ZREM', stem_of(lock) .. 'line', token)
  word = note_of(noted_in, token, 'sent') + is_given > 1 and 'sent_again' or word
  take_out(stem_of(lock), token)
  look_by(index, name, stem_of(lock))
end
local claim = taken and (permit and taken or held)
if claim then
include('told')
  value = with_told(value, claim)
end
if taken and starts and now - (string.match(claim, '"since":(%d+)') or 0) * 1000 > 4 * LATEST then
  -- Whoever waits for it may have been looked at seldom, as its claim was old.
  redis.pcall('ZADD', beside(index, 'lines'), 'XX', 'LT', math.floor(fence / 1000) + LATEST, name)
end
if from then
  if held and not starts then
    call('GETEX', lock)
  end
  if permit then
    local token, facts = string.match(value, '^([^%z]*)%z(.*)$')
    is_listed = permit.grant(token, facts, ttl, taken and string.sub(from, 1, -2))
    -- Also for one that knows of no limit: where one is set, another may be admitted beside it.
    local room, most = permit.room(limit or 1)
    fence = most == 1 and room == 0 and fence or nil
  else
    call('SET', lock, value, 'PX', ttl)
  end
  if opens_period then
    call('SET', period, value, 'PX', ARGV[6])
  end
  if fence_key and fence then
    call('SET', fence_key, string.format('%.0f', fence), 'PX', ARGV[7])
  end
end
-- A lease that took over a claim is listed already, for as long as the claim would have lived.
if not taken and (is_listed or not permit and list(index, name, now, tonumber(ttl))) then
  if opens_period then
    -- An entry of its own: the hold's is moved by renewals and taken off by the release.
    list(index, name .. '\0period', now, tonumber(ARGV[6]))
  end
  tidy(index, now, time)
end
if ours then
  -- Noted when it was granted.
elseif not string.find(value, '"state":"running"', 1, true) then
  if not claim then
include('history')
    tally(index, task_in(value, name), 'accepted')
    if string.find(value, COALESCES, 1, true) then
include('merge')
      note_newest(stem_of(lock), task_in(value, name), string.match(value, '^[^%z]*'), now_us())
    end
  end
elseif claim and string.find(claim, '"timed":1', 1, true) then
include('history')
  clock_up(index, task_in(value, name), 'wait', claim)
end
return {ok = string.format('%s %.0f', word, fence or 0)}
