-- Included where a hold takes over another.

-- Facts, with what those of the hold before tell of the call's arguments.
local function with_told(facts, before)
  local is_told = string.find(facts, ',"args":"', 1, true)
  local told = not is_told and string.match(before or '', '(,"args":".*)}$')
  return told and string.sub(facts, 1, -2) .. told .. '}' or facts
end
