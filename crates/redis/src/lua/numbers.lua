-- The number of one more grant: the time, or the high-water mark and one if the time is not above it. One SET reads the
-- high-water mark and reserves as many numbers as there are entries. uncontended.lua does the same in its own way.
local function next_number()
  local number = high_water and string.format('%016d', high_water + 1) or now_text
  if not reserved or number > reserved then
    reserved = #KEYS == 2 and number or string.format('%016d', number + #KEYS)
    local before = redis.pcall('SET', KEYS[1], reserved, 'GET')
    -- A value that is no text or no number was put there by another program: treated as if the mark had been lost. An
    -- error would come while a resource is half written.
    if before and before.err then before = call('SET', KEYS[1], reserved) and nil end
    if not high_water and before and before >= number and tonumber(before) then
      high_water = before
      return next_number()
    end
  end
  high_water = number
  return number
end

-- Makes the high-water mark at least this number, below 2^53.
local function raise_high_water(number)
  local text = string.format('%016d', math.min(number, 9007199254740991))
  if not high_water then
    local before = redis.pcall('GET', KEYS[1])
    high_water = type(before) == 'string' and tonumber(before) and before or nil
  end
  if not high_water or text > high_water then
    high_water, reserved = text, text
    call('SET', KEYS[1], text)
  end
end
