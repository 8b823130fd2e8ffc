-- Extends, lowers and detaches leases. Never shortens one and never revives an ended one (I11).
-- KEYS[3..]  the resource of each lease
-- ARGV[3..]  per lease: id, lease, units to lower to or '', '1' to detach
-- Reply      nonce, now, then per lease: 1 remaining (held), 2 0 (gone), 3 0 (evicted)
local reply, lib, at = {ARGV[1], now}, library(), 3
for entry = 3, #KEYS do
  local n = #reply
  reply[n + 1], reply[n + 2] =
    lib.renew(KEYS[entry], ARGV[at], tonumber(ARGV[at + 1]), ARGV[at + 2], ARGV[at + 3] == '1')
  at = at + 4
end
return finish(reply)
