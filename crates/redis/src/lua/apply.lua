-- Claims and leaves, one after another, as one group.
-- KEYS[2..]  the resource of each entry
-- ARGV[2]    how many plain leaves there are; they come first
-- ARGV[3..]  per plain leave: flags and id as in the line of its only holder
-- then, if there are other entries, what claims have in common, which is mostly the same for all of a group:
--            not_after, 'q' (queue) or 't' (try) and stamp as one text; the lease, or '' if it must not be granted by one
--            SET
-- then per entry, claim:  tail of the holder's line; before it 's' and the two above, where they are not those of
--                         the claim before
--            leave:  'b', id, bury_until or '', hold_at_least
-- Reply      nonce, now, then per entry: 9 number (granted now, alone, for the whole lease), 0 (the same, and the
--            number is now), 1 number floor remaining (granted), 2 ahead retry_in (busy), 3 (stale), 4 capacity (mismatch),
--            5 (released), 6 (left the line), 7 (not there), 8 (the key holds something else)
-- Invariant  An entry asked again never enters twice (I9). A free resource is claimed by one SET, and those that are
--            held by their leavers alone are freed by one DEL; everything else goes through resource.lua.
local replies, leaves, lib = {}, tonumber(ARGV[2]), nil

if leaves > 0 then
  -- A sorted set has no value for MGET, where GET would fail.
  local lines, freed = call('MGET', unpack(KEYS, 2, leaves + 1)), {}
  for entry = 1, leaves do
    local line, alone = lines[entry], ARGV[entry + 2]
    if line and string.sub(line, 54, 53 + #alone) == alone and string.sub(line, 37, 52) > now_text then
      freed[#freed + 1] = KEYS[entry + 1]
      replies[entry] = '5'
    end
  end
  if freed[1] then call('DEL', unpack(freed)) end
  for entry = 1, #freed < leaves and leaves or 0 do
    lib = lib or library()
    replies[entry] = replies[entry] or lib.leave(KEYS[entry + 1], string.sub(ARGV[entry + 2], 6, -2), '', 0)
  end
end

local at, ends, life = leaves + 5, nil, nil
local limit = ARGV[at - 2]
-- Where a claim is granted by one SET: the middle of its holder's line, and how long its key lasts.
local function ask_for(lease)
  ends = lease ~= '' and now_text + lease
  life = ends and life_until(ends)
  ends = ends and string.format(' %016d c--- ', ends)
end
if limit then ask_for(ARGV[at - 1]) end

for entry = leaves + 1, #KEYS - 1 do
  local key, word, reply = KEYS[entry + 1], ARGV[at], nil
  if word == 's' then
    limit, word = ARGV[at + 1], ARGV[at + 3]
    ask_for(ARGV[at + 2])
    at = at + 3
  end
  if word == 'b' then
    lib = lib or library()
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
      lib = lib or library()
      reply = lib.claim(key, string.sub(limit, 17, 17) == 'q', word, string.sub(limit, 18))
    end
  end
  replies[entry] = reply
end
return ARGV[1] .. ' ' .. now_text .. ' ' .. table.concat(replies, ' ')
