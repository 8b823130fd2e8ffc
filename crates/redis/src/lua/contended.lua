-- The most frequent entries of a contended mutex, without the functions for the rest: the holder leaves and the first
-- waiter is granted, or a contender enters the queue, or a waiter asks again. See apply.lua for arguments and reply,
-- resource.lua for the rows of a key.
-- Invariant  An unusual entry and all entries after it are not touched: resource.lua does them, which takes longer.
--            Only the first waiter is looked at. Waiters that have not asked for too long may stay in the queue for
--            now, which no client can see.
local FIRST_LEASE, WAIT_LEASE, POSITION_KEPT, MINUTE = 3000000, 15000000, 5000000, 60000000
local sub, match, now = string.sub, string.match, tonumber(now_text)
at = leaves + 3
for entry = 1, #KEYS - 1 do
  local key = KEYS[entry + 1]
  if entry <= leaves then
    if not replies[entry] then
      if replies[entry] == false then break end
      local elements, id = redis.pcall('LRANGE', key, '0', '2'), sub(ARGV[entry + 2], 6)
      local head, to = elements[1], elements[2]
      -- One row: of the holder that leaves, whose lease has not ended, and that is neither evicted nor retired nor
      -- detached.
      if not head or sub(head, 34, 42) ~= ' 000000 h' or sub(head, 78, 93) <= now_text
        or sub(head, 96, 99 + #id) ~= '--- ' .. id then
        break
      end
      if to then
        local claim = elements[3]
        local waited, first, least = now - sub(claim, 1, 16), match(claim, '^ all all (%d+) [-fd]*n?(%d*) ', 55)
        -- If it asked longer ago, the key might not last as long as its lease.
        if not first or waited < 0 or waited > WAIT_LEASE - FIRST_LEASE then break end
        -- The rest of the list begins with the claim of the first waiter, which its row as a holder replaces.
        call('LTRIM', key, '2', '-1')
        local number = next_number(least ~= '' and number_text(least) or nil)
        first = math.min(first, FIRST_LEASE)
        call('LSET', key, '0', sub(head, 1, 43) .. number .. ' ' .. now_text
          .. string.format(' %016d ---- ', now + first) .. to .. sub(claim, 55))
        publish_grant(key, to, number, number, sub(claim, 35, 54), waited, first)
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
    elseif word == 'w' then
      limit, word = ARGV[at + 1], ARGV[at + 2]
      at = at + 2
    end
    at = at + 1
    if not replies[entry] then
      -- Not for a try, nor for a leave: of a string this is an error, which servers count.
      local head = word ~= 'b' and limit > now_text and sub(after, 1, 5) == ' all '
        and string.byte(limit, 17) % 32 == 17 and redis.pcall('LINDEX', key, '0') -- 'q', 'Q'
      -- One row: of a holder that has all units and whose lease has not ended, so no other claim can be granted.
      if type(head) ~= 'string' or sub(head, 34, 42) ~= ' 000000 h' or sub(head, 78, 93) <= now_text then break end
      local holder, lasts, oldest = match(head, '^(%S+) all all ', 100), tonumber(sub(head, 1, 16)), sub(head, 18, 33)
      if not holder or holder == word or oldest > now_text or now - oldest >= WAIT_LEASE then break end
      local ahead, index = nil, call('LPOS', key, word)
      if index then
        local waiter = call('LINDEX', key, index + 1)
        ahead = (index - 1) / 2
        -- Also if the clock was set back.
        if math.abs(now - sub(waiter, 1, 16)) >= POSITION_KEPT then
          call('PERSIST', KEYS[1]) -- see without_memory() in resource.lua
          call('LSET', key, index + 1, now_text .. sub(waiter, 17, 34) .. sub(limit, 18, 37) .. sub(waiter, 55))
        else
          lasts = nil
        end
      else
        ahead = (call('RPUSH', key, word, now_text .. ' ' .. now_text .. ' ' .. sub(limit, 18, 37) .. after) - 3) / 2
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
