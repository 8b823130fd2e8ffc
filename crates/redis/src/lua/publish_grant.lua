-- Tells the keeper of one who waited of its grant. A message is a hint: that it cannot be sent must not undo what it tells of.
local function tell_granted(key, id, number, floor, stamp, waited, lease)
  redis.pcall(sharded and 'SPUBLISH' or 'PUBLISH',
    (sharded and key .. ':k:' or string.sub(KEYS[1], 1, -5) .. 'k:') .. string.match(id, '^%x+'),
    id .. ' ' .. number .. ' ' .. floor .. ' ' .. stamp .. ' ' .. waited .. ' ' .. lease .. ' ' .. key)
end
