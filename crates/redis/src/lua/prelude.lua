-- The beginning of every script that changes a resource: the server's time, and the numbers of grants.
-- KEYS[1]    the high-water mark: no grant number so far is above it    then the resources
-- ARGV[1]    nonce, the first word of the reply, which is one text of words: cheaper than many values on both sides
-- Invariant  Numbers only grow (I6), and stay below 2^53, where a double is exact. No script ever sees a token.
-- Times (microseconds) and numbers are text of 16 digits, so their order as text is that of the numbers.
-- One call of a command costs about as much as all the Lua of a free lock, and a new function or a number turned into
-- text costs a quarter of that. So there are few of them, and the functions that only some requests need are made when
-- needed.
local call, time = redis.call, redis.call('TIME')
local now_text = time[1] .. time[2]
if #now_text ~= 16 then now_text = string.format('%016d', time[1] * 1000000 + time[2]) end

-- The last number that this script gave, and the last that it may give without writing the high-water mark.
local high_water, reserved
