-- The entries of a group that one SET or DEL does: a group of nothing else, which most are, ends here, before the
-- functions for the rest are made. For arguments and reply see apply.lua.
-- Invariant  A free resource is claimed by one SET, and all that are held by their leavers alone, with nobody in line,
--            are freed by one DEL. What cannot be done so is not touched and has no reply yet.
local replies, done, leaves = {}, 0, tonumber(ARGV[2])
if leaves > 0 then
  -- A sorted set has no value for MGET, where GET would fail.
  local lines = call('MGET', unpack(KEYS, 2, leaves + 1))
  for entry = 1, leaves do
    local line, alone = lines[entry], ARGV[entry + 2]
    if line and string.sub(line, 54, 53 + #alone) == alone and string.sub(line, 37, 52) > now_text then
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

local at, limit, life, ends = leaves + 3, nil, nil, nil
for entry = leaves + 1, #KEYS - 1 do
  local key, word = KEYS[entry + 1], ARGV[at]
  if word == 's' then
    limit, life, word = ARGV[at + 1], ARGV[at + 3], ARGV[at + 4]
    -- The middle of the holder's line.
    ends = life ~= '' and limit >= now_text and string.format(' %016d c--- ', now_text + ARGV[at + 2])
    at = at + 4
  end
  at = at + (word == 'b' and 4 or 1)
  if ends and word ~= 'b' then
    local number = mark and string.format('%016d', mark + 1) or now_text
    if call('SET', key, 'h ' .. number .. ' ' .. now_text .. ends .. word, 'PX', life, 'NX') then
      if not mark then
        reserved = #KEYS == 2 and number or string.format('%016d', number + #KEYS)
        local before
        if sharded then
          before = call('SET', KEYS[1], reserved, 'PX', '86400000', 'GET')
        else
          before = call('SET', KEYS[1], reserved, 'GET')
        end
        if before and before >= number then
          -- The clock is not above the mark.
          number, reserved = string.format('%016d', before + 1), string.format('%016d', before + #KEYS)
          call('SET', KEYS[1], reserved, 'KEEPTTL')
          call('SET', key, 'h ' .. number .. ' ' .. now_text .. ends .. word, 'KEEPTTL')
        end
      end
      mark = number
      replies[entry] = number == now_text and '0' or '9 ' .. number
      done = done + 1
    end
  end
end
if done == #KEYS - 1 then return ARGV[1] .. ' ' .. now_text .. ' ' .. table.concat(replies, ' ') end
