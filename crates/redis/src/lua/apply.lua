-- Claims and leaves, one after another, as one group.
-- KEYS[3..]  the resource of each entry
-- ARGV[3]    '1': a grant must be a write, because WAIT follows
-- ARGV[4..]  per entry, claim:  'c' (queue), 't' (try) or 'm' (asks for more than there is), tail of the holder's line,
--                               lease, not_after, stamp
--                      leave:  'l', id, bury_until or '', hold_at_least
-- Reply      nonce, now, then per entry: 0 number (granted now, alone, for the whole lease), 1 number floor remaining
--            (granted), 2 ahead retry_in (busy), 3 (stale), 4 capacity (mismatch), 5 (released), 6 (left the line),
--            7 (not there), 8 (the key holds something else)
-- Invariant  An entry asked again never enters twice (I9). A free resource is claimed by one SET, and one that is
--            held by its leaver alone is freed by one DEL; everything else goes through resource.lua.
local reply, lib, at = {ARGV[1], now_text}, nil, 4
-- The entries of a group mostly have the same lease and time limit.
local lease_text, lease, life, middle, limit, late

for entry = 3, #KEYS do
  local key, kind = KEYS[entry], ARGV[at]
  if kind == 'l' then
    local id, bury, hold = ARGV[at + 1], ARGV[at + 2], ARGV[at + 3]
    at = at + 4
    local line = bury == '' and hold == '0' and (entry == 3 and kept[3] or redis.call('MGET', key)[1])
    if line and string.sub(line, 54, 59 + #id) == 'c--- ' .. id .. ' ' and string.sub(line, 37, 52) > now_text then
      redis.call('DEL', key)
      reply[#reply + 1] = '5'
      if watched then publish(key .. ':changed', '') end
    else
      lib = lib or library()
      without_memory()
      lib.append(reply, lib.leave(key, id, bury, tonumber(hold)))
    end
  else
    local tail = ARGV[at + 1]
    if ARGV[at + 2] ~= lease_text then
      lease_text = ARGV[at + 2]
      lease = tonumber(lease_text)
      life = string.format('%d', math.ceil(lease / 1000) + 2)
      middle = string.format(' %s %016d c--- ', now_text, now + lease)
    end
    if ARGV[at + 3] ~= limit then
      limit = ARGV[at + 3]
      late = tonumber(limit) < now
    end
    if late then
      reply[#reply + 1] = '3'
    else
      local number = math.min(math.max(mark + 1, now), LAST_NUMBER)
      local text = string.format('%016d', number)
      if kind ~= 'm' and redis.call('SET', key, 'h ' .. text .. middle .. tail, 'PX', life, 'NX') then
        mark = number
        local n = #reply
        reply[n + 1], reply[n + 2] = '0', text
        if watched then publish(key .. ':changed', '') end
      else
        lib = lib or library()
        lib.append(reply, lib.claim(key, kind ~= 't', tail, lease, ARGV[at + 4], ARGV[3] == '1'))
      end
    end
    at = at + 5
  end
end
return finish(reply)
