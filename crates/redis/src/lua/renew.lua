-- Extends, lowers and detaches leases. Never shortens one and never revives an ended one (I11).
-- KEYS[2..]  the resource of each lease
-- ARGV[2]    the lease, which is mostly the same for all
-- ARGV[3..]  per lease: flags and id as in the line of its only holder; before it 's' and the lease, where it is not that of
--            the one before; for more than an extension 'b', then the id, units to lower to or '', '1' to detach
-- Reply      nonce, now, then per lease: 0 (held, for as long as asked), 1 remaining (held), 2 (gone), 3 (evicted)
-- Invariant  A lease held alone is extended by writing when it ends over when it ended; everything else goes through
--            resource.lua.
local reply, at, lib = {ARGV[1], now_text}, 3, nil
local lease, expires, lasts, life
local function ask_for(length)
  lease = length
  expires, lasts = string.format('%016d', now_text + length), string.format('%016d', now_text + length + 60000000)
  life = string.format('%d', math.ceil(length / 1000) + 61000) -- a minute and a second
end
ask_for(ARGV[2])
without_memory()
-- A list has no value for MGET, where GET would fail.
local lines = call('MGET', unpack(KEYS, 2))
for entry = 2, #KEYS do
  local key, word = KEYS[entry], ARGV[at]
  if word == 's' then
    ask_for(ARGV[at + 1])
    word, at = ARGV[at + 2], at + 2
  end
  if word == 'b' then
    lib = lib or library()
    reply[entry + 1] = lib.renew(key, ARGV[at + 1], lease, ARGV[at + 2], ARGV[at + 3] == '1')
    at = at + 4
  else
    at = at + 1
    local line = lines[entry - 1]
    local ends = line and string.sub(line, 78, 93)
    if line and string.sub(line, 95, 94 + #word) == word and ends > now_text and ends <= expires then
      call('SETRANGE', key, '77', expires)
      -- Its key lasts for a while longer than what it was made for.
      if string.sub(line, 1, 16) < expires then
        call('SETRANGE', key, '0', lasts)
        call('PEXPIRE', key, life)
      end
      reply[entry + 1] = '0'
    else
      lib = lib or library()
      reply[entry + 1] = lib.renew(key, string.sub(word, 6, -2), lease, '', false)
    end
  end
end
return table.concat(reply, ' ')
