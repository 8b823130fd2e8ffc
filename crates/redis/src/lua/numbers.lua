-- A number as text, below 2^53.
local function number_text(number)
  return string.format('%016d', math.min(number, 9007199254740991))
end

-- The number of one more grant: the time, or this least number instead of it, or the high-water mark and one if that is
-- higher. One SET reads the high-water mark and reserves as many numbers as there are entries. alone.lua and
-- uncontended.lua do the same in their own ways.
local function next_number(least)
  local number, following = least or now_text, high_water and string.format('%016d', high_water + 1)
  if following and following > number then number = following end
  if not reserved or number > reserved then
    reserved = #KEYS == 2 and number or number_text(number + #KEYS)
    local before = redis.pcall('SET', KEYS[1], reserved, 'GET')
    -- A value that is no text or no number was put there by another program: treated as if the mark had been lost. An
    -- error would come while a resource is half written.
    if before and before.err then before = call('SET', KEYS[1], reserved) and nil end
    if not high_water and before and before >= number and tonumber(before) then
      high_water = before
      return next_number(least)
    end
  end
  high_water = number
  return number
end

-- Makes the high-water mark at least this number.
local function raise_high_water(number)
  local text = number_text(number)
  if not high_water then
    local before = redis.pcall('GET', KEYS[1])
    high_water = type(before) == 'string' and tonumber(before) and before or nil
  end
  if not high_water or text > high_water then
    high_water, reserved = text, text
    call('SET', KEYS[1], text)
  end
end
