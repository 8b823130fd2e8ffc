-- The entries of a group that one SET or DEL does: a group of nothing else, which most are, ends here, before the
-- functions for the rest are made. For arguments and reply see apply.lua, for what a key holds resource.lua.
-- Invariant  A free resource is claimed by one SET, and all that are held by their leavers alone, with nobody in line,
--            are freed by one DEL. What cannot be done so is not touched and has no reply yet.
local replies, done, leaves = {}, 0, tonumber(ARGV[2])
local mixed = leaves < 0
if mixed then leaves = -1 - leaves end
if leaves > 0 then
  -- A list has no value for MGET, where GET would fail.
  local lines = call('MGET', unpack(KEYS, 2, leaves + 1))
  for entry = 1, leaves do
    local line = lines[entry]
    if line and string.find(line, ARGV[entry + 2], 95, true) == 95 and string.sub(line, 78, 93) > now_text then
      done = done + 1
      lines[done] = KEYS[entry + 1]
      replies[entry] = '5'
    elseif line then
      replies[entry] = false -- no list, and so nothing for contended.lua
    end
  end
  if done > 0 then call('DEL', unpack(lines, 1, done)) end
end
-- A claim that finds no memory must not keep the others from being done; see without_memory() in resource.lua.
if mixed and done == 0 then call('PERSIST', KEYS[1]) end

local at, limit, life, first, before, after = leaves + 3, nil, nil, nil, nil, nil
for entry = leaves + 1, #KEYS - 1 do
  local key, word = KEYS[entry + 1], ARGV[at]
  if word == 's' then
    limit, life, after, word = ARGV[at + 1], ARGV[at + 3], ARGV[at + 4], ARGV[at + 5]
    before = life ~= '' and limit >= now_text
    if before then
      -- What stands in the key before the holder's number, and between its number and its id.
      local ends = now_text + ARGV[at + 2]
      first = string.format('%016d %s 000000 h ', ends + 60000000, now_text)
      before = string.format(' %s %016d c--- ', now_text, ends)
    end
    at = at + 5
  end
  at = at + (word == 'b' and 4 or 1)
  if before and word ~= 'b' then
    local number = mark and string.format('%016d', mark + 1) or now_text
    if call('SET', key, first .. number .. before .. word .. after, 'PX', life, 'NX') then
      if not mark then
        reserved = #KEYS == 2 and number or string.format('%016d', number + #KEYS)
        local last = redis.pcall('SET', KEYS[1], reserved, 'GET')
        -- A mark that is no text was put there by somebody else, and so was one that is no number: as if it had been lost.
        if last and last.err then last = call('SET', KEYS[1], reserved) and nil end
        if last and last >= number and tonumber(last) then
          -- The clock is not above the mark.
          number, reserved = string.format('%016d', last + 1), string.format('%016d', last + #KEYS)
          call('SET', KEYS[1], reserved)
          call('SET', key, first .. number .. before .. word .. after, 'KEEPTTL')
        end
      end
      mark = number
      replies[entry] = number == now_text and '0' or '9 ' .. number
      done = done + 1
    end
  end
end
if done == #KEYS - 1 then return ARGV[1] .. ' ' .. now_text .. ' ' .. table.concat(replies, ' ') end
