-- The numbers of grants.
-- Invariant  Numbers only grow (I6), and stay below 2^53, where a double is exact. No token is ever seen here.

-- The last number that this call gave, and the last that it may give without writing the mark.
local mark, reserved
-- In a cluster each resource has channels and a mark of its own: '{...}:mark'.
local sharded = string.byte(KEYS[1], -6) == 125 -- '}'

-- The number of one more grant: the time, or the next one if that is not above the mark. One SET reads the mark and
-- reserves as many as there are entries. A mark of its own outlives a resource by a day.
local function next_number()
  local number = mark and string.format('%016d', mark + 1) or now_text
  if not reserved or number > reserved then
    reserved = #KEYS == 2 and number or string.format('%016d', number + #KEYS)
    local before
    if sharded then
      before = call('SET', KEYS[1], reserved, 'PX', '86400000', 'GET')
    else
      before = call('SET', KEYS[1], reserved, 'GET')
    end
    if not mark and before and before >= number then
      mark = before
      return next_number()
    end
  end
  mark = number
  return number
end
