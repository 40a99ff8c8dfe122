-- Send what waits on its way without its lock, in order: at most so many entries. Atomic. For an app that takes
-- no locks any more, and for operators.
--
-- KEYS  1  lines  sorted set name -> when to look next (ms, server clock)
-- ARGV  1  start  of a lock's keys, up to its name
--       2  home   of the caller; '' for none
--       3  most   entries that leave, or are given, and of each line those that are looked at
--       4  name   of the one lock whose line is meant; '' for all lines
--       5 ..      ids of the entries of that one that are meant; absent: all
-- RETURNS {drained, count, promoted, n, name, id, text, ...}   count: entries that left for their queue, or whose
--         process was told; the caller publishes the others, which stay in line until that is settled
local call = redis.call
include('keys')
include('sent')
local lines, start, home, left, only = KEYS[1], ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4]
local count, given = 0, {}
for _, name in ipairs(only ~= '' and {only} or call('ZRANGE', lines, 0, left - 1)) do
  local stem = stem_at(start, name)
  local line = stem .. 'line'
  -- pcall: one key's trouble stays with that key.
  local ids = ARGV[5] and {unpack(ARGV, 5)} or left > 0 and redis.pcall('ZRANGE', line, 0, left - 1) or {}
  for _, id in ipairs(ids) do
    -- Not one that was handed the lock: it is on its way.
    local entry = type(redis.pcall('ZSCORE', line, id)) == 'string' and redis.pcall('HGET', stem .. 'parked', id)
    local kind, to, ttl, facts, text = read(entry)
    -- The note keeps another process from publishing it meanwhile.
    if kind == 'give' and is_home(home, to) and call('SET', stem .. 'note:' .. id, '', 'NX', 'PX', ttl) then
      left = left - 1
      append(given, {name, id, text})
    elseif kind and kind ~= 'give' then
      left = left - 1
      -- The end of the queue, behind those that left before.
      -- A process that waits for its bell finds its entry gone, and asks again.
      local pushed = kind == 'push' and redis.pcall('LPUSH', to, next_text(stem, name, id, facts, text))
      if type(pushed) ~= 'table' then
        take_out_of_all(stem, name, id, facts)
        count = count + 1
      end
    end
  end
  if call('EXISTS', line, stem .. 'sent') == 0 then
    redis.pcall('ZREM', lines, name)
  elseif call('EXISTS', line) == 0 then
    redis.pcall('ZADD', lines, 'GT', now_ms() + 2000, name)
  end
end
return append({'drained', count, 'promoted', #given / 3}, given)
