-- Release the holds on several locks (release.lua). Atomic; repeating it is harmless.
--
-- KEYS     as each.lua has them
-- ARGV     likewise
-- RETURNS  likewise
include('each')
return each(function(KEYS, ARGV)
include('release')
end)
