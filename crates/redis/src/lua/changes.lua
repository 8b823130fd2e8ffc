-- Has the scripts publish changes of a resource for a while.
-- KEYS[2]    the resource
-- ARGV[2]    how many microseconds
-- Reply      nonce, 1
library().publish_changes(KEYS[2], ARGV[2])
return ARGV[1] .. ' 1'
