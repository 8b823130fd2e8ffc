-- What every transition of a resource begins with: the server's time.
-- KEYS[1]    mark: no grant number so far is above it    then the resources
-- ARGV[1]    nonce, the first word of the reply, which is one text of words: cheaper than many values on both sides
-- Times (microseconds) and numbers are text of 16 digits, whose order is that of the numbers. A call costs about as
-- much as all the Lua of a free lock, and a new function or a number made text a quarter of that: so there are few, and
-- what only some calls need is made by a function when it is needed.
local call, time = redis.call, redis.call('TIME')
local now_text = time[1] .. time[2]
if #now_text ~= 16 then now_text = string.format('%016d', time[1] * 1000000 + time[2]) end
