-- Reads a resource as it is stored: holders and waiters whose time is over are still in it.
-- KEYS[1]    the resource
-- ARGV[1]    nonce
-- Reply      nonce and now as one text, then what its key holds, as a list of rows (see resource.lua)
-- Invariant  Changes nothing.
local time = redis.call('TIME')
local kind, rows = redis.call('TYPE', KEYS[1]).ok, {}
if kind == 'string' then
  rows = {redis.call('GET', KEYS[1])}
elseif kind == 'list' then
  rows = redis.call('LRANGE', KEYS[1], 0, -1)
end
return {ARGV[1] .. string.format(' %d', time[1] * 1000000 + time[2]), rows}
