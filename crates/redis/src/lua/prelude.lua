-- What every transition of a resource begins with: the server's time, and the numbers of grants.
-- KEYS[1]    mark: no grant number so far is above it    then the resources
-- ARGV[1]    nonce, the first word of the reply, which is one text of words: cheaper than many values on both sides
-- Invariant  Numbers only grow (I6), and stay below 2^53, where a double is exact. No token is ever seen here.
-- Times (microseconds) and numbers are text of 16 digits, whose order is that of the numbers. A call costs about as
-- much as all the Lua of a free lock, and a new function or a number made text a quarter of that: so there are few, and
-- what only some need is made when it is needed.
local call, time = redis.call, redis.call('TIME')
local now_text = time[1] .. time[2]
if #now_text ~= 16 then now_text = string.format('%016d', time[1] * 1000000 + time[2]) end

-- In a cluster each resource has channels of its own, and each slot a mark: '{...}:mark'.
local sharded = string.byte(KEYS[1], -6) == 125 -- '}'
-- The last number that this call gave, and the last that it may give without writing the mark.
local mark, reserved
