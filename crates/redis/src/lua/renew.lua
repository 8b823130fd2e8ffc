-- Extends, lowers and detaches leases. Never shortens one and never revives an ended one (I11).
-- KEYS[2..]  the resource of each lease
-- ARGV[2]    the lease, which is mostly the same for all
-- ARGV[3..]  per lease: flags and id as in the line of its only holder; before it 's' and the lease, where it is not that of
--            the one before; for more than an extension 'b', then the id, units to lower to or '', '1' to detach
-- Reply      nonce, now, then per lease: 0 (held, for as long as asked), 1 remaining (held), 2 (gone), 3 (evicted)
-- Invariant  A lease held alone is extended by writing when it ends over when it ended; everything else goes through
--            resource.lua.
local reply, at, lib = {ARGV[1], now_text}, 3, library(queue())
local lease, life, expires, minute
local function ask_for(length)
  lease = length
  local ends = now_text + length
  life, expires, minute = lib.life_until(ends), string.format('%016d', ends), string.format('%016d', ends - ends % 60000000)
end
ask_for(ARGV[2])
lib.without_memory()
-- A sorted set has no value for MGET, where GET would fail.
local lines = call('MGET', unpack(KEYS, 2))
for entry = 2, #KEYS do
  local key, word = KEYS[entry], ARGV[at]
  if word == 's' then
    ask_for(ARGV[at + 1])
    word, at = ARGV[at + 2], at + 2
  end
  if word == 'b' then
    reply[entry + 1] = lib.renew(key, ARGV[at + 1], lease, ARGV[at + 2], ARGV[at + 3] == '1')
    at = at + 4
  else
    at = at + 1
    local line = lines[entry - 1]
    local ends = line and string.sub(line, 37, 52)
    if line and string.sub(line, 54, 53 + #word) == word and ends > now_text and ends <= expires then
      call('SETRANGE', key, '36', expires)
      -- Its key lasts to the end of the minute that it would have ended in.
      if ends < minute then call('PEXPIRE', key, life) end
      reply[entry + 1] = '0'
    else
      reply[entry + 1] = lib.renew(key, string.sub(word, 6, -2), lease, '', false)
    end
  end
end
return table.concat(reply, ' ')
