-- Somebody wants to hear of changes: for a while, transitions of the resource publish them.
-- KEYS[2]    the resource
-- ARGV[2]    for how many microseconds
-- Reply      nonce, 1
library().tell(KEYS[2], ARGV[2])
return ARGV[1] .. ' 1'
