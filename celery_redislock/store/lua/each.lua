-- Included by the scripts of several locks: does for each of them, in order, what the script does that is named
-- first, and stops where `is_enough` says so. Atomic.
--
-- KEYS  those of the first lock, then those of the second, ...
-- ARGV  1     count of locks
--       then  those of the first lock, then those of the second, ...
-- RETURNS {joined, n, n fields of the first one's answer, n, n fields of the second's, ...}
local count = tonumber(table.remove(ARGV, 1))

local function of(all, i)
  local size = #all / count
  return {unpack(all, (i - 1) * size + 1, i * size)}
end

local function each(one, is_enough)
  local fields = {'joined'}
  for i = 1, count do
    local answer = one(of(KEYS, i), of(ARGV, i))
    local words = {}
    for word in string.gmatch(answer.ok or '', '%S+') do
      words[#words + 1] = word
    end
    answer = answer.ok and words or answer
    fields[#fields + 1] = #answer
    for _, field in ipairs(answer) do
      fields[#fields + 1] = field
    end
    if is_enough and is_enough(answer[1], i) then
      break
    end
  end
  return fields
end
