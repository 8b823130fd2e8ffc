-- Extends, lowers and detaches leases. Never shortens one and never revives an ended one (I11).
-- KEYS[3..]  the resource of each lease
-- ARGV[3..]  per lease: id, lease, units to lower to or '', '1' to detach
-- Reply      nonce, now, then per lease: 0 (held, for as long as asked), 1 remaining (held), 2 (gone), 3 (evicted)
-- Invariant  A lease held alone is extended by one SET; everything else goes through resource.lua.
local reply, lib, at = {ARGV[1], now_text}, nil, 3
local lease_text, life, expires
without_memory()
for entry = 3, #KEYS do
  local key, id, lower_to, detach = KEYS[entry], ARGV[at], ARGV[at + 2], ARGV[at + 3]
  if ARGV[at + 1] ~= lease_text then
    lease_text = ARGV[at + 1]
    life = string.format('%d', math.ceil(lease_text / 1000) + 2)
    expires = string.format('%016d', now + lease_text)
  end
  at = at + 4
  local line = lower_to == '' and detach == '0' and (entry == 3 and kept[3] or redis.call('MGET', key)[1])
  local ends = line and string.sub(line, 37, 52)
  if line and string.sub(line, 54, 59 + #id) == 'c--- ' .. id .. ' ' and ends > now_text and ends <= expires then
    redis.call('SET', key, string.sub(line, 1, 36) .. expires .. string.sub(line, 53), 'PX', life)
    reply[#reply + 1] = '0'
  else
    lib = lib or library()
    lib.append(reply, lib.renew(key, id, tonumber(lease_text), lower_to, detach == '1'))
  end
end
return finish(reply)
