-- Turn one token's holds on several locks into another's (hand_on.lua). Atomic; repeating it is harmless.
--
-- KEYS     as each.lua has them
-- ARGV     likewise
-- RETURNS  likewise
include('each')
return each(function(KEYS, ARGV)
include('hand_on')
end)
