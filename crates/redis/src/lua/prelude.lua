-- What every transition of a resource begins with: the server's time, and the numbers of grants.
-- KEYS[1]    mark: no grant number so far is above it    then the resources
-- ARGV[1]    nonce, the first word of the reply, which is one text of words: cheaper than many values on both sides
-- Invariant  Numbers only grow (I6), and stay below 2^53, where a double is exact. No token is ever seen here.
-- Times (microseconds) and numbers are text of 16 digits, whose order is that of the numbers. A call costs about as
-- much as all the Lua of a free lock, and a new function or a number made text a quarter of that: so there are few.
local call, time = redis.call, redis.call('TIME')
local now_text = time[1] .. time[2]
if #now_text ~= 16 then now_text = string.format('%016d', time[1] * 1000000 + time[2]) end

-- How many milliseconds a key lasts that holds something until `ends`: to the end of that minute. Scripts decide what has
-- ended, so it may be longer; and a renewal within the minute need not set it anew, which is a third of what that costs.
local function life_until(ends)
  return string.format('%d', math.ceil((ends - ends % 60000000 + 60000000 - now_text) / 1000))
end

-- The last number that this call gave, and the last that it may give without writing the mark.
local mark, reserved

-- The number of one more grant: the time, or the next one if that is not above the mark. One SET reads the mark and
-- reserves as many as there are entries. In a cluster each resource has its own mark, which outlives it by a day.
local function next_number()
  local number = mark and string.format('%016d', mark + 1) or now_text
  if not reserved or number > reserved then
    reserved = #KEYS == 2 and number or string.format('%016d', number + #KEYS)
    local before
    if string.byte(KEYS[1], -6) == 125 then -- '}:mark'
      before = call('SET', KEYS[1], reserved, 'PX', '86400000', 'GET')
    else
      before = call('SET', KEYS[1], reserved, 'GET')
    end
    if not mark and before and before >= number then
      mark = before
      return next_number()
    end
  end
  mark = number
  return number
end
