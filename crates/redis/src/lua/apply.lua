-- Claims and leaves, one after another, as one group.
-- KEYS[2..]  the resource of each entry
-- ARGV[2]    how many plain leaves there are; they come first
-- ARGV[3..]  per plain leave: flags and id as in the line of its only holder
-- then per entry, claim:  tail of the holder's line; before it, where they are not those of the claim before, 's' and:
--                         not_after, 'q' (queue) or 't' (try) and stamp as one text; the lease; how many milliseconds a
--                         key with such a lease lasts, or '' if it must not be granted by one SET
--            leave:  'b', id, bury_until or '', hold_at_least
-- Reply      nonce, now, then per entry: 9 number (granted now, alone, for the whole lease), 0 (the same, and the
--            number is now), 1 number floor remaining (granted), 2 ahead retry_in (busy), 3 (stale), 4 capacity (mismatch),
--            5 (released), 6 (left the line), 7 (not there), 8 (the key holds something else)
-- Invariant  An entry asked again never enters twice (I9). A free resource is claimed by one SET; everything else goes
--            through line.lua and resource.lua.
local line, lib

for entry = 1, #freed < leaves and leaves or 0 do
  if not replies[entry] then
    local key, id = KEYS[entry + 1], string.sub(ARGV[entry + 2], 6, -2)
    line = line or queue()
    local reply = line.hand_over(key, id)
    if not reply then
      lib = lib or library(line)
      reply = lib.leave(key, id, '', 0)
    end
    replies[entry] = reply
  end
end

local at, limit, ends, life = leaves + 3, nil, nil, nil
for entry = leaves + 1, #KEYS - 1 do
  local key, word, reply = KEYS[entry + 1], ARGV[at], nil
  if word == 's' then
    limit, life, word = ARGV[at + 1], ARGV[at + 3], ARGV[at + 4]
    -- The middle of the line of a holder that is granted by one SET.
    ends = life ~= '' and string.format(' %016d c--- ', now_text + ARGV[at + 2])
    at = at + 4
  end
  if word == 'b' then
    line = line or queue()
    lib = lib or library(line)
    reply = lib.leave(key, ARGV[at + 1], ARGV[at + 2], tonumber(ARGV[at + 3]))
    at = at + 4
  else
    at = at + 1
    local number = mark and next_number() or now_text
    if limit < now_text then
      reply = '3'
    elseif ends and call('SET', key, 'h ' .. number .. ' ' .. now_text .. ends .. word, 'PX', life, 'NX') then
      if not mark and next_number() ~= number then
        -- The clock is not above the mark.
        number = mark
        call('SET', key, 'h ' .. number .. ' ' .. now_text .. ends .. word, 'KEEPTTL')
      end
      reply = number == now_text and '0' or '9 ' .. number
    else
      local in_line, stamp = string.byte(limit, 17) == 113, string.sub(limit, 18) -- 'q'
      line = line or queue()
      reply = in_line and line.stand_in_line(key, word, stamp)
      if not reply then
        lib = lib or library(line)
        reply = lib.claim(key, in_line, word, stamp)
      end
    end
  end
  replies[entry] = reply
end
return ARGV[1] .. ' ' .. now_text .. ' ' .. table.concat(replies, ' ')
