-- One resource: its holders, waiters and tombstones. The twin of core/src/model/resource.rs; made only when it is
-- needed.
--
-- A resource is one key. Its rows:
--   h <number> <granted> <expires> <flags> <id> <capacity> <units> <lease> <rare> <details>   a holder
--   x <id> <until>                                          a tombstone: late copies of its claim do nothing until then
--   g * <until>                                             scripts publish changes until then
-- A resource with one row and no waiters is a string, the head: <lasts> <oldest> <others> and that row. All others are
-- a list: the head with the first row, the other rows, then two elements for each waiter, in order of arrival:
--   <id>
--   <asked> <arrival> <stamp> <capacity> <units> <lease> <rare> <details>
-- The key lasts at least until <lasts>. No waiter last asked before <oldest>. <others> is how many rows follow the
-- head's, in six digits. Holders are in order of their numbers. A stamp has 20 digits. Numbers and times (microseconds
-- of the server's clock) have 16 digits: their order is that of their text, and each part of a head begins at a fixed
-- byte. Flags: c confirmed, e evicted, r retired, d detached, or a dash. <rare> is a dash for most: see
-- codec/rarities.rs. Holders whose numbers were raised may be out of order.
-- Invariant: a stored resource is settled but for the passing of time, and its key lives as long as anything in it.
-- Invariant: no script removes a key and then writes it again. A node whose slot begins to move refuses to make a key,
-- also one that it had a moment ago, and undoes nothing. So a list keeps its head, and a string becomes a list under
-- another key first, where the node refuses it before anything has changed.

-- A message is a hint: a failure to send it must not undo the change.
local function publish(channel)
  redis.pcall(sharded and 'SPUBLISH' or 'PUBLISH', channel, '')
end

-- A server without memory refuses a script at its first write if that command could need memory, and no later one.
-- Renewals, leaves and waiters that ask again must be served all the same, so this comes first: a write that changes
-- nothing, and that is not replicated.
local needs_none
local function without_memory()
  if not needs_none then call('PERSIST', KEYS[1]) end
  needs_none = true
end

local function library()
  local FIRST_LEASE, WAIT_LEASE, POSITION_KEPT, MINUTE = 3000000, 15000000, 5000000, 60000000
  local lib, now, opened = {}, tonumber(now_text), {}

  local function parse_row(text)
    local number, granted, expires, flags, id, capacity, units, lease, details =
      string.match(text, '^h (%d+) (%d+) (%d+) (%S+) (%S+) (%S+) (%S+) (%d+) (%S+ .*)$')
    if number then
      return {
        text = text, number = tonumber(number), granted = tonumber(granted), expires = tonumber(expires),
        confirmed = string.sub(flags, 1, 1) == 'c', evicted = string.sub(flags, 2, 2) == 'e',
        retired = string.sub(flags, 3, 3) == 'r', detached = string.sub(flags, 4, 4) == 'd',
        id = id, units = units, lease = tonumber(lease), details = details,
      }, capacity
    end
    local id, ends = string.match(text, '^[gx] (%S+) (%d+)$')
    return ends and {text = text, id = id, ends = tonumber(ends)}
  end

  -- Puts the holders in order of their numbers, of which one may have been raised.
  local function in_order(r)
    for index = 2, #r.holders do
      if r.holders[index].number < r.holders[index - 1].number then
        return table.sort(r.holders, function(a, b) return a.number < b.number end)
      end
    end
  end

  -- The resource; nil if the key holds something else. Not an error, which would leave the rest of a group undone. A
  -- list is read once for all entries of a group, since it may be long.
  function lib.open(key)
    local r = opened[key]
    if r then return r end
    r = {key = key, holders = {}, tombstones = {}, rows = {}, others = 0, waiting = 0, lasts = 0, oldest = now}
    r.kind = call('TYPE', key).ok
    if r.kind == 'none' then return r end
    if r.kind == 'string' then
      r.head = call('GET', key)
    elseif r.kind == 'list' then
      r.head = call('LINDEX', key, '0')
    else
      return nil
    end
    local lasts, oldest, others, first = string.match(r.head, '^(%d+) (%d+) (%d+) (.*)$')
    if not first or #lasts ~= 16 or #oldest ~= 16 or #others ~= 6 then return nil end
    r.lasts, r.oldest, r.others = tonumber(lasts), tonumber(oldest), tonumber(others)
    local rows = {}
    if r.kind == 'list' then
      if r.others > 0 then rows = call('LRANGE', key, '1', r.others) end
      r.waiting = (call('LLEN', key) - 1 - r.others) / 2
      if r.waiting < 0 or r.waiting % 1 ~= 0 then return nil end
    end
    if #rows ~= r.others then return nil end
    table.insert(rows, 1, first)
    for index, text in ipairs(rows) do
      local row, capacity = parse_row(text)
      if not row then return nil end
      r.rows[index] = row
      if capacity then
        r.capacity = capacity
        r.holders[#r.holders + 1] = row
      elseif row.ends >= now then
        r.tombstones[#r.tombstones + 1] = row
      else
        row.gone = true
      end
    end
    in_order(r)
    if r.kind == 'list' then opened[key] = r end
    return r
  end

  local function row_text(r, row)
    if row.text then return row.text end
    if row.ends then return string.format('%s %s %016d', row.id == '*' and 'g' or 'x', row.id, row.ends) end
    local flags = (row.confirmed and 'c' or '-') .. (row.evicted and 'e' or '-')
      .. (row.retired and 'r' or '-') .. (row.detached and 'd' or '-')
    return string.format('h %016d %016d %016d %s %s %s %s %d %s', row.number, row.granted, row.expires,
      flags, row.id, r.capacity, row.units, row.lease, row.details)
  end

  -- A holder or tombstone changes: its row must be written again.
  local function rewrite(row)
    row.text = nil
  end

  local function add(r, row)
    r.rows[#r.rows + 1] = row
  end

  local function tombstone_of(r, id)
    for _, tombstone in ipairs(r.tombstones) do
      if tombstone.id == id then return tombstone end
    end
  end

  -- Adds a tombstone, or has the one that is there last longer. The id '*' is for the row that has changes published.
  local function add_tombstone(r, id, ends)
    local tombstone = tombstone_of(r, id)
    if not tombstone then
      tombstone = {id = id, ends = 0}
      r.tombstones[#r.tombstones + 1] = tombstone
      add(r, tombstone)
    end
    rewrite(tombstone)
    tombstone.ends = math.max(tombstone.ends, ends)
  end

  -- Appends to a list and returns its new length. A call from Lua cannot have many thousand arguments.
  local function append(key, values)
    local length
    for first = 1, #values, 1000 do
      length = call('RPUSH', key, unpack(values, first, math.min(first + 999, #values)))
    end
    return length
  end

  -- Writes the rows of a list behind its head, and the new waiter. Elements that go are made empty first.
  local function save_list(r, head)
    local new, emptied = {}, false
    for index, row in ipairs(r.rows) do
      local stored = index <= r.others + 1
      if index > 1 and stored and (row.gone or row == head) then
        call('LSET', r.key, index - 1, '')
        emptied = true
      elseif index > 1 and stored and not row.text then
        call('LSET', r.key, index - 1, row_text(r, row))
      elseif not stored and not row.gone and row ~= head then
        new[#new + 1] = row_text(r, row)
      end
    end
    if new[1] and r.waiting > 0 then
      local next = call('LINDEX', r.key, r.others + 1)
      for _, row in ipairs(new) do call('LINSERT', r.key, 'BEFORE', next, row) end
    else
      append(r.key, new)
    end
    if emptied then call('LREM', r.key, '0', '') end
    if r.enters then call('RPUSH', r.key, unpack(r.enters)) end
  end

  -- Brings a list that was written to the state in which it would be read again.
  local function as_written(r, kept, head)
    for _, row in ipairs(kept) do row.text = row.text or row_text(r, row) end
    if r.enters then r.waiting = r.waiting + 1 end
    r.rows, r.others, r.head = kept, #kept - 1, head
    r.enters, r.asked = nil, nil
  end

  -- Writes row has changed. Only a new waiter and a new grant need memory, and a grant has written its number by now.
  function lib.save(r)
    local ends, kept, changed = (r.waiting > 0 or r.enters) and now + WAIT_LEASE or 0, {}, r.enters or r.asked
    for index, row in ipairs(r.rows) do
      if not row.gone then
        ends = math.max(ends, row.expires or row.ends)
        kept[#kept + 1] = row
      end
      if row.gone or not row.text then changed = true end
    end
    local head = kept[1]
    if changed and not r.enters then without_memory() end
    if not head then
      if r.kind ~= 'none' then call('DEL', r.key) end
      opened[r.key] = nil
    elseif changed then
      local longer = ends > r.lasts
      if longer then r.lasts = ends + MINUTE end
      local text = string.format('%016d %016d %06d %s', r.lasts, r.oldest, #kept - 1, row_text(r, head))
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
        for index = 2, #kept do all[index] = row_text(r, kept[index]) end
        for _, element in ipairs(r.enters or {}) do all[#all + 1] = element end
        -- The key has more elements if a user failed here before that may not rename.
        if append(beside, all) > #all then
          call('DEL', beside)
          append(beside, all)
        end
        call('PEXPIRE', beside, life)
        call('RENAME', beside, r.key)
      end
    end
    if r.changed and tombstone_of(r, '*') then publish(r.key .. ':changed') end
    r.changed = nil
  end

  -- The waiter whose two elements these are.
  local function parse_waiter(id, text)
    local asked, arrival, stamp, tail, units, lease, details =
      string.match(text, '^(%d+) (%d+) (%d+)( %S+ (%S+) (%d+) (%S+ .*))$')
    return {id = id, text = text, asked = tonumber(asked), arrival = arrival, stamp = stamp, tail = tail, units = units,
      lease = tonumber(lease), details = details}
  end

  -- The waiter with this id, how many are ahead of it, and the index of its first element.
  local function waiter(r, id)
    local index = r.waiting > 0 and call('LPOS', r.key, id)
    if not index then return nil end
    return parse_waiter(id, call('LINDEX', r.key, index + 1)), (index - r.others - 1) / 2, index
  end

  -- Empties the elements of the waiter whose id has this index; remove_empty() removes them.
  local function empty_waiter(r, index)
    call('LSET', r.key, index, '')
    call('LSET', r.key, index + 1, '')
    r.waiting = r.waiting - 1
  end

  local function remove_empty(r)
    call('LREM', r.key, '0', '')
  end

  -- Removes the first waiter. The claim of another waiter may be the same text, but comes later in the list.
  local function take_first(r, w)
    call('LREM', r.key, '1', w.id)
    call('LREM', r.key, '1', w.text)
    r.waiting = r.waiting - 1
  end

  local function count_of(units)
    return units == 'all' and math.huge or tonumber(units)
  end

  -- Whether units fit beside those held (I2), which are added up once.
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
    local least = string.match(holder.details, '^[fd]*n(%d+)')
    holder.number, holder.granted = tonumber(next_number(least and number_text(least))), now
    r.holders[#r.holders + 1] = holder
    add(r, holder)
    r.changed = true
  end

  -- Grants to the head of the queue as far as the capacity allows (I10). The contender that asks just now gets no
  -- message but its answer: a message could come after it has left again, and would look like a grant that nobody waits
  -- for.
  local function serve(r, asks)
    while r.waiting > 0 do
      local last = r.holders[#r.holders]
      if last and last.units == 'all' then return end
      local head = parse_waiter(unpack(call('LRANGE', r.key, r.others + 1, r.others + 2)))
      if not fits(r, head.units) then return end
      take_first(r, head)
      local lease = math.min(head.lease, FIRST_LEASE)
      grant(r, {expires = now + lease, id = head.id, units = head.units, lease = head.lease, details = head.details})
      if head.id ~= asks then
        local floor = string.format('%d', r.holders[1].number)
        publish_grant(r.key, head.id, high_water, floor, head.stamp, math.max(now - head.asked, 0), lease)
      end
    end
  end

  local function remove(r, index)
    r.holders[index].gone = true
    table.remove(r.holders, index)
    r.changed, r.used = true, nil
  end

  -- Ends holds and waits whose time is over (I8), and grants if that made room.
  function lib.settle(r, asks)
    local silent, ended
    for index = #r.holders, 1, -1 do
      local holder = r.holders[index]
      if holder.expires <= now then
        if not holder.confirmed then
          silent = silent or {}
          silent[string.match(holder.id, '^[^-]+')] = true
        end
        remove(r, index)
        ended = true
      end
    end
    if r.waiting > 0 and (silent or r.oldest > now or r.oldest + WAIT_LEASE <= now) then
      local all, oldest, emptied = call('LRANGE', r.key, r.others + 1, '-1'), now, false
      for nth = 1, #all, 2 do
        local w = parse_waiter(all[nth], all[nth + 1])
        if w.asked + WAIT_LEASE <= now or silent and silent[string.match(w.id, '^[^-]+')] then
          if not emptied then without_memory() end
          empty_waiter(r, r.others + nth)
          emptied = true
        else
          oldest = math.min(oldest, w.asked)
        end
      end
      if emptied then
        remove_empty(r)
        ended = true
      end
      -- Written also if nothing else is. Otherwise every claim would go through all waiters again.
      r.asked = r.asked or emptied or oldest ~= r.oldest
      r.oldest = oldest
    elseif r.waiting == 0 then
      r.oldest = now
    end
    if ended then serve(r, asks) end
  end

  local function held_by(r, id)
    for index, holder in ipairs(r.holders) do
      if holder.id == id then return holder, index end
    end
  end

  -- The holder was heard of: its short first lease becomes the full one, counted from the grant.
  local function confirm(holder)
    if not holder.confirmed then
      rewrite(holder)
      holder.confirmed = true
      holder.expires = math.max(holder.expires, holder.granted + holder.lease)
    end
  end

  -- Each of these returns words of the reply; see apply.lua, renew.lua, evict.lua.
  function lib.claim(key, queue, id, tail, stamp, must_write)
    local capacity, units, lease, details = string.match(tail, '^ (%S+) (%S+) (%d+) (%S+ .*)$')
    local r = lib.open(key)
    if not r then return '8' end
    if tombstone_of(r, id) then return '3' end
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
    local w, ahead, index = waiter(r, id)
    if w then
      -- Also if the clock was set back.
      if math.abs(now - w.asked) >= POSITION_KEPT then
        without_memory()
        call('LSET', key, index + 1, now_text .. ' ' .. w.arrival .. ' ' .. stamp .. w.tail)
        r.asked = true
      end
      return busy(ahead)
    end
    if r.waiting == 0 and fits(r, units) then
      holder = {expires = now + lease, confirmed = true, id = id, units = units, lease = tonumber(lease),
        details = details}
      grant(r, holder)
      return granted(holder)
    end
    if queue then r.enters = {id, now_text .. ' ' .. now_text .. ' ' .. stamp .. tail} end
    return busy(r.waiting)
  end

  function lib.leave(key, id, tombstone_until, hold)
    without_memory()
    local r = lib.open(key)
    if not r then return '7' end
    if tombstone_until ~= '' and tonumber(tombstone_until) >= now then
      add_tombstone(r, id, tonumber(tombstone_until))
    end
    lib.settle(r)
    local answer = '7'
    local holder, index = held_by(r, id)
    local w, ahead, at
    if not holder then w, ahead, at = waiter(r, id) end
    if holder and not holder.retired then
      answer = '5'
      -- Never longer than that from now: the clock may have been set back since the grant.
      local kept_until = math.min(holder.granted, now) + hold
      if kept_until > now and not holder.evicted then
        rewrite(holder)
        holder.retired, holder.detached, holder.confirmed = true, true, true
        holder.expires = kept_until
      else
        remove(r, index)
        serve(r)
      end
    elseif w then
      answer = '6'
      empty_waiter(r, at)
      remove_empty(r)
      serve(r)
    end
    lib.save(r)
    return answer
  end

  function lib.renew(key, id, lease, lower_to, detach, at_least)
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
      local reason = string.match(holder.details, '^[fd]*n?%d*r(%S*)')
      return '3 ' .. (reason and '=' .. reason or '-')
    end
    rewrite(holder)
    holder.expires = math.max(holder.expires, now + lease)
    holder.detached = holder.detached or detach
    local remaining = holder.expires - now
    if at_least > holder.number then
      raise_high_water(at_least)
      holder.number = math.min(at_least, tonumber(high_water))
      r.changed = true
      in_order(r)
    end
    local floor = r.holders[1].number
    if lower_to ~= '' and (holder.units == 'all' or tonumber(lower_to) < tonumber(holder.units)) then
      holder.units = lower_to
      r.changed, r.used = true, nil
      serve(r)
    end
    lib.save(r)
    return string.format('1 %d %d %d', holder.number, floor, remaining)
  end

  function lib.evict(key, id, number, at_once, reason)
    without_memory()
    local r = lib.open(key)
    if not r then return '2' end
    lib.settle(r)
    local holder, index = held_by(r, id)
    local found = holder and holder.number == number
    if found and (at_once or holder.retired) then
      remove(r, index)
      serve(r)
    elseif found then
      rewrite(holder)
      holder.evicted = true
      local rare, details = string.match(holder.details, '^([fd]*n?%d*)%S*( .*)$')
      if reason ~= '-' then rare = rare .. 'r' .. string.sub(reason, 2) end
      holder.details = (rare == '' and '-' or rare) .. details
      r.changed = true
    end
    lib.save(r)
    return found and '1' or '2'
  end

  function lib.publish_changes(key, length)
    local r = lib.open(key)
    if not r then return end
    lib.settle(r)
    add_tombstone(r, '*', now + length)
    lib.save(r)
  end

  return lib
end
