-- What transitions of those who wait have in common.

-- A message is a hint: that it cannot be sent must not undo what it tells of.
local function publish(channel, message)
  redis.pcall(sharded and 'SPUBLISH' or 'PUBLISH', channel, message)
end

local function tell_granted(key, id, number, floor, stamp, waited, lease)
  local of = sharded and key .. ':k:' or string.sub(KEYS[1], 1, -5) .. 'k:'
  publish(of .. string.match(id, '^[^-]+'),
    id .. ' ' .. number .. ' ' .. floor .. ' ' .. stamp .. ' ' .. waited .. ' ' .. lease .. ' ' .. key)
end

-- A server without memory refuses a script's first write if it could need some, and no other. What is held must be
-- renewed and given back all the same, and places in line kept, so this comes first: a write that changes nothing, and
-- that is not replicated.
local function without_memory()
  call('PERSIST', KEYS[1])
end
