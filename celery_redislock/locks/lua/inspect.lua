-- Look at one lock. Reads only.
--
-- KEYS  1  lock     string `token NUL json`
--       2  window   string `token NUL json`
-- RETURNS {value, pttl, 0}   held
--         {value, pttl, 1}   free, but its window has not passed
--         {}                 free
for i = 1, 2 do
  local value = redis.call('GET', KEYS[i])
  if value then
    return {value, redis.call('PTTL', KEYS[i]), i - 1}
  end
end
return {}
