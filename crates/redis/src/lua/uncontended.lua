-- The entries of a group that one SET or DEL can do. Most groups have no others, and end here before the functions for
-- the rest are made. See apply.lua for arguments and reply, resource.lua for the rows of a key.
-- Invariant  One SET claims a free resource. One DEL frees all resources whose only holder leaves and that have no
--            waiters. All other entries are not touched and have no reply yet. An entry that is alone was tried before.
local replies, done, leaves = {}, 0, tonumber(ARGV[2])
local mixed = leaves < 0
if mixed then leaves = -1 - leaves end
if alone then
  if row then replies[1] = false end -- not a list, so contended.lua cannot do it
elseif leaves > 0 then
  local rows, find, sub = call('MGET', unpack(KEYS, 2, leaves + 1)), string.find, string.sub
  for entry = 1, leaves do
    local row = rows[entry]
    if row and find(row, ARGV[entry + 2], 95, true) == 95 and sub(row, 78, 93) > now_text then
      done = done + 1
      rows[done] = KEYS[entry + 1]
      replies[entry] = '5'
    elseif row then
      replies[entry] = false
    end
  end
  if done > 0 then call('DEL', unpack(rows, 1, done)) end
end
-- A claim without memory must not keep the other entries from being done: see without_memory() in resource.lua.
if mixed and done == 0 then call('PERSIST', KEYS[1]) end

local at, limit, life, least, first, before, after = leaves + 3, nil, nil, nil, nil, nil, nil
for entry = leaves + 1, alone and 0 or #KEYS - 1 do
  local key, word = KEYS[entry + 1], ARGV[at]
  if word == 's' then
    limit, life, after, word = ARGV[at + 1], ARGV[at + 3], ARGV[at + 4], ARGV[at + 5]
    least = #limit > 37 and string.sub(limit, 38)
    before = life ~= '' and limit >= now_text
    if before then
      -- The text of the key before the holder's number, and between its number and its id.
      local ends = now_text + ARGV[at + 2]
      first = string.format('%016d %s 000000 h ', ends + 60000000, now_text)
      before = string.format(' %s %016d c--- ', now_text, ends)
    end
    at = at + 5
  elseif word == 'w' then
    word = ARGV[at + 2]
    at = at + 2
  end
  at = at + (word == 'b' and 4 or 1)
  if before and word ~= 'b' then
    local number = least or now_text
    if high_water then
      local following = string.format('%016d', high_water + 1)
      if following > number then number = following end
    end
    if call('SET', key, first .. number .. before .. word .. after, 'PX', life, 'NX') then
      if not high_water or number > reserved then
        reserved = string.format('%016d', number + #KEYS)
        local last = redis.pcall('SET', KEYS[1], reserved, 'GET')
        -- As in alone.lua.
        if last and last.err then last = call('SET', KEYS[1], reserved) and nil end
        if last and last >= number and tonumber(last) then
          number, reserved = string.format('%016d', last + 1), string.format('%016d', last + #KEYS)
          call('SET', KEYS[1], reserved)
          call('SET', key, first .. number .. before .. word .. after, 'KEEPTTL')
        end
      end
      high_water = number
      replies[entry] = number == now_text and '0' or '9 ' .. number
      done = done + 1
    end
  end
end
if done == #KEYS - 1 then return ARGV[1] .. ' ' .. now_text .. ' ' .. table.concat(replies, ' ') end
