-- Included where a lock may be free and yet not start anybody: so many starts in any span (`lock_rate`), or one
-- acceptance in a period (`lock_period`).
--
--   {N}:starts:SPAN  list of `ms token`, newest first: the last starts, by the server's clock. SPAN: ms. It lives for a
--                    span from the last start on. Above MOST_EXACT starts, `ms count`, of a hundredth of the span each
--
--   {N}:period       string `token NUL json` of who was accepted last, for as long as nobody else is
--
--   The facts of who starts, or is to, say `"rate":"N/SPAN"`, or two such words. Those of who waits, and is to be
--   accepted, say `"period":1`.
local MOST_EXACT, BUCKETS = 1000, 100
-- Milliseconds after which it is asked again where no time is known.
local LATER = 2000

-- The rates that facts say: a list of {number, span}.
local function rates_in(facts)
  local rates = {}
  local said = string.match(facts or '', '"rate":"([%d/ ]+)"')
  for number, span in string.gmatch(said or '', '(%d+)/(%d+)') do
    rates[#rates + 1] = {tonumber(number), tonumber(span)}
  end
  return rates
end

-- The clock was set back: what was noted later than now counts from now on, so that nobody waits for longer than a span.
local function set_back(starts, span, now)
  local all = redis.call('LRANGE', starts, 0, -1)
  for i, each in ipairs(all) do
    local at, more = string.match(each, '^(%d+)(.*)$')
    all[i] = string.format('%.0f', math.min(at, now)) .. more
  end
  -- pcall: who may only read sees what there is.
  if type(redis.pcall('DEL', starts)) == 'number' then
    redis.call('RPUSH', starts, unpack(all))
    redis.call('PEXPIRE', starts, math.ceil(span + span / BUCKETS))
  end
end

-- Milliseconds until one of these rates has had fewer starts than it may; 0: it has. And who started last.
local function closed_by(stem, number, span, pending, now)
  local starts = stem .. 'starts:' .. span
  local free = number - pending
  if free < 1 then
    -- Until one that is on its way has started, or its claim has ended: nobody tells when.
    return math.min(span, LATER), ''
  end
  local newest = redis.call('LINDEX', starts, 0)
  if newest and tonumber(string.match(newest, '^%d+')) > now then
    set_back(starts, span, now)
  end
  if number <= MOST_EXACT then
    local last = redis.call('LINDEX', starts, free - 1)
    local at = last and tonumber(string.match(last, '^%d+'))
    return at and math.max(0, math.min(at + span - now, span)) or 0, newest or ''
  end
  local taken = 0
  for _, each in ipairs(redis.call('LRANGE', starts, 0, -1)) do
    -- One of a token was noted when the rate was lower.
    local at, count = string.match(each, '^%d+'), string.match(each, '^%d+ (%d+)$') or 1
    -- Each counts until it is wholly out.
    local left = math.min(at + span / BUCKETS + span - now, span)
    taken = taken + (left > 0 and tonumber(count) or 0)
    if left > 0 and taken >= free then
      return math.ceil(left), ''
    end
  end
  return 0, ''
end

-- Milliseconds until who has these facts may be accepted; 0 for now, or where that is its own period.
local function period_of_another(stem, facts, id)
  local accepted = string.find(facts or '', '"period":1', 1, true) and redis.call('GET', stem .. 'period')
  if not accepted or string.find(accepted, '"message":"' .. id .. '"', 1, true) then
    return 0
  end
  return redis.call('PTTL', stem .. 'period')
end

-- Milliseconds until somebody with these facts may start; 0 for now. `pending`: how many are on their way to a start.
-- And who started last. `id`: of one that waits.
local function closed_for(stem, facts, pending, now, id)
  local longest, last = id and period_of_another(stem, facts, id) or 0, ''
  for _, rate in ipairs(rates_in(facts)) do
    local left, by = closed_by(stem, rate[1], rate[2], pending, now)
    if left > longest then
      longest, last = left, by
    end
  end
  return longest, last
end

-- Notes that somebody starts.
local function note_start(stem, facts, token, now)
  for _, rate in ipairs(rates_in(facts)) do
    local number, span = rate[1], rate[2]
    local starts = stem .. 'starts:' .. span
    local width = number > MOST_EXACT and span / BUCKETS
    local at, count = string.match(width and redis.call('LINDEX', starts, 0) or '', '^(%d+) (%d+)$')
    if at and now - at < width and tonumber(at) <= now then
      redis.call('LSET', starts, 0, at .. ' ' .. (count + 1))
    else
      redis.call('LPUSH', starts, string.format('%.0f ', now) .. (width and 1 or token))
      redis.call('LTRIM', starts, 0, width and BUCKETS + 1 or number - 1)
    end
    redis.call('PEXPIRE', starts, width and math.ceil(span + width) or span)
  end
end

-- The answer to who is refused by a rate; in the holder's place stands who started last.
local function refusal_by_rate(left, last, facts)
  local token = string.match(last, '^%d+ (.*)$') or 'rate'
  local task = string.match(facts, '"task":"[^"]*"')
  return {'refused', 'rate', 1, token .. '\0{"state":"rate"' .. (task and ',' .. task or '') .. '}', left}
end
