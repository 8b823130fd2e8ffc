-- Shows a token to a fence; the highest floor seen never falls (I7).
-- KEYS[1]    the fence
-- ARGV[1]    nonce    ARGV[2] token    ARGV[3] floor
-- Reply      nonce, then 1 (admitted), or 2 and the highest floor seen (stale)
-- Invariant  Tokens do not fit a double, so they are compared as text.
local function below(a, b)
  if #a ~= #b then return #a < #b end
  return a < b
end
local highest = redis.call('GET', KEYS[1])
if highest and below(ARGV[2], highest) then return ARGV[1] .. ' 2 ' .. highest end
if not highest or below(highest, ARGV[3]) then redis.call('SET', KEYS[1], ARGV[3]) end
return ARGV[1] .. ' 1'
