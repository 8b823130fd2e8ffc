-- One operation on the counter of a latch. It counts once, however often it arrives (I13).
-- KEYS[2]    the counter: '<remaining> <initial> <opened> <born>'
-- KEYS[3]    the answer to this operation, kept for its late copies
-- ARGV[2]    not_after    ARGV[3] create, down, reset, delete or read    ARGV[4] amount
-- ARGV[5]    how many microseconds after not_after the answer is kept    ARGV[6] how many milliseconds an unused
--            counter lasts
-- Reply      nonce, now, 1 (state), 2 (missing), 3 (exists) or 4 (stale), then remaining, initial, opened, born
local now, not_after, action, amount = tonumber(now_text), tonumber(ARGV[2]), ARGV[3], tonumber(ARGV[4])

local function answer(text)
  return ARGV[1] .. ' ' .. now_text .. ' ' .. text
end

local done = call('GET', KEYS[3])
if done then return answer(done) end
if not_after < now then return answer('4') end

local function text_of(remaining, initial, opened, born)
  return string.format('%d %d %d %d', remaining, initial, opened, born)
end

local state, result = call('GET', KEYS[2]), nil
if action == 'create' then
  if state then
    result = '3 ' .. state
  else
    state = text_of(amount, amount, amount == 0 and 1 or 0, next_number())
  end
elseif state then
  local remaining, initial, opened, born = string.match(state, '^(%d+) (%d+) (%d+) (%d+)$')
  remaining, opened = tonumber(remaining), tonumber(opened)
  if action == 'down' then
    if remaining > 0 and amount >= remaining then opened = opened + 1 end
    remaining = math.max(remaining - amount, 0)
  elseif action == 'reset' then
    remaining = tonumber(initial)
  end
  state = text_of(remaining, initial, opened, born)
else
  result = '2'
end
result = result or '1 ' .. state

if action == 'delete' then
  call('DEL', KEYS[2])
elseif action == 'read' then
  if state and call('PTTL', KEYS[2]) < ARGV[6] / 2 then call('PEXPIRE', KEYS[2], ARGV[6]) end
elseif state then
  call('SET', KEYS[2], state, 'PX', ARGV[6])
end
if action ~= 'read' then
  call('SET', KEYS[3], result, 'PX', math.ceil((not_after + ARGV[5] - now) / 1000) + 2)
  publish(KEYS[2] .. ':changed')
end
return answer(result)
