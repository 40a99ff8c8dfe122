-- The shared states of entries, and their pauses. Reads only, so that a replica answers too.
--
-- KEYS  strings; one of another type counts as missing
-- RETURNS {now, value, …}: the server's clock in ms, and each value, '' where there is none
local time = redis.call('TIME')
local values = {string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000))}
for _, key in ipairs(KEYS) do
  local found = redis.pcall('GET', key)
  values[#values + 1] = type(found) == 'string' and found or ''
end
return values
