-- A group of claims and leaves, applied in order.
-- KEYS[2..]  the resource of each entry
-- ARGV[2]    how many plain leaves there are, which come first: N, or -1 - N if some of the claims may need memory and
--            other entries need none
-- ARGV[3..]  per plain leave: flags and id as in the row of the only holder
-- then per entry, claim:  the id. Before it, if they are not those of the claim before, 's' and: not_after,
--                         'q' (queue) or 't' (try) in capitals if a grant must be written also if it was made before,
--                         the stamp, and the least number of the grant, if it is to have one, as one text; the lease;
--                         how many milliseconds a key with such a lease lasts, or '' if one SET must not grant it,
--                         which a server without memory refuses; the holder's row from behind the id on. If they
--                         differ only in 'q' or 't': 'w' and the first of these texts
--            leave:  'b', id, the end of the tombstone or '', hold_at_least
-- Reply      nonce, now, then per entry: 9 number (granted now, alone, for the whole lease), 0 (the same, and the
--            number is now), 1 number floor remaining (granted), 2 ahead retry_in (busy), 3 (stale), 4 capacity
--            (mismatch), 5 (released), 6 (left the queue), 7 (not there), 8 (the key holds something else)
-- Invariant  A claim that is sent again never enters the queue twice (I9). alone.lua, uncontended.lua and contended.lua
--            have done most entries by now; resource.lua does the rest.
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
    elseif ARGV[at] == 'w' then
      limit = ARGV[at + 1]
      at = at + 2
    end
    if not reply and limit < now_text then
      reply = '3'
    elseif not reply then
      local way, stamp = string.sub(limit, 17, 17), string.sub(limit, 18, 37)
      local queue = way == 'q' or way == 'Q'
      lib = lib or library()
      reply = lib.claim(key, queue, ARGV[at], after, stamp, way == 'Q' or way == 'T')
    end
    at = at + 1
  end
  replies[entry] = reply
end
return ARGV[1] .. ' ' .. now_text .. ' ' .. table.concat(replies, ' ')
