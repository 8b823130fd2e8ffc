-- Claims and leaves, one after another, as one group.
-- KEYS[2..]  the resource of each entry
-- ARGV[2]    how many plain leaves there are, which come first: N, or -1 - N if there is also a claim that may need memory
--            and anything that needs none
-- ARGV[3..]  per plain leave: flags and id as in the line of its only holder
-- then per entry, claim:  id; before it, where they are not those of the claim before, 's' and: not_after, 'q' (queue) or
--                         't' (try), in capitals if what is granted must be written, and stamp as one text; the lease; how
--                         many milliseconds a key with such a lease lasts, or '' if it must not be granted by one SET,
--                         which is refused without memory; the holder's line from behind the id on
--            leave:  'b', id, bury_until or '', hold_at_least
-- Reply      nonce, now, then per entry: 9 number (granted now, alone, for the whole lease), 0 (the same, and the
--            number is now), 1 number floor remaining (granted), 2 ahead retry_in (busy), 3 (stale), 4 capacity (mismatch),
--            5 (released), 6 (left the line), 7 (not there), 8 (the key holds something else)
-- Invariant  An entry asked again never enters twice (I9). What is easy has been done by uncontended.lua, and what is frequent by
--            contended.lua; the rest goes through resource.lua.
local lib
at = leaves + 3
for entry = 1, #KEYS - 1 do
  local key, reply = KEYS[entry + 1], replies[entry]
  if entry <= leaves then
    if not reply then
      local id = string.sub(ARGV[entry + 2], 6, -2)
      lib = lib or library()
      reply = lib.leave(key, id, '', 0)
    end
  elseif ARGV[at] == 'b' then
    lib = lib or library()
    reply = lib.leave(key, ARGV[at + 1], ARGV[at + 2], tonumber(ARGV[at + 3]))
    at = at + 4
  else
    if ARGV[at] == 's' then
      limit, after = ARGV[at + 1], ARGV[at + 4]
      at = at + 5
    end
    if not reply and limit < now_text then
      reply = '3'
    elseif not reply then
      local way, stamp = string.sub(limit, 17, 17), string.sub(limit, 18)
      local in_line = way == 'q' or way == 'Q'
      lib = lib or library()
      reply = lib.claim(key, in_line, ARGV[at], after, stamp, way == 'Q' or way == 'T')
    end
    at = at + 1
  end
  replies[entry] = reply
end
return ARGV[1] .. ' ' .. now_text .. ' ' .. table.concat(replies, ' ')
