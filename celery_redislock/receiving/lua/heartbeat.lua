-- Renew the name of a worker, and take the names that have lapsed to restore what their workers had in hand.
-- Atomic. A name that somebody has taken is not renewed: its worker needs another one.
--
-- Names are taken only by a worker whose own name was renewed in time until now, by this clock: where the broker
-- itself was away, all names have lapsed, and the workers that live are about to renew theirs.
--
-- KEYS  1  workers  sorted set name -> when it lapses (ms, server clock)
--       2  taken    sorted set name -> when it is given to the next worker that asks (ms)
--       3  bearers  hash name -> JSON about its worker
-- ARGV  1  name
--       2  bearer   JSON for a new name, '' for one that must be there
--       3  ttl      ms the name lives
--       4  late     ms: who has less than these left of it renews late
--       5  again    ms until a taken name is given to the next one; '' to take none
--       6  kept     ms all of this is kept
-- RETURNS {'renewed', name, bearer, …}   with up to ten names that were taken
--         {'late'}   renewed, and too late to take names
--         {'taken'}  not renewed: the name is gone
local workers, taken, bearers = KEYS[1], KEYS[2], KEYS[3]
local name, bearer, ttl, late, again, kept = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6]
local call = redis.call
local time = call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

local lapses = call('ZSCORE', workers, name)
if bearer ~= '' then
  call('HSET', bearers, name, bearer)
elseif not lapses then
  return {'taken'}
end
call('ZADD', workers, now + ttl, name)
for _, key in ipairs(KEYS) do
  call('PEXPIRE', key, kept)
end
if lapses and lapses - now < tonumber(late) then
  return {'late'}
end
local answer = {'renewed'}
if again == '' then
  return answer
end
for _, lapsed in ipairs(call('ZRANGEBYSCORE', workers, '-inf', now, 'LIMIT', 0, 10)) do
  call('ZREM', workers, lapsed)
  call('ZADD', taken, now, lapsed)
end
for _, gone in ipairs(call('ZRANGEBYSCORE', taken, '-inf', now, 'LIMIT', 0, 10)) do
  call('ZADD', taken, now + again, gone)
  answer[#answer + 1] = gone
  answer[#answer + 1] = call('HGET', bearers, gone) or ''
end
call('PEXPIRE', taken, kept)
return answer
