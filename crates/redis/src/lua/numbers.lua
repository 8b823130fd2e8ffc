-- The number of one more grant: the time, or the next one if that is not above the mark. One SET reads the mark and
-- reserves as many as there are entries. uncontended.lua does the same in its own way.
local function next_number()
  local number = mark and string.format('%016d', mark + 1) or now_text
  if not reserved or number > reserved then
    reserved = #KEYS == 2 and number or string.format('%016d', number + #KEYS)
    local before = redis.pcall('SET', KEYS[1], reserved, 'GET')
    -- What is no text or no number was put there by somebody else: as if the mark had been lost. No error, which would come
    -- in the midst of writing a resource.
    if before and before.err then before = call('SET', KEYS[1], reserved) and nil end
    if not mark and before and before >= number and tonumber(before) then
      mark = before
      return next_number()
    end
  end
  mark = number
  return number
end
