-- In a cluster each resource has channels of its own, and each slot a high-water mark: '{...}:mark'.
local sharded = string.byte(KEYS[1], -6) == 125 -- '}'

-- Publishes a grant to the keeper of the waiter. A message is a hint: a failure to send it must not undo the grant.
local function publish_grant(key, id, number, floor, stamp, waited, lease)
  redis.pcall(sharded and 'SPUBLISH' or 'PUBLISH',
    (sharded and key .. ':k:' or string.sub(KEYS[1], 1, -5) .. 'k:') .. string.match(id, '^%x+'),
    id .. ' ' .. number .. ' ' .. floor .. ' ' .. stamp .. ' ' .. waited .. ' ' .. lease .. ' ' .. key)
end
