-- The server's clock, and some of its keys, of all prefixes. Reads only. The keys are for a check: not for a Cluster.
--
-- KEYS  none; or a lock's, by which a Cluster tells which node is asked
-- ARGV  1  cursor   '0' to begin; '' for no keys
--       2  pattern  of the keys
--       3  endless  '1': only those without a time to live; else absent, or ''
-- RETURNS {seconds, microseconds, cursor, key, ...}   cursor: '0' at the end; about a thousand are looked at
local time = redis.call('TIME')
if ARGV[1] == '' then
  return {time[1], time[2], '0'}
end
local found = redis.call('SCAN', ARGV[1], 'MATCH', ARGV[2], 'COUNT', 1000)
local keys = {}
for _, key in ipairs(found[2]) do
  if ARGV[3] ~= '1' or redis.call('PTTL', key) == -1 then
    keys[#keys + 1] = key
  end
end
return {time[1], time[2], found[1], unpack(keys)}
