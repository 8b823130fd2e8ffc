-- The entries of a group that one SET or DEL does: a group of nothing else, which most are, ends here, before the
-- functions for the rest are made. For arguments and reply see apply.lua.
-- Invariant  A free resource is claimed by one SET, and all that are held by their leavers alone, with nobody in line,
--            are freed by one DEL. What cannot be done so is not touched and has no reply yet.
local replies, done, leaves = {}, 0, tonumber(ARGV[2])
if leaves > 0 then
  -- A sorted set has no value for MGET, where GET would fail.
  local lines = call('MGET', unpack(KEYS, 2, leaves + 1))
  for entry = 1, leaves do
    local line = lines[entry]
    if line and string.find(line, ARGV[entry + 2], 54, true) == 54 and string.sub(line, 37, 52) > now_text then
      done = done + 1
      lines[done] = KEYS[entry + 1]
      replies[entry] = '5'
    end
  end
  if done > 0 then
    call('DEL', unpack(lines, 1, done))
  elseif leaves < #KEYS - 1 then
    -- A claim that finds no memory must not keep leaves from being done, as in resource.lua.
    if sharded then call('PEXPIRE', KEYS[1], '86400000') else call('PERSIST', KEYS[1]) end
  end
end

local at, limit, life, before, after = leaves + 3, nil, nil, nil, nil
for entry = leaves + 1, #KEYS - 1 do
  local key, word = KEYS[entry + 1], ARGV[at]
  if word == 's' then
    limit, life, after, word = ARGV[at + 1], ARGV[at + 3], ARGV[at + 4], ARGV[at + 5]
    -- The holder's line between its number and its id.
    before = life ~= '' and limit >= now_text and string.format(' %s %016d c--- ', now_text, now_text + ARGV[at + 2])
    at = at + 5
  end
  at = at + (word == 'b' and 4 or 1)
  if before and word ~= 'b' then
    local number = mark and string.format('%016d', mark + 1) or now_text
    if call('SET', key, 'h ' .. number .. before .. word .. after, 'PX', life, 'NX') then
      if not mark then
        reserved = #KEYS == 2 and number or string.format('%016d', number + #KEYS)
        local last
        if sharded then
          last = call('SET', KEYS[1], reserved, 'PX', '86400000', 'GET')
        else
          last = call('SET', KEYS[1], reserved, 'GET')
        end
        if last and last >= number then
          -- The clock is not above the mark.
          number, reserved = string.format('%016d', last + 1), string.format('%016d', last + #KEYS)
          call('SET', KEYS[1], reserved, 'KEEPTTL')
          call('SET', key, 'h ' .. number .. before .. word .. after, 'KEEPTTL')
        end
      end
      mark = number
      replies[entry] = number == now_text and '0' or '9 ' .. number
      done = done + 1
    end
  end
end
if done == #KEYS - 1 then return ARGV[1] .. ' ' .. now_text .. ' ' .. table.concat(replies, ' ') end
