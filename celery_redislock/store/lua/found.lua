-- Included by line.lua: whether what was pushed is still there, in its queue or in a worker's hands.
--
-- Messages of a queue from the end that is served; the same where its claim is about to end. Bytes and messages that
-- are read one by one.
local NEAR, DEEP = 1000, 10000
local MOST_BYTES, MOST_READ = 65536, 100
-- How many this request has looked through; and after how many it goes on with nothing else: a millisecond.
local sought, MOST_SOUGHT = 0, 2000

-- Where what was pushed n times is: `queue`, `hand` or `restored`, in the front of its queue; `deep`, maybe further
-- behind, or `unknown` where that cannot be told; nil where it is nowhere. An error, as of an ACL, tells nothing.
local function found_in(to, text, facts, n, depth)
  local last, tag = tagged(text, n)
  local at = redis.pcall('LPOS', to, last, 'RANK', -1, 'MAXLEN', depth)
  local length = redis.pcall('LLEN', to)
  sought = sought + math.min(depth, tonumber(length) and length - (tonumber(at) or 0) or 0)
  if at then
    return type(at) == 'number' and 'queue' or 'unknown'
  end
  local in_hand = tag and redis.pcall('HEXISTS', string.match(facts, '"unacked":"([^"]*)"') or 'unacked', tag)
  if in_hand ~= 0 then
    return in_hand == 1 and 'hand' or 'unknown'
  end
  if type(length) ~= 'number' or length > depth then
    return type(length) == 'number' and 'deep' or 'unknown'
  end
  -- Restored, it has another text and the same tag.
  local bytes = 0
  for i = 1, MOST_READ do
    local one = redis.pcall('LINDEX', to, -i)
    if type(one) == 'table' then
      return 'unknown'
    end
    if not one or bytes > MOST_BYTES then
      break
    end
    bytes = bytes + #one
    if string.find(one, tag, 1, true) then
      return 'restored'
    end
  end
end
