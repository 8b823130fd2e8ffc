-- One resource: who holds it, who waits. The twin of core/src/model/resource.rs; made only when it is needed.
--
-- A resource is one key. Held by one, with nobody in line: a string, the holder's line. Else a sorted set of
-- lines, all with score 0 and so in the order of their bytes:
--   g * <until>                                                 changes are published until then
--   h <number> <granted> <expires> <flags> <id> <capacity> <units> <lease> <card>      holder, by number
--   l <arrival> <asked> <stamp> <id> <capacity> <units> <lease> <card>                 the line, in order of arrival
--   o <asked> <arrival>                                         when a waiter last asked, oldest first
--   w <id> <arrival>                                            where a waiter stands in line
--   x <id> <until>                                              left; late copies of its claim do nothing until then
-- Numbers and times (microseconds of the server's clock) have 16 digits, so that their order is that of their text and
-- the beginning of a holder's line has fixed places. Flags: c confirmed, e evicted, r retired, d detached, or a dash.
-- Invariant: what is stored is settled but for the passing of time, and it has a time to live that covers it.
local function library(line)
  local FIRST_LEASE, WAIT_LEASE, PLACE_KEPT, MINUTE = 3000000, 15000000, 5000000, 60000000
  local lib, now = {}, tonumber(now_text)

  -- How many milliseconds a key lasts that holds something until `ends`: to the end of that minute. Scripts decide what
  -- has ended, so it may be longer; and a renewal within the minute need not set it anew, which is a third of its cost.
  function lib.life_until(ends)
    return string.format('%d', math.ceil((ends - ends % MINUTE + MINUTE - now) / 1000))
  end

  -- A server without memory refuses a script's first write if it could need some, and no other. What is held must be
  -- renewed and given back all the same, so this comes first: a write that changes nothing, or only how long the mark
  -- is kept.
  function lib.without_memory()
    if sharded then call('PEXPIRE', KEYS[1], '86400000') else call('PERSIST', KEYS[1]) end
  end

  -- The resource; nil if the key is not one of ours. No error, which would leave the rest of a group half done.
  function lib.open(key)
    local r = {key = key, holders = {}, graves = {}, gone = {}, waiting = 0}
    local lines = {}
    r.kind = call('TYPE', key).ok
    if r.kind == 'string' then
      lines[1] = call('GET', key)
    elseif r.kind == 'zset' then
      lines = call('ZRANGEBYLEX', key, '-', '(l')
      local graves = call('ZRANGEBYLEX', key, '[x', '+')
      r.waiting = call('ZLEXCOUNT', key, '[l ', '(l!')
      if call('ZCARD', key) ~= #lines + #graves + 3 * r.waiting then return nil end
      for _, line in ipairs(graves) do lines[#lines + 1] = line end
    elseif r.kind ~= 'none' then
      return nil
    end
    for _, line in ipairs(lines) do
      if string.sub(line, 1, 1) == 'h' then
        local number, granted, expires, flags, id, capacity, units, lease, card =
          string.match(line, '^h (%d+) (%d+) (%d+) (%S+) (%S+) (%S+) (%S+) (%d+) (.*)$')
        if not number then return nil end
        r.capacity = capacity
        r.holders[#r.holders + 1] = {
          line = line, number = tonumber(number), granted = tonumber(granted), expires = tonumber(expires),
          confirmed = string.sub(flags, 1, 1) == 'c', evicted = string.sub(flags, 2, 2) == 'e',
          retired = string.sub(flags, 3, 3) == 'r', detached = string.sub(flags, 4, 4) == 'd',
          id = id, units = units, lease = tonumber(lease), card = card,
        }
      else
        local id, ends = string.match(line, '^[gx] (%S+) (%d+)$')
        if not ends then return nil end
        if tonumber(ends) >= now then
          r.graves[#r.graves + 1] = {line = line, id = id, ends = tonumber(ends)}
        else
          r.gone[#r.gone + 1] = line
        end
      end
    end
    return r
  end

  -- Something of a holder or grave changes: its line is written anew.
  local function rewrite(r, what)
    if what.line then r.gone[#r.gone + 1] = what.line end
    what.line = nil
  end

  local function line_of(r, what)
    if what.ends then return string.format('%s %s %016d', what.id == '*' and 'g' or 'x', what.id, what.ends) end
    local flags = (what.confirmed and 'c' or '-') .. (what.evicted and 'e' or '-')
      .. (what.retired and 'r' or '-') .. (what.detached and 'd' or '-')
    return string.format('h %016d %016d %016d %s %s %s %s %d %s', what.number, what.granted, what.expires,
      flags, what.id, r.capacity, what.units, what.lease, what.card)
  end

  local function buried(r, id)
    for _, grave in ipairs(r.graves) do
      if grave.id == id then return grave end
    end
  end

  local function bury(r, id, ends)
    local grave = buried(r, id)
    if not grave then
      grave = {id = id, ends = 0}
      r.graves[#r.graves + 1] = grave
    end
    rewrite(r, grave)
    grave.ends = math.max(grave.ends, ends)
  end

  -- Some thousand values are too many for one call from Lua.
  local function in_parts(command, key, values)
    for first = 1, #values, 1000 do
      call(command, key, unpack(values, first, math.min(first + 999, #values)))
    end
  end

  function lib.save(r)
    local ends = r.waiting > 0 and now + WAIT_LEASE or 0
    local lean = r.kind ~= 'zset' and #r.holders == 1 and #r.graves == 0 and r.waiting == 0
    local lines = {}
    for _, group in ipairs({r.holders, r.graves}) do
      for _, what in ipairs(group) do
        ends = math.max(ends, what.expires or what.ends)
        -- A string that becomes a sorted set is written as a whole.
        if not what.line or (r.kind == 'string' and not lean) then
          lines[#lines + 1] = '0'
          lines[#lines + 1] = line_of(r, what)
        end
      end
    end
    if ends == 0 then
      if r.kind ~= 'none' then call('DEL', r.key) end
    elseif lean then
      if lines[2] then call('SET', r.key, lines[2], 'PX', lib.life_until(ends)) end
    else
      if r.kind == 'string' then
        call('DEL', r.key)
      elseif r.gone[1] then
        in_parts('ZREM', r.key, r.gone)
      end
      in_parts('ZADD', r.key, lines)
      call('PEXPIRE', r.key, lib.life_until(ends))
    end
    if r.changed and buried(r, '*') then line.publish(r.key .. ':changed', '') end
  end

  local function first(r, kind)
    return call('ZRANGEBYLEX', r.key, '[' .. kind .. ' ', '(' .. kind .. '!', 'LIMIT', '0', '1')[1]
  end

  -- The waiter that its line tells of.
  local function waiting(line)
    local arrival, asked, stamp, tail, id, units, lease, card =
      string.match(line, '^l (%d+) (%d+) (%d+) ((%S+) %S+ (%S+) (%d+) (.*))$')
    return {line = line, arrival = arrival, asked = asked, stamp = stamp, tail = tail, id = id, units = units,
      lease = tonumber(lease), card = card}
  end

  local function waiter(r, id)
    local place = r.waiting > 0 and first(r, 'w ' .. id)
    return place and waiting(first(r, 'l ' .. string.sub(place, -16)))
  end

  local function lines_of(w)
    return w.line, 'o ' .. w.asked .. ' ' .. w.arrival, 'w ' .. w.id .. ' ' .. w.arrival
  end

  local function strike(r, w)
    call('ZREM', r.key, lines_of(w))
    r.waiting = r.waiting - 1
  end

  -- The same when it is saved, with all else that is removed: for one after whom the line is not looked at again.
  local function strike_last(r, w)
    for _, line in ipairs({lines_of(w)}) do
      r.gone[#r.gone + 1] = line
    end
    r.waiting = r.waiting - 1
  end

  -- Units that fit beside those held (I2).
  local function fits(r, units)
    if units == 'all' then return r.capacity == 'all' and #r.holders == 0 end
    local used = tonumber(units)
    for _, holder in ipairs(r.holders) do
      if holder.units == 'all' then return false end
      used = used + holder.units
    end
    return r.capacity == 'all' or used <= tonumber(r.capacity)
  end

  local function grant(r, holder)
    holder.number, holder.granted = tonumber(next_number()), now
    r.holders[#r.holders + 1] = holder
    r.changed = true
  end

  -- Grants to the head of the line as far as the capacity allows (I10). Often that is the last thing done.
  local function serve(r, last_thing)
    while r.waiting > 0 do
      local last = r.holders[#r.holders]
      if last and last.units == 'all' then return end
      local head = waiting(first(r, 'l'))
      if not fits(r, head.units) then return end
      if last_thing and head.units == 'all' then strike_last(r, head) else strike(r, head) end
      local lease = math.min(head.lease, FIRST_LEASE)
      grant(r, {expires = now + lease, id = head.id, units = head.units, lease = head.lease, card = head.card})
      line.tell_granted(r.key, head.id, mark, r.holders[1].number, head.stamp, math.max(now - head.asked, 0), lease)
    end
  end

  local function remove(r, place)
    rewrite(r, r.holders[place])
    table.remove(r.holders, place)
    r.changed = true
  end

  -- Lets end what has ended (I8), and grants if that made room.
  function lib.settle(r)
    local silent, ended
    for place = #r.holders, 1, -1 do
      local holder = r.holders[place]
      if holder.expires <= now then
        if not holder.confirmed then
          silent = silent or {}
          silent[string.match(holder.id, '^[^-]+')] = true
        end
        remove(r, place)
        ended = true
      end
    end
    while r.waiting > 0 do
      local asked, arrival = string.match(first(r, 'o'), '^o (%d+) (%d+)$')
      if asked + WAIT_LEASE > now then break end
      strike(r, waiting(first(r, 'l ' .. arrival)))
      ended = true
    end
    if silent and r.waiting > 0 then
      for _, line in ipairs(call('ZRANGEBYLEX', r.key, '[l ', '(l!')) do
        local w = waiting(line)
        if silent[string.match(w.id, '^[^-]+')] then strike(r, w) end
      end
    end
    if ended then serve(r) end
  end

  local function held_by(r, id)
    for place, holder in ipairs(r.holders) do
      if holder.id == id then return holder, place end
    end
  end

  -- Its owner was heard of: the first short lease becomes the full one, counted from the grant.
  local function confirm(r, holder)
    if not holder.confirmed then
      rewrite(r, holder)
      holder.confirmed = true
      holder.expires = math.max(holder.expires, holder.granted + holder.lease)
    end
  end

  -- Each of these answers with words of the reply; see apply.lua, renew.lua, evict.lua.
  function lib.claim(key, queue, tail, stamp)
    local id, capacity, units, lease, card = string.match(tail, '^(%S+) (%S+) (%S+) (%d+) (.*)$')
    local r = lib.open(key)
    if not r then return '8' end
    if buried(r, id) then return '3' end
    lib.settle(r)

    local function busy(ahead)
      lib.save(r)
      local soonest
      for _, holder in ipairs(r.holders) do soonest = math.min(soonest or holder.expires, holder.expires) end
      return string.format('2 %d %d', ahead, soonest and soonest - now or FIRST_LEASE)
    end
    local function granted(holder)
      lib.save(r)
      return string.format('1 %d %d %d', holder.number, r.holders[1].number, holder.expires - now)
    end

    local holder = held_by(r, id)
    if holder then
      if holder.retired then
        lib.save(r)
        return '3'
      end
      confirm(r, holder)
      -- With wait=n, WAIT counts from the last write of this connection, so there must be one.
      rewrite(r, holder)
      return granted(holder)
    end
    if #r.holders == 0 and r.waiting == 0 then r.capacity = capacity end
    if r.capacity ~= capacity
      or capacity ~= 'all' and (units == 'all' or tonumber(units) > tonumber(capacity)) then
      lib.save(r)
      return '4 ' .. r.capacity
    end
    local w = waiter(r, id)
    if w then
      local ahead = call('ZRANK', r.key, w.line) - call('ZLEXCOUNT', r.key, '-', '(l')
      -- Not only after a while: also if the clock was set back.
      if math.abs(now - w.asked) >= PLACE_KEPT then
        call('ZREM', r.key, w.line, 'o ' .. w.asked .. ' ' .. w.arrival)
        line.place(key, w.arrival, id, w.tail, stamp)
      end
      return busy(ahead)
    end
    if r.waiting == 0 and fits(r, units) then
      holder = {expires = now + lease, confirmed = true, id = id, units = units, lease = tonumber(lease), card = card}
      grant(r, holder)
      return granted(holder)
    end
    if not queue then return busy(r.waiting) end
    r.waiting = r.waiting + 1
    -- Saved before: what it enters is a sorted set.
    local reply = busy(r.waiting - 1)
    line.enter(key, id, tail, stamp)
    return reply
  end

  function lib.leave(key, id, bury_until, hold)
    lib.without_memory()
    local r = lib.open(key)
    if not r then return '7' end
    if bury_until ~= '' and tonumber(bury_until) >= now then bury(r, id, tonumber(bury_until)) end
    lib.settle(r)
    local answer = '7'
    local holder, place = held_by(r, id)
    local w = not holder and waiter(r, id)
    if holder and not holder.retired then
      answer = '5'
      -- Never longer than that from now: the clock may have gone back since the grant.
      local kept_until = math.min(holder.granted, now) + hold
      if kept_until > now and not holder.evicted then
        rewrite(r, holder)
        holder.retired, holder.detached, holder.confirmed = true, true, true
        holder.expires = kept_until
      else
        remove(r, place)
        serve(r, true)
      end
    elseif w then
      answer = '6'
      strike(r, w)
      serve(r, true)
    end
    lib.save(r)
    return answer
  end

  function lib.renew(key, id, lease, lower_to, detach)
    local r = lib.open(key)
    if not r then return '2' end
    lib.settle(r)
    local holder = held_by(r, id)
    if not holder or holder.retired then
      lib.save(r)
      return '2'
    end
    confirm(r, holder)
    if holder.evicted then
      lib.save(r)
      return '3'
    end
    rewrite(r, holder)
    holder.expires = math.max(holder.expires, now + lease)
    holder.detached = holder.detached or detach
    local remaining = holder.expires - now
    if lower_to ~= '' and (holder.units == 'all' or tonumber(lower_to) < tonumber(holder.units)) then
      holder.units = lower_to
      r.changed = true
      serve(r, true)
    end
    lib.save(r)
    return string.format('1 %d', remaining)
  end

  function lib.evict(key, id, number, at_once)
    lib.without_memory()
    local r = lib.open(key)
    if not r then return '2' end
    lib.settle(r)
    local holder, place = held_by(r, id)
    local found = holder and holder.number == number
    if found and (at_once or holder.retired) then
      remove(r, place)
      serve(r, true)
    elseif found then
      rewrite(r, holder)
      holder.evicted = true
      r.changed = true
    end
    lib.save(r)
    return found and '1' or '2'
  end

  function lib.tell(key, length)
    local r = lib.open(key)
    if not r then return end
    lib.settle(r)
    bury(r, '*', now + length)
    lib.save(r)
  end

  return lib
end
