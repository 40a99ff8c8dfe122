-- Look at one lock; changes nothing.
--
-- KEYS  1  lock     string `token NUL json`
--       2  period   string `token NUL json`
-- ARGV  1  decides  '1': something is decided by the answer, so a GETEX, which counts as a write, lets a replica
--                   refuse: it may know only a past holder
-- RETURNS {found, held, 1, value, pttl}
--         {found, period, 1, value, pttl}   it is free, but its period has not passed
--         free
for i = 1, 2 do
  local value = redis.call('GET', KEYS[i])
  if value then
    if ARGV[1] == '1' then
      redis.call('GETEX', KEYS[i])
    end
    return {'found', i == 1 and 'held' or 'period', 1, value, redis.call('PTTL', KEYS[i])}
  end
end
return {ok = 'free'}
