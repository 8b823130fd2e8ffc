-- Extends, lowers and detaches leases. Never shortens one and never revives an ended one (I11).
-- KEYS[2..]  the resource of each lease
-- ARGV[2]    the first lease
-- ARGV[3..]  per entry: flags and id as in the row of the only holder; before them 's' and the lease, if it is not that
--            of the entry before; or, to lower, detach or raise the number, 'b', the id, the units to lower to or '',
--            '1' to detach, and the number to raise it to or '0'
-- Reply      nonce, now, then per entry: 0 number (held alone, for the whole lease), 1 number floor remaining (held),
--            2 (gone), 3 and '=' with the reason or '-' (evicted)
-- Invariant  The lease of an only holder is extended by writing the new end over the old one; resource.lua does the
--            rest.
local reply, at, lib = {ARGV[1], now_text}, 3, nil
local lease, expires, lasts, life
local function set_lease(length)
  lease = length
  expires, lasts = string.format('%016d', now_text + length), string.format('%016d', now_text + length + 60000000)
  life = string.format('%d', math.ceil(length / 1000) + 61000) -- a minute and a second
end
set_lease(ARGV[2])
without_memory()
-- MGET gives no value for a list, where GET would fail.
local rows = call('MGET', unpack(KEYS, 2))
for entry = 2, #KEYS do
  local key, word = KEYS[entry], ARGV[at]
  if word == 's' then
    set_lease(ARGV[at + 1])
    word, at = ARGV[at + 2], at + 2
  end
  if word == 'b' then
    lib = lib or library()
    reply[entry + 1] = lib.renew(key, ARGV[at + 1], lease, ARGV[at + 2], ARGV[at + 3] == '1', tonumber(ARGV[at + 4]))
    at = at + 5
  else
    at = at + 1
    local row = rows[entry - 1]
    local ends = row and string.sub(row, 78, 93)
    if row and string.sub(row, 95, 94 + #word) == word and ends > now_text and ends <= expires then
      call('SETRANGE', key, '77', expires)
      -- The key lasts a minute longer than its lease, so not every renewal has to extend it.
      if string.sub(row, 1, 16) < expires then
        call('SETRANGE', key, '0', lasts)
        call('PEXPIRE', key, life)
      end
      reply[entry + 1] = '0 ' .. string.sub(row, 44, 59)
    else
      lib = lib or library()
      reply[entry + 1] = lib.renew(key, string.sub(word, 6, -2), lease, '', false, 0)
    end
  end
end
return table.concat(reply, ' ')
