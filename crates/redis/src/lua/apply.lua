-- Claims and leaves, one after another, as one group.
-- KEYS[3..]  the resource of each entry
-- ARGV[3]    '1': a grant must be a write, because WAIT follows
-- ARGV[4..]  per entry, claim:  'c' (queue), 't' (try) or 'm' (asks for more than there is), tail of the holder's line,
--                               lease, not_after, stamp
--                      leave:  'l', id, bury_until or '', hold_at_least
-- Reply      nonce, now, then per entry: 1 number floor remaining (granted), 2 ahead retry_in (busy), 3 (stale),
--            4 capacity (mismatch), 5 (released), 6 (left the line), 7 (not there)
-- Invariant  An entry asked again never enters twice (I9). A free resource is claimed by one SET, and one that is
--            held by its leaver alone is freed by one DEL; everything else goes through resource.lua.
local must_write = ARGV[3] == '1'
local reply, lib, at = {ARGV[1], now}, nil, 4

local function answer(...)
  for _, value in ipairs({...}) do reply[#reply + 1] = value end
end

for entry = 3, #KEYS do
  local key, kind = KEYS[entry], ARGV[at]
  if kind == 'l' then
    local id, bury, hold = ARGV[at + 1], ARGV[at + 2], ARGV[at + 3]
    at = at + 4
    local freed = false
    if bury == '' and hold == '0' and redis.call('TYPE', key).ok == 'string' then
      local expires, flags, holder = string.match(redis.call('GET', key), '^h %d+ %d+ (%d+) (%S+) (%S+)')
      if holder == id and flags == 'c---' and tonumber(expires) > now then
        redis.call('DEL', key)
        if watched then publish(key .. ':changed', '') end
        reply[#reply + 1] = 5
        freed = true
      end
    end
    if not freed then
      lib = lib or library()
      answer(lib.leave(key, id, bury, tonumber(hold)))
    end
  else
    local tail, lease, not_after, stamp = ARGV[at + 1], tonumber(ARGV[at + 2]), tonumber(ARGV[at + 3]), ARGV[at + 4]
    at = at + 5
    if not_after < now then
      reply[#reply + 1] = 3
    else
      local number = next_number()
      local line = string.format('h %016.0f %.0f %.0f c--- ', number, now, now + lease) .. tail
      if kind ~= 'm' and redis.call('SET', key, line, 'PX', math.ceil(lease / 1000) + 2, 'NX') then
        mark = number
        if watched then publish(key .. ':changed', '') end
        local n = #reply
        reply[n + 1], reply[n + 2], reply[n + 3], reply[n + 4] = 1, number, number, lease
      else
        lib = lib or library()
        answer(lib.claim(key, kind ~= 't', tail, lease, stamp, must_write))
      end
    end
  end
end
return finish(reply)
