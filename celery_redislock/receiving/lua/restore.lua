-- Move messages from kombu's unacknowledged ones to their queues, each only if it is there as it was found: a
-- restored message keeps its tag, and may be in the hands of another worker by now. Atomic, so that an idle
-- worker does not take the first before those that go before it.
--
-- KEYS  1  unacked  hash delivery tag -> JSON
--       2  index    sorted set delivery tag -> when it was received
--       more        lists: of each message, the queues it goes to
-- ARGV  1  push     'RPUSH': the front of a queue, workers take from the right; 'LPUSH': its end
--       more        of each message: tag, JSON as found, the number of its queues, JSON for each of them
-- RETURNS {tag, …}   of those that were moved
local call = redis.call
local at, key, moved = 2, 3, {}
while at < #ARGV do
  local tag, found, queues = ARGV[at], ARGV[at + 1], tonumber(ARGV[at + 2])
  local is_there = queues > 0 and call('HGET', KEYS[1], tag) == found
  for i = 1, queues do
    if is_there then
      call(ARGV[1], KEYS[key], ARGV[at + 2 + i])
    end
    key = key + 1
  end
  -- After the push: a queue's key of the wrong type, or a full server, ends the script.
  if is_there then
    call('HDEL', KEYS[1], tag)
    call('ZREM', KEYS[2], tag)
    moved[#moved + 1] = tag
  end
  at = at + 3 + queues
end
return moved
