-- Claims and leaves, one after another, as one group.
-- KEYS[2..]  the resource of each entry
-- ARGV[2..]  per entry, claim:  'c' (queue) or 't' (try), tail of the holder's line, milliseconds that its key lasts,
--                               which is one more than the lease has, or '' if it must not be granted by one SET,
--                               not_after and stamp as one text
--                      leave:  flags and id as in the line of its only holder; or for a leave with more to it
--                              'b', id, bury_until or '', hold_at_least
-- Reply      nonce, now, then per entry: 9 number (granted now, alone, for the whole lease), 0 (the same, and the
--            number is now), 1 number floor remaining (granted), 2 ahead retry_in (busy), 3 (stale), 4 capacity (mismatch),
--            5 (released), 6 (left the line), 7 (not there), 8 (the key holds something else)
-- Invariant  An entry asked again never enters twice (I9). A free resource is claimed by one SET, and one that is
--            held by its leaver alone is freed by one DEL; everything else goes through resource.lua.
local head, at, lib = ARGV[1] .. ' ' .. now_text .. ' ', 2, nil
local replies = #KEYS > 2 and {}
-- The entries of a group mostly have the same lease. Keys outlive what they hold, so that it is a script that decides.
local life, ends

for entry = 2, #KEYS do
  local key, kind, reply = KEYS[entry], ARGV[at], nil
  if #kind > 1 then
    at = at + 1
    -- A sorted set has no value for MGET, where GET would fail.
    local line = call('MGET', key)[1]
    if line and string.sub(line, 54, 53 + #kind) == kind and string.sub(line, 37, 52) > now_text then
      call('DEL', key)
      reply = '5'
    else
      lib = lib or library()
      reply = lib.leave(key, string.sub(kind, 6, -2), '', 0)
    end
  elseif kind == 'b' then
    lib = lib or library()
    reply = lib.leave(key, ARGV[at + 1], ARGV[at + 2], tonumber(ARGV[at + 3]))
    at = at + 4
  else
    local tail, limit = ARGV[at + 1], ARGV[at + 3]
    if ARGV[at + 2] ~= life then
      life = ARGV[at + 2]
      ends = life ~= '' and string.format(' %016d c--- ', now_text + (life - 1) * 1000)
    end
    at = at + 4
    local number = mark and next_number() or now_text
    if limit < now_text then
      reply = '3'
    elseif ends and call('SET', key, 'h ' .. number .. ' ' .. now_text .. ends .. tail, 'PX', life, 'NX') then
      if not mark and next_number() ~= number then
        -- The clock is not above the mark.
        number = mark
        call('SET', key, 'h ' .. number .. ' ' .. now_text .. ends .. tail, 'KEEPTTL')
      end
      reply = number == now_text and '0' or '9 ' .. number
    else
      lib = lib or library()
      reply = lib.claim(key, kind ~= 't', tail, string.sub(limit, 18))
    end
  end
  if not replies then return head .. reply end
  replies[entry - 1] = reply
end
return head .. table.concat(replies, ' ')
