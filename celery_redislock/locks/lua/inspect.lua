-- Look at one lock; changes nothing.
--
-- KEYS  1  lock     string `token NUL json`
--       2  period   string `token NUL json`
-- ARGV  1  whether something is decided by the answer: then what is found is touched by a GETEX, which counts
--          as a write, so that a replica, which may know only what is long past, refuses
-- RETURNS {value, pttl, 0}   held
--         {value, pttl, 1}   free, but its period has not passed
--         {}                 free
for i = 1, 2 do
  local value = redis.call('GET', KEYS[i])
  if value then
    if ARGV[1] == '1' then
      redis.call('GETEX', KEYS[i])
    end
    return {value, redis.call('PTTL', KEYS[i]), i - 1}
  end
end
return {}
