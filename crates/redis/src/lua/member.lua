-- What the server keeps for the quorum that it is a member of, and a change of it.
-- KEYS[1]    the high-water mark    KEYS[2] the record, behind its tag: '#' and 15 bytes, others for each record that is
--            written. Other scripts compare the tag: see scripts.rs
-- ARGV[1]    nonce
-- ARGV[2..]  only for a change: the expected record, or '' if none is expected; the new one; the high-water mark that it
--            is to have, as 16 digits; the tag of the new one
-- Reply      nonce, the time, the high-water mark, 1 if the record was changed; and the record behind its tag, or ''
-- Invariant  The record is changed only if it is the expected one and no grant has a number above the new mark, so grants
--            from before and after the change are told apart by their numbers.
local time = redis.call('TIME')
local now_text = string.format('%016d', time[1] * 1000000 + time[2])
local kept, mark = redis.pcall('GET', KEYS[2]), redis.pcall('GET', KEYS[1])
if type(kept) ~= 'string' then kept = '' end
if type(mark) ~= 'string' or not tonumber(mark) then mark = '0000000000000000' end
local record, changed = string.sub(kept, 1, 1) == '#' and string.sub(kept, 17) or kept, '0'
if ARGV[2] and record == ARGV[2] and mark <= ARGV[4] then
  kept, mark, changed = ARGV[5] .. ARGV[3], ARGV[4], '1'
  redis.call('SET', KEYS[1], mark)
  redis.call('SET', KEYS[2], kept)
end
return {ARGV[1] .. ' ' .. now_text .. ' ' .. mark .. ' ' .. changed, kept}
