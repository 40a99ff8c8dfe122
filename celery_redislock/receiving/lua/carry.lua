-- Write the new name of a worker into the messages that it still runs, in kombu's hash of unacknowledged ones.
-- One that bears another name, or is not there, is left alone. Atomic: a pool's thread may acknowledge one.
--
-- KEYS  1  unacked  hash delivery tag -> JSON
-- ARGV  1  former   the name as it begins in JSON, with its quote
--       2  name     the new one, as that
--       more        tags
-- RETURNS nothing
for i = 3, #ARGV do
  local text = redis.call('HGET', KEYS[1], ARGV[i])
  local from, to = string.find(text or '', ARGV[1], 1, true)
  if from then
    redis.call('HSET', KEYS[1], ARGV[i], string.sub(text, 1, from - 1) .. ARGV[2] .. string.sub(text, to + 1))
  end
end
