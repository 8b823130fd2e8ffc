-- The only entry of a call, if one SET or DEL can do it. Most calls end here: uncontended.lua does the same for groups,
-- with tables and loops that would cost one entry a tenth of its time. See apply.lua for arguments and reply,
-- resource.lua for the rows of a key.
-- Invariant  One SET claims a free resource. One DEL frees a resource whose only holder leaves and that has no waiters.
--            Any other entry is not touched and has no reply yet.
local alone, row = #KEYS == 2, nil
if alone and ARGV[2] == '1' then
  -- MGET gives no value for a list, where GET would fail.
  row = call('MGET', KEYS[2])[1]
  if row and string.find(row, ARGV[3], 95, true) == 95 and string.sub(row, 78, 93) > now_text then
    call('DEL', KEYS[2])
    return ARGV[1] .. ' ' .. now_text .. ' 5'
  end
elseif alone and ARGV[3] == 's' and ARGV[6] ~= '' and ARGV[4] >= now_text then
  local number, ends, format = now_text, now_text + ARGV[5], string.format
  if #ARGV[4] > 37 then number = string.sub(ARGV[4], 38) end
  local text = format('%016d ', ends + 60000000) .. now_text .. ' 000000 h ' .. number .. ' ' .. now_text
    .. format(' %016d c--- ', ends) .. ARGV[8] .. ARGV[7]
  if call('SET', KEYS[2], text, 'PX', ARGV[6], 'NX') then
    local last = redis.pcall('SET', KEYS[1], number, 'GET')
    -- A mark that is no text or no number was put there by another program: treated as if it had been lost.
    if last and last.err then last = call('SET', KEYS[1], number) and nil end
    if last and last >= number and tonumber(last) then
      -- The clock is not above the high-water mark.
      number = format('%016d', last + 1)
      call('SET', KEYS[1], number)
      call('SET', KEYS[2], string.sub(text, 1, 43) .. number .. string.sub(text, 60), 'KEEPTTL')
    end
    return ARGV[1] .. ' ' .. now_text .. (number == now_text and ' 0' or ' 9 ' .. number)
  end
end
