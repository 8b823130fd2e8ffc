-- Those who wait for a resource, and the two transitions that are most of what happens to a mutex in demand: one more
-- stands in line, and the holder gives it to the next. See resource.lua for the lines of a key and for all other cases.
-- Invariant  Where anything is unusual, the two change nothing and answer nil; resource.lua does it then, which takes
--            nearly twice as long. Of those in line hand_over looks at the head only: others who are to be given up
--            stay where they are for now, which nobody can tell.
--            A key lasts to the end of the minute in which the last in line would be given up, or longer.
local function queue()
  local FIRST_LEASE, WAIT_LEASE, MINUTE = 3000000, 15000000, 60000000
  local line = {}

  -- A message is a hint: that it cannot be sent must not undo what it tells of.
  function line.publish(channel, message)
    redis.pcall(sharded and 'SPUBLISH' or 'PUBLISH', channel, message)
  end

  function line.tell_granted(key, id, number, floor, stamp, waited, lease)
    local of = sharded and key .. ':k:' or string.sub(KEYS[1], 1, -5) .. 'k:'
    line.publish(of .. string.match(id, '^[^-]+'),
      string.format('%s %s %d %s %d %d %s', id, number, floor, stamp, waited, lease, key))
  end

  -- Writes one down who asks now.
  function line.place(key, arrival, id, tail, stamp)
    call('ZADD', key, '0', 'l ' .. arrival .. ' ' .. now_text .. ' ' .. stamp .. ' ' .. tail,
      '0', 'o ' .. now_text .. ' ' .. arrival, '0', 'w ' .. id .. ' ' .. arrival)
  end

  -- One more, after the last, whose arrival is the answer: never at the same time, nor before it if the clock was set back.
  function line.enter(key, id, tail, stamp)
    local last, arrival = call('ZREVRANGEBYLEX', key, '(l!', '[l ', 'LIMIT', '0', '1')[1], now_text
    last = last and string.sub(last, 3, 18)
    if last and last >= now_text then arrival = string.format('%016d', last + 1) end
    line.place(key, arrival, id, tail, stamp)
    return last
  end

  local function stands(key, kind, id)
    return call('ZRANGEBYLEX', key, '[' .. kind .. ' ' .. id .. ' ', '(' .. kind .. ' ' .. id .. '!')[1]
  end

  -- The line of a mutex' only holder, its id, and the two lines after it, if there is such a holder, live and with nothing
  -- before it.
  local function held_alone(key)
    local lines = redis.pcall('ZRANGE', key, '0', '2')
    local held = lines[1]
    if held and string.byte(held) == 104 and string.sub(held, 37, 52) > now_text then -- 'h'
      return held, string.match(held, '^(%S+) all all ', 59), lines[2], lines[3]
    end
  end

  function line.stand_in_line(key, id, after, stamp)
    local held, holder = held_alone(key)
    if not holder or holder == id or string.sub(after, 1, 9) ~= ' all all ' then return nil end
    local ahead = call('ZLEXCOUNT', key, '[l ', '(l!')
    if ahead > 0 then
      local oldest = call('ZRANGEBYLEX', key, '[o ', '(o!', 'LIMIT', '0', '1')[1]
      if now_text - string.sub(oldest, 3, 18) >= WAIT_LEASE or stands(key, 'w', id) then return nil end
    end
    local graves = call('ZCARD', key) > 1 + 3 * ahead
    if graves and stands(key, 'x', id) then return nil end
    local last, expires, given_up = line.enter(key, id, id .. after, stamp), string.sub(held, 37, 52), now_text + WAIT_LEASE
    local minute = given_up - given_up % MINUTE
    if expires - minute < 0 and (not last or last >= now_text or last + WAIT_LEASE < minute)
      and not (graves and call('PTTL', key) > 75000) then
      call('PEXPIRE', key, '75000') -- WAIT_LEASE and a minute
    end
    return string.format('2 %d %d', ahead, expires - now_text)
  end

  function line.hand_over(key, id)
    local held, holder, head, behind = held_alone(key)
    if not head or holder ~= id or string.sub(held, 55, 57) ~= '---' then return nil end
    local arrival, asked, stamp, tail, to, lease = string.match(head, '^l (%d+) (%d+) (%d+) ((%S+) all all (%d+) .*)$')
    local waited = arrival and now_text - asked
    -- If it asked longer ago, the key might not last as long as it will hold.
    if not waited or waited < 0 or waited > WAIT_LEASE - FIRST_LEASE then return nil end
    local order, place = 'o ' .. asked .. ' ' .. arrival, 'w ' .. to .. ' ' .. arrival
    -- A key that became empty would forget how long it lasts.
    local last = not behind or string.byte(behind) ~= 108 -- 'l'
    if last then call('ZREM', key, held, order, place) else call('ZREM', key, held, order, place, head) end
    local number, first = next_number(), math.min(lease, FIRST_LEASE)
    call('ZADD', key, '0', 'h ' .. number .. ' ' .. now_text .. string.format(' %016d ---- ', now_text + first) .. tail)
    if last then call('ZREM', key, head) end
    line.tell_granted(key, to, number, number, stamp, waited, first)
    return '5'
  end

  return line
end
