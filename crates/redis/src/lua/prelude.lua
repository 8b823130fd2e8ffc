-- What every transition of a resource begins with: the server's time, the mark, and those to be told.
-- KEYS[1] mark    KEYS[2] exists while somebody watches changes    then the resources
-- ARGV[1] nonce, the first word of the reply    ARGV[2] prefix of the keepers' channels, '' in a cluster
-- Invariant: numbers only grow (I6), and stay below 2^53, where a double is exact. No token is ever seen here.
-- Numbers become text by string.format only: what redis.call makes of them costs as much as the call itself.
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local now_text = string.format('%016d', now)
-- The third is the first resource's line, if it is a string; a sorted set has no value for MGET.
local kept = redis.call('MGET', KEYS[1], KEYS[2], KEYS[3])
local mark = tonumber(kept[1] or 0)
local mark_before, watched, sharded = mark, kept[2], ARGV[2] == ''
local LAST_NUMBER = 9007199254740991

-- A message is a hint: that it cannot be sent must not undo what it tells of.
local function publish(channel, message)
  redis.pcall(sharded and 'SPUBLISH' or 'PUBLISH', channel, message)
end

-- A server without memory refuses a script's first write if it could need some, and no other. What is held must be
-- renewed and given back all the same, so this comes first: a write that changes nothing, or only how long the mark is kept.
local function without_memory()
  if sharded then redis.call('PEXPIRE', KEYS[1], '86400000') else redis.call('PERSIST', KEYS[1]) end
end

-- In a cluster each resource has its own mark, which outlives it by a day; else there is one for all. The reply is one text of words: cheaper than many values on both sides.
local function finish(reply)
  if mark ~= mark_before then
    local text = string.format('%d', mark)
    if sharded then redis.call('SET', KEYS[1], text, 'PX', '86400000') else redis.call('SET', KEYS[1], text) end
  end
  return table.concat(reply, ' ')
end
