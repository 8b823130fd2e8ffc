-- One resource: who holds it, who waits. The twin of core/src/model/resource.rs; made only when it is needed.
--
-- A resource is one key. Held by one, with nobody in line: a string, the holder's line. Else a sorted set of
-- lines, all with score 0 and so in the order of their bytes:
--   g <id> <until>                                              left; late copies of its claim do nothing until then
--   g * <until>                                                 changes are published until then
--   h <number> <granted> <expires> <flags> <id> <capacity> <units> <lease> <card>      holder, by number
--   i <asked> <id>                                              when a waiter last asked, oldest first
--   q <arrival> <id>                                            the line, in order of arrival
--   w <id> <arrival> <asked> <stamp> <units> <lease> <card>     waiter
-- Numbers and times (microseconds of the server's clock) have 16 digits, so that their order is that of their text and
-- the beginning of a holder's line has fixed places. Flags: c confirmed, e evicted, r retired, d detached, or a dash.
-- Invariant: what is stored is settled but for the passing of time, and it has a time to live that covers it.
local function library()
  local FIRST_LEASE, WAIT_LEASE, PLACE_KEPT = 3000000, 15000000, 5000000
  local lib, now, sharded = {}, tonumber(now_text), string.byte(KEYS[1], -6) == 125

  -- A message is a hint: that it cannot be sent must not undo what it tells of.
  function lib.publish(channel, message)
    redis.pcall(sharded and 'SPUBLISH' or 'PUBLISH', channel, message)
  end

  -- A server without memory refuses a script's first write if it could need some, and no other. What is held must be
  -- renewed and given back all the same, so this comes first: a write that changes nothing, or only how long the mark
  -- is kept.
  function lib.without_memory()
    if sharded then call('PEXPIRE', KEYS[1], '86400000') else call('PERSIST', KEYS[1]) end
  end

  local function full(number)
    return string.format('%016d', number)
  end

  -- The resource; nil if the key is not one of ours. No error, which would leave the rest of a group half done.
  function lib.open(key)
    local r = {key = key, holders = {}, graves = {}, gone = {}, new = {}, waiting = 0}
    local lines = {}
    r.kind = call('TYPE', key).ok
    if r.kind == 'string' then
      lines[1] = call('GET', key)
    elseif r.kind == 'zset' then
      lines = call('ZRANGEBYLEX', key, '-', '(i')
      r.waiting = (call('ZCARD', key) - #lines) / 3
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
        local id, ends = string.match(line, '^g (%S+) (%d+)$')
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
    if what.ends then return string.format('g %s %016d', what.id, what.ends) end
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

  function lib.save(r)
    local ends = r.waiting > 0 and now + WAIT_LEASE or 0
    local lean = r.kind ~= 'zset' and #r.holders == 1 and #r.graves == 0 and r.waiting == 0
    local lines = r.new
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
      if lines[2] then call('SET', r.key, lines[2], 'PX', life_until(ends)) end
    else
      if r.kind == 'string' then
        call('DEL', r.key)
      elseif r.gone[1] then
        call('ZREM', r.key, unpack(r.gone))
      end
      if lines[1] then call('ZADD', r.key, unpack(lines)) end
      call('PEXPIRE', r.key, life_until(ends))
    end
    if r.changed and buried(r, '*') then lib.publish(r.key .. ':changed', '') end
  end

  local function first(r, kind)
    return call('ZRANGEBYLEX', r.key, '[' .. kind .. ' ', '(' .. kind .. '!', 'LIMIT', '0', '1')[1]
  end

  local function waiter(r, id)
    if r.waiting == 0 then return nil end
    local line = call('ZRANGEBYLEX', r.key, '[w ' .. id .. ' ', '(w ' .. id .. '!')[1]
    if not line then return nil end
    local arrival, asked, stamp, units, lease, card =
      string.match(line, '^w %S+ (%d+) (%d+) (%d+) (%S+) (%d+) (.*)$')
    return {line = line, id = id, arrival = arrival, asked = asked, stamp = stamp, units = units,
      lease = tonumber(lease), card = card}
  end

  local function lines_in_line(w)
    return w.line, 'q ' .. w.arrival .. ' ' .. w.id, 'i ' .. w.asked .. ' ' .. w.id
  end

  local function strike(r, w)
    call('ZREM', r.key, lines_in_line(w))
    r.waiting = r.waiting - 1
  end

  -- The same when it is saved, with all else that is removed: for one after whom the line is not looked at again.
  local function strike_last(r, w)
    for _, line in ipairs({lines_in_line(w)}) do
      r.gone[#r.gone + 1] = line
    end
    r.waiting = r.waiting - 1
  end

  -- Its lines, each after its score.
  local function lines_of(w)
    return '0', 'w ' .. w.id .. ' ' .. w.arrival .. ' ' .. w.asked .. ' ' .. w.stamp .. ' ' .. w.units .. ' '
      .. string.format('%d', w.lease) .. ' ' .. w.card, '0', 'i ' .. w.asked .. ' ' .. w.id
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
      local head = waiter(r, string.match(first(r, 'q'), '^q %d+ (%S+)$'))
      if not fits(r, head.units) then return end
      if last_thing and head.units == 'all' then strike_last(r, head) else strike(r, head) end
      local lease = math.min(head.lease, FIRST_LEASE)
      grant(r, {expires = now + lease, id = head.id, units = head.units, lease = head.lease, card = head.card})
      local keeper = string.match(head.id, '^[^-]+')
      local channel = (sharded and r.key .. ':' or string.sub(KEYS[1], 1, -5)) .. 'k:' .. keeper
      lib.publish(channel, string.format('%s %s %d %s %d %d %s', head.id, mark, r.holders[1].number,
        head.stamp, math.max(now - head.asked, 0), lease, r.key))
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
      local asked, id = string.match(first(r, 'i'), '^i (%d+) (%S+)$')
      if asked + WAIT_LEASE > now then break end
      strike(r, waiter(r, id))
      ended = true
    end
    if silent and r.waiting > 0 then
      for _, line in ipairs(call('ZRANGEBYLEX', r.key, '[q ', '(q!')) do
        local id = string.match(line, '^q %d+ (%S+)$')
        if silent[string.match(id, '^[^-]+')] then strike(r, waiter(r, id)) end
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
      local ahead = call('ZRANK', r.key, 'q ' .. w.arrival .. ' ' .. id)
        - call('ZLEXCOUNT', r.key, '-', '(q')
      -- Not only after a while: also if the clock was set back.
      if math.abs(now - w.asked) >= PLACE_KEPT then
        call('ZREM', r.key, w.line, 'i ' .. w.asked .. ' ' .. id)
        w.asked, w.stamp = now_text, stamp
        r.new = {lines_of(w)}
      end
      return busy(ahead)
    end
    if r.waiting == 0 and fits(r, units) then
      holder = {expires = now + lease, confirmed = true, id = id, units = units, lease = tonumber(lease), card = card}
      grant(r, holder)
      return granted(holder)
    end
    if not queue then return busy(r.waiting) end
    local arrival = now
    if r.waiting > 0 then
      local last = call('ZREVRANGEBYLEX', r.key, '(q!', '[q ', 'LIMIT', '0', '1')[1]
      arrival = math.max(now, string.match(last, '^q (%d+) ') + 1)
    end
    w = {id = id, arrival = full(arrival), asked = now_text, stamp = stamp, units = units, lease = tonumber(lease),
      card = card}
    r.new = {'0', 'q ' .. w.arrival .. ' ' .. id, lines_of(w)}
    r.waiting = r.waiting + 1
    return busy(r.waiting - 1)
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
