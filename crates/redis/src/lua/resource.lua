-- One resource: who holds it, who waits. The twin of core/src/model/resource.rs; made only when it is needed.
--
-- A resource is one key. Its lines:
--   h <number> <granted> <expires> <flags> <id> <capacity> <units> <lease> <later> <card>      a holder
--   x <id> <until>                                          left; late copies of its claim do nothing until then
--   g * <until>                                             changes are published until then
-- One line, and nobody waits: a string, which is the head: <lasts> <oldest> <others> and that line. Else a list: the head
-- with the first line, the other lines, then two elements for each who waits, in order of arrival:
--   <id>
--   <asked> <arrival> <stamp> <capacity> <units> <lease> <later> <card>
-- The key lasts until <lasts> or longer; nobody who waits asked before <oldest>; <others> is how many lines follow the head's,
-- in six digits. Holders are in order of their numbers. A stamp has 20 digits. Numbers and times (microseconds of the server's clock) have 16
-- digits, so that their order is that of their text and the beginning of a head has fixed places. Flags: c confirmed, e
-- evicted, r retired, d detached, or a dash. <later> is a dash: room for words of later versions.
-- Invariant: what is stored is settled but for the passing of time, and it has a time to live that covers it.
-- Invariant: no key goes that is then written again. A node whose slot begins to move refuses to make a key, also one that
-- it had a moment ago, and undoes nothing. A list keeps its head, and a string that becomes a list is made beside it, which
-- is where it is refused.

-- A message is a hint: that it cannot be sent must not undo what it tells of.
local function publish(channel)
  redis.pcall(sharded and 'SPUBLISH' or 'PUBLISH', channel, '')
end

-- A server without memory refuses a script's first write if it could need some, and no other. What is held must be
-- renewed and given back all the same, and places in line kept, so this comes first: a write that changes nothing, and
-- that is not replicated.
local needs_none
local function without_memory()
  if not needs_none then call('PERSIST', KEYS[1]) end
  needs_none = true
end

local function library()
  local FIRST_LEASE, WAIT_LEASE, PLACE_KEPT, MINUTE = 3000000, 15000000, 5000000, 60000000
  local lib, now, opened = {}, tonumber(now_text), {}

  local function thing_of(line)
    local number, granted, expires, flags, id, capacity, units, lease, card =
      string.match(line, '^h (%d+) (%d+) (%d+) (%S+) (%S+) (%S+) (%S+) (%d+) (%S+ .*)$')
    if number then
      return {
        line = line, number = tonumber(number), granted = tonumber(granted), expires = tonumber(expires),
        confirmed = string.sub(flags, 1, 1) == 'c', evicted = string.sub(flags, 2, 2) == 'e',
        retired = string.sub(flags, 3, 3) == 'r', detached = string.sub(flags, 4, 4) == 'd',
        id = id, units = units, lease = tonumber(lease), card = card,
      }, capacity
    end
    local id, ends = string.match(line, '^[gx] (%S+) (%d+)$')
    return ends and {line = line, id = id, ends = tonumber(ends)}
  end

  -- The resource; nil if the key is not one of ours. No error, which would leave the rest of a group half done. A list is
  -- read once for all of a group, since many may hold it.
  function lib.open(key)
    local r = opened[key]
    if r then return r end
    r = {key = key, holders = {}, graves = {}, places = {}, others = 0, waiting = 0, lasts = 0, oldest = now}
    r.kind = call('TYPE', key).ok
    if r.kind == 'none' then return r end
    if r.kind == 'string' then
      r.head = call('GET', key)
    elseif r.kind == 'list' then
      r.head = call('LINDEX', key, '0')
    else
      return nil
    end
    local lasts, oldest, others, line = string.match(r.head, '^(%d+) (%d+) (%d+) (.*)$')
    if not line or #lasts ~= 16 or #oldest ~= 16 or #others ~= 6 then return nil end
    r.lasts, r.oldest, r.others = tonumber(lasts), tonumber(oldest), tonumber(others)
    local lines = {}
    if r.kind == 'list' then
      if r.others > 0 then lines = call('LRANGE', key, '1', r.others) end
      r.waiting = (call('LLEN', key) - 1 - r.others) / 2
      if r.waiting < 0 or r.waiting % 1 ~= 0 then return nil end
    end
    if #lines ~= r.others then return nil end
    table.insert(lines, 1, line)
    for place, text in ipairs(lines) do
      local thing, capacity = thing_of(text)
      if not thing then return nil end
      r.places[place] = thing
      if capacity then
        r.capacity = capacity
        r.holders[#r.holders + 1] = thing
      elseif thing.ends >= now then
        r.graves[#r.graves + 1] = thing
      else
        thing.gone = true
      end
    end
    if r.kind == 'list' then opened[key] = r end
    return r
  end

  local function line_of(r, what)
    if what.line then return what.line end
    if what.ends then return string.format('%s %s %016d', what.id == '*' and 'g' or 'x', what.id, what.ends) end
    local flags = (what.confirmed and 'c' or '-') .. (what.evicted and 'e' or '-')
      .. (what.retired and 'r' or '-') .. (what.detached and 'd' or '-')
    return string.format('h %016d %016d %016d %s %s %s %s %d %s', what.number, what.granted, what.expires,
      flags, what.id, r.capacity, what.units, what.lease, what.card)
  end

  -- Something of a holder or grave changes: its line is written anew.
  local function rewrite(what)
    what.line = nil
  end

  local function add(r, what)
    r.places[#r.places + 1] = what
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
      add(r, grave)
    end
    rewrite(grave)
    grave.ends = math.max(grave.ends, ends)
  end

  -- Appends to a list, and says how long it is then. Some thousand values are too many for one call from Lua.
  local function append(key, values)
    local length
    for first = 1, #values, 1000 do
      length = call('RPUSH', key, unpack(values, first, math.min(first + 999, #values)))
    end
    return length
  end

  -- The lines of a list as they are now, after the head, and who comes to wait. An empty element is one that goes.
  local function save_list(r, head)
    local new, holes = {}, false
    for place, what in ipairs(r.places) do
      local stands = place <= r.others + 1
      if place > 1 and stands and (what.gone or what == head) then
        call('LSET', r.key, place - 1, '')
        holes = true
      elseif place > 1 and stands and not what.line then
        call('LSET', r.key, place - 1, line_of(r, what))
      elseif not stands and not what.gone and what ~= head then
        new[#new + 1] = line_of(r, what)
      end
    end
    if new[1] and r.waiting > 0 then
      local next = call('LINDEX', r.key, r.others + 1)
      for _, line in ipairs(new) do call('LINSERT', r.key, 'BEFORE', next, line) end
    else
      append(r.key, new)
    end
    if holes then call('LREM', r.key, '0', '') end
    if r.enters then call('RPUSH', r.key, unpack(r.enters)) end
  end

  -- The list is what it would be if it were read again.
  local function as_written(r, kept, head)
    for _, what in ipairs(kept) do what.line = what.line or line_of(r, what) end
    if r.enters then r.waiting = r.waiting + 1 end
    r.places, r.others, r.head = kept, #kept - 1, head
    r.enters, r.asked = nil, nil
  end

  -- Writes what has changed, and nothing if nothing has. Only who comes to wait needs memory, and who is granted something
  -- new: that has taken its number by now.
  function lib.save(r)
    local ends, kept, changed = (r.waiting > 0 or r.enters) and now + WAIT_LEASE or 0, {}, r.enters or r.asked
    for place, what in ipairs(r.places) do
      if not what.gone then
        ends = math.max(ends, what.expires or what.ends)
        kept[#kept + 1] = what
      end
      if what.gone or not what.line then changed = true end
    end
    local head = kept[1]
    if changed and not r.enters then without_memory() end
    if not head then
      if r.kind ~= 'none' then call('DEL', r.key) end
      opened[r.key] = nil
    elseif changed then
      local longer = ends > r.lasts
      if longer then r.lasts = ends + MINUTE end
      local text = string.format('%016d %016d %06d %s', r.lasts, r.oldest, #kept - 1, line_of(r, head))
      local life = string.format('%d', math.ceil((r.lasts - now) / 1000) + 1000)
      if r.kind == 'list' then
        save_list(r, head)
        if text ~= r.head then call('LSET', r.key, '0', text) end
        if longer then call('PEXPIRE', r.key, life) end
        as_written(r, kept, text)
      elseif #kept == 1 and not r.enters then
        call('SET', r.key, text, 'PX', life)
      else
        local beside, all = r.key .. ':new', {text}
        for place = 2, #kept do all[place] = line_of(r, kept[place]) end
        for _, element in ipairs(r.enters or {}) do all[#all + 1] = element end
        -- More, if somebody failed here who may not rename.
        if append(beside, all) > #all then
          call('DEL', beside)
          append(beside, all)
        end
        call('PEXPIRE', beside, life)
        call('RENAME', beside, r.key)
      end
    end
    if r.changed and buried(r, '*') then publish(r.key .. ':changed') end
    r.changed = nil
  end

  -- The waiter whose two elements these are.
  local function waiting(id, text)
    local asked, arrival, stamp, tail, units, lease, card =
      string.match(text, '^(%d+) (%d+) (%d+)( %S+ (%S+) (%d+) (%S+ .*))$')
    return {id = id, text = text, asked = tonumber(asked), arrival = arrival, stamp = stamp, tail = tail, units = units,
      lease = tonumber(lease), card = card}
  end

  -- One who waits, and how many wait before it.
  local function waiter(r, id)
    local place = r.waiting > 0 and call('LPOS', r.key, id)
    if not place then return nil end
    return waiting(id, call('LINDEX', r.key, place + 1)), (place - r.others - 1) / 2, place
  end

  -- Gives up one who waits, whose id has this place in the list: once the holes are gone.
  local function strike(r, place)
    call('LSET', r.key, place, '')
    call('LSET', r.key, place + 1, '')
    r.waiting = r.waiting - 1
  end

  local function close_holes(r)
    call('LREM', r.key, '0', '')
  end

  -- Takes the first out of the line. What another asks for may be the same text, but stands behind it.
  local function take_first(r, w)
    call('LREM', r.key, '1', w.id)
    call('LREM', r.key, '1', w.text)
    r.waiting = r.waiting - 1
  end

  local function count_of(units)
    return units == 'all' and math.huge or tonumber(units)
  end

  -- Units that fit beside those held (I2), which are added up once.
  local function fits(r, units)
    if units == 'all' then return r.capacity == 'all' and #r.holders == 0 end
    if not r.used then
      r.used = 0
      for _, holder in ipairs(r.holders) do r.used = r.used + count_of(holder.units) end
    end
    local used = r.used + units
    return r.capacity == 'all' and used < math.huge or r.capacity ~= 'all' and used <= tonumber(r.capacity)
  end

  local function grant(r, holder)
    if r.used then r.used = r.used + count_of(holder.units) end
    holder.number, holder.granted = tonumber(next_number()), now
    r.holders[#r.holders + 1] = holder
    add(r, holder)
    r.changed = true
  end

  -- Grants to the head of the line as far as the capacity allows (I10). Who asks just now hears of it by its answer alone: a
  -- message could come after it has left again, and would look like a grant that nobody waits for.
  local function serve(r, asks)
    while r.waiting > 0 do
      local last = r.holders[#r.holders]
      if last and last.units == 'all' then return end
      local head = waiting(unpack(call('LRANGE', r.key, r.others + 1, r.others + 2)))
      if not fits(r, head.units) then return end
      take_first(r, head)
      local lease = math.min(head.lease, FIRST_LEASE)
      grant(r, {expires = now + lease, id = head.id, units = head.units, lease = head.lease, card = head.card})
      if head.id ~= asks then
        local floor = string.format('%d', r.holders[1].number)
        tell_granted(r.key, head.id, mark, floor, head.stamp, math.max(now - head.asked, 0), lease)
      end
    end
  end

  local function remove(r, place)
    r.holders[place].gone = true
    table.remove(r.holders, place)
    r.changed, r.used = true, nil
  end

  -- Lets end what has ended (I8), and grants if that made room.
  function lib.settle(r, asks)
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
    if r.waiting > 0 and (silent or r.oldest > now or r.oldest + WAIT_LEASE <= now) then
      local all, oldest, holes = call('LRANGE', r.key, r.others + 1, '-1'), now, false
      for nth = 1, #all, 2 do
        local w = waiting(all[nth], all[nth + 1])
        if w.asked + WAIT_LEASE <= now or silent and silent[string.match(w.id, '^[^-]+')] then
          if not holes then without_memory() end
          strike(r, r.others + nth)
          holes = true
        else
          oldest = math.min(oldest, w.asked)
        end
      end
      if holes then
        close_holes(r)
        ended = true
      end
      -- Written down also if nothing else is: else all would be looked at again with every question.
      r.asked = r.asked or holes or oldest ~= r.oldest
      r.oldest = oldest
    elseif r.waiting == 0 then
      r.oldest = now
    end
    if ended then serve(r, asks) end
  end

  local function held_by(r, id)
    for place, holder in ipairs(r.holders) do
      if holder.id == id then return holder, place end
    end
  end

  -- Its owner was heard of: the first short lease becomes the full one, counted from the grant.
  local function confirm(holder)
    if not holder.confirmed then
      rewrite(holder)
      holder.confirmed = true
      holder.expires = math.max(holder.expires, holder.granted + holder.lease)
    end
  end

  -- Each of these answers with words of the reply; see apply.lua, renew.lua, evict.lua.
  function lib.claim(key, queue, id, tail, stamp, must_write)
    local capacity, units, lease, card = string.match(tail, '^ (%S+) (%S+) (%d+) (%S+ .*)$')
    local r = lib.open(key)
    if not r then return '8' end
    if buried(r, id) then return '3' end
    lib.settle(r, id)

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
      confirm(holder)
      -- With wait=n, WAIT counts from the last write of this connection, so there must be one.
      if must_write then r.head = nil rewrite(holder) end
      return granted(holder)
    end
    if #r.holders == 0 and r.waiting == 0 then r.capacity = capacity end
    if r.capacity ~= capacity
      or capacity ~= 'all' and (units == 'all' or tonumber(units) > tonumber(capacity)) then
      lib.save(r)
      return '4 ' .. r.capacity
    end
    local w, ahead, place = waiter(r, id)
    if w then
      -- Not only after a while: also if the clock was set back.
      if math.abs(now - w.asked) >= PLACE_KEPT then
        without_memory()
        call('LSET', key, place + 1, now_text .. ' ' .. w.arrival .. ' ' .. stamp .. w.tail)
        r.asked = true
      end
      return busy(ahead)
    end
    if r.waiting == 0 and fits(r, units) then
      holder = {expires = now + lease, confirmed = true, id = id, units = units, lease = tonumber(lease), card = card}
      grant(r, holder)
      return granted(holder)
    end
    if queue then r.enters = {id, now_text .. ' ' .. now_text .. ' ' .. stamp .. tail} end
    return busy(r.waiting)
  end

  function lib.leave(key, id, bury_until, hold)
    without_memory()
    local r = lib.open(key)
    if not r then return '7' end
    if bury_until ~= '' and tonumber(bury_until) >= now then bury(r, id, tonumber(bury_until)) end
    lib.settle(r)
    local answer = '7'
    local holder, place = held_by(r, id)
    local w, at
    if not holder then w, place, at = waiter(r, id) end
    if holder and not holder.retired then
      answer = '5'
      -- Never longer than that from now: the clock may have gone back since the grant.
      local kept_until = math.min(holder.granted, now) + hold
      if kept_until > now and not holder.evicted then
        rewrite(holder)
        holder.retired, holder.detached, holder.confirmed = true, true, true
        holder.expires = kept_until
      else
        remove(r, place)
        serve(r)
      end
    elseif w then
      answer = '6'
      strike(r, at)
      close_holes(r)
      serve(r)
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
    confirm(holder)
    if holder.evicted then
      lib.save(r)
      return '3'
    end
    rewrite(holder)
    holder.expires = math.max(holder.expires, now + lease)
    holder.detached = holder.detached or detach
    local remaining = holder.expires - now
    if lower_to ~= '' and (holder.units == 'all' or tonumber(lower_to) < tonumber(holder.units)) then
      holder.units = lower_to
      r.changed, r.used = true, nil
      serve(r)
    end
    lib.save(r)
    return string.format('1 %d', remaining)
  end

  function lib.evict(key, id, number, at_once)
    without_memory()
    local r = lib.open(key)
    if not r then return '2' end
    lib.settle(r)
    local holder, place = held_by(r, id)
    local found = holder and holder.number == number
    if found and (at_once or holder.retired) then
      remove(r, place)
      serve(r)
    elseif found then
      rewrite(holder)
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
