-- Extend many holds to a full ttl each, in one call. Never creates a lock, never adds to a ttl. Atomic.
--
-- KEYS  1 .. n  lock   one per hold; where several may hold it, a permit is renewed (permits.lua)
--       n + 1   index  sorted set name -> expiry (ms, server clock)
-- ARGV  1 .. 3n        per hold: token, ttl (ms), name
-- RETURNS one integer per hold: 1 renewed; 0 missing; -1 not ours: another token, or no lock at all
--
-- pcall where a key may be of another type: one broken key must not cost the other holds their renewal.
-- Where nothing is renewed, a GETEX: it changes nothing but counts as a write, so that a replica, which may
-- not have heard of these holds yet, fails instead of saying that they are gone.
include('index')
local permits
include('permits')
local count = #ARGV / 3
local index = KEYS[count + 1]
local answers = {}
local now = now_ms()
local longest = 0
local renewed, gone = false, nil
-- An index without an end, or of another type, is somebody else's key, and is not given one.
local left = call('PTTL', index)
for i = 1, count do
  local token, ttl, name = ARGV[3 * i - 2], tonumber(ARGV[3 * i - 1]), ARGV[3 * i]
  local value = redis.pcall('GET', KEYS[i])
  if not value then
    answers[i] = 0
    gone = KEYS[i]
    if left ~= -1 then
      redis.pcall('ZREM', index, name)
    end
  elseif type(value) == 'table' then
    answers[i] = -1
  elseif string.sub(value, 1, #token + 1) ~= token .. '\0' then
    answers[i] = -1
    if is_marker(value) then
      local is_well, permit = pcall(permits, KEYS[i], index, name, value)
      answers[i] = is_well and permit and (permit.renew(token, ttl) and 1 or 0) or -1
    end
    if answers[i] == 1 then
      renewed = true
    else
      gone = KEYS[i]
    end
  else
    call('PEXPIRE', KEYS[i], ttl)
    if left ~= -1 and type(redis.pcall('ZADD', index, now + ttl, name)) == 'number' then
      longest = math.max(longest, ttl)
    end
    answers[i] = 1
    renewed = true
  end
end
if gone and not renewed then
  call('GETEX', gone)
end
if longest > left and longest > 0 then
  call('PEXPIRE', index, 2 * longest)
end
return answers
