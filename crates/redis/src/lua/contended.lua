-- What happens most to a resource in demand, without the functions for the rest: the holder gives it to the next, and
-- somebody stands in line, or asks again. See apply.lua for arguments and reply, resource.lua for what a key holds.
-- Invariant  An entry of which anything is unusual is not touched, and neither are those after it: resource.lua does them
--            then, which takes longer. Of those in line the one who is next is looked at and no other: some who are to
--            be given up may stay where they are for now, which nobody can tell.
local FIRST_LEASE, WAIT_LEASE, PLACE_KEPT, MINUTE = 3000000, 15000000, 5000000, 60000000
local sub, match, now = string.sub, string.match, tonumber(now_text)
at = leaves + 3
for entry = 1, #KEYS - 1 do
  local key = KEYS[entry + 1]
  if entry <= leaves then
    if not replies[entry] then
      if replies[entry] == false then break end
      local lines, id = redis.pcall('LRANGE', key, '0', '2'), sub(ARGV[entry + 2], 6)
      local head, to = lines[1], lines[2]
      -- One line, of a holder, who is live and the one who leaves, and of whom nothing special is known.
      if not head or sub(head, 34, 42) ~= ' 000000 h' or sub(head, 78, 93) <= now_text
        or sub(head, 96, 99 + #id) ~= '--- ' .. id then
        break
      end
      if to then
        local asks = lines[3]
        local waited, first = now - sub(asks, 1, 16), match(asks, '^ all all (%d+) ', 55)
        -- If it asked longer ago, the key might not last as long as it will hold.
        if not first or waited < 0 or waited > WAIT_LEASE - FIRST_LEASE then break end
        -- What is left of the list begins with what the next one asks for, in whose place comes what it holds.
        call('LTRIM', key, '2', '-1')
        local number = next_number()
        first = math.min(first, FIRST_LEASE)
        call('LSET', key, '0', sub(head, 1, 43) .. number .. ' ' .. now_text
          .. string.format(' %016d ---- ', now + first) .. to .. sub(asks, 55))
        tell_granted(key, to, number, number, sub(asks, 35, 54), waited, first)
      else
        call('DEL', key)
      end
      replies[entry] = '5'
      done = done + 1
    end
  else
    local word = ARGV[at]
    if word == 's' then
      limit, after, word = ARGV[at + 1], ARGV[at + 4], ARGV[at + 5]
      at = at + 5
    end
    at = at + 1
    if not replies[entry] then
      -- Not for who only tries, nor for a leave: of a string this is an error, which servers count.
      local head = word ~= 'b' and limit > now_text and sub(after, 1, 5) == ' all '
        and string.byte(limit, 17) % 32 == 17 and redis.pcall('LINDEX', key, '0') -- 'q', 'Q'
      -- One line, of a holder who is live and has all, so that nobody else comes in, whatever it asks for.
      if type(head) ~= 'string' or sub(head, 34, 42) ~= ' 000000 h' or sub(head, 78, 93) <= now_text then break end
      local holder, lasts, oldest = match(head, '^(%S+) all all ', 100), tonumber(sub(head, 1, 16)), sub(head, 18, 33)
      if not holder or holder == word or oldest > now_text or now - oldest >= WAIT_LEASE then break end
      local ahead, place = nil, call('LPOS', key, word)
      if place then
        local waiter = call('LINDEX', key, place + 1)
        ahead = (place - 1) / 2
        -- Not only after a while: also if the clock was set back.
        if math.abs(now - sub(waiter, 1, 16)) >= PLACE_KEPT then
          call('PERSIST', KEYS[1]) -- as without_memory() in resource.lua
          call('LSET', key, place + 1, now_text .. sub(waiter, 17, 34) .. sub(limit, 18) .. sub(waiter, 55))
        else
          lasts = nil
        end
      else
        ahead = (call('RPUSH', key, word, now_text .. ' ' .. now_text .. ' ' .. sub(limit, 18) .. after) - 3) / 2
      end
      if lasts and now + WAIT_LEASE > lasts then
        call('LSET', key, '0', string.format('%016d', now + WAIT_LEASE + MINUTE) .. sub(head, 17))
        call('PEXPIRE', key, '76000') -- WAIT_LEASE, MINUTE and a second
      end
      replies[entry] = string.format('2 %d %d', ahead, sub(head, 78, 93) - now)
      done = done + 1
    end
  end
end
if done == #KEYS - 1 then return ARGV[1] .. ' ' .. now_text .. ' ' .. table.concat(replies, ' ') end
