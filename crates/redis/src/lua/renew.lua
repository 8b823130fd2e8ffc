-- Extends, lowers and detaches leases. Never shortens one and never revives an ended one (I11).
-- KEYS[2..]  the resource of each lease
-- ARGV[2..]  per lease: flags and id as in the line of its only holder, lease, units to lower to or '', '1' to detach
-- Reply      nonce, now, then per lease: 0 (held, for as long as asked), 1 remaining (held), 2 (gone), 3 (evicted)
-- Invariant  A lease held alone is extended by one SET; everything else goes through resource.lua.
local reply, at, lib = {ARGV[1], now_text}, 2, library()
local lease, life, expires
lib.without_memory()
for entry = 2, #KEYS do
  local key, alone, lower_to, detach = KEYS[entry], ARGV[at], ARGV[at + 2], ARGV[at + 3]
  if ARGV[at + 1] ~= lease then
    lease = ARGV[at + 1]
    life, expires = string.format('%d', math.ceil(lease / 1000) + 1), string.format('%016d', now_text + lease)
  end
  at = at + 4
  local line = lower_to == '' and detach == '0' and call('MGET', key)[1]
  local ends = line and string.sub(line, 37, 52)
  if line and string.sub(line, 54, 53 + #alone) == alone and ends > now_text and ends <= expires then
    call('SET', key, string.sub(line, 1, 36) .. expires .. string.sub(line, 53), 'PX', life)
    reply[#reply + 1] = '0'
  else
    reply[#reply + 1] = lib.renew(key, string.sub(alone, 6, -2), lease, lower_to, detach == '1')
  end
end
return table.concat(reply, ' ')
