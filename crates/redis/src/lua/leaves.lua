-- The plain leaves of a group, which come first: a group of nothing else mostly ends here, before the functions for the
-- rest are made. For arguments and reply see apply.lua.
-- Invariant  All that are held by their leavers alone, which nobody waits for, are freed by one DEL.
local replies, leaves, freed = {}, tonumber(ARGV[2]), {}
if leaves > 0 then
  -- A sorted set has no value for MGET, where GET would fail.
  local lines = call('MGET', unpack(KEYS, 2, leaves + 1))
  for entry = 1, leaves do
    local line, alone = lines[entry], ARGV[entry + 2]
    if line and string.sub(line, 54, 53 + #alone) == alone and string.sub(line, 37, 52) > now_text then
      freed[#freed + 1] = KEYS[entry + 1]
      replies[entry] = '5'
    end
  end
  if freed[1] then call('DEL', unpack(freed)) end
  if #freed == #KEYS - 1 then return ARGV[1] .. ' ' .. now_text .. ' ' .. table.concat(replies, ' ') end
end
