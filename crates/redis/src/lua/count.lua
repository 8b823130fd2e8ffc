-- One operation on a latch's counter; however often it arrives, it counts once (I13).
-- KEYS[1]    mark    KEYS[2] unused    KEYS[3] the counter: '<remaining> <initial> <opened> <born>'
-- KEYS[4]    the answer to this operation, remembered
-- ARGV[3]    not_after    ARGV[4] create, down, reset, delete or read    ARGV[5] amount
-- ARGV[6]    how long after not_after the answer is remembered    ARGV[7] milliseconds that an unused counter lasts
-- Reply      nonce, now, 1 (state), 2 (missing), 3 (exists) or 4 (stale), then remaining, initial, opened, born
local not_after, action, amount = tonumber(ARGV[3]), ARGV[4], tonumber(ARGV[5])

local function answer(text)
  return finish({ARGV[1], now_text, text})
end

local done = redis.call('GET', KEYS[4])
if done then return answer(done) end
if not_after < now then return answer('4') end

local function text_of(remaining, initial, opened, born)
  return string.format('%d %d %d %d', remaining, initial, opened, born)
end

local state, result = redis.call('GET', KEYS[3]), nil
if action == 'create' then
  if state then
    result = '3 ' .. state
  else
    mark = math.min(math.max(mark + 1, now), LAST_NUMBER)
    state = text_of(amount, amount, amount == 0 and 1 or 0, mark)
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
  redis.call('DEL', KEYS[3])
elseif action == 'read' then
  if state and redis.call('PTTL', KEYS[3]) < ARGV[7] / 2 then redis.call('PEXPIRE', KEYS[3], ARGV[7]) end
elseif state then
  redis.call('SET', KEYS[3], state, 'PX', ARGV[7])
end
if action ~= 'read' then
  redis.call('SET', KEYS[4], result, 'PX', math.ceil((not_after + ARGV[6] - now) / 1000) + 2)
  publish(KEYS[3] .. ':changed', '')
end
return answer(result)
