-- Takes a lock back from the holder with this id and number, and from nobody else (I15).
-- KEYS[2]    the resource
-- ARGV[2]    id    ARGV[3] number    ARGV[4] '1' to end the hold at once    ARGV[5] '=' and the reason, or '-'
-- Reply      nonce, 1 (done) or 2 (not held)
return ARGV[1] .. ' ' .. library().evict(KEYS[2], ARGV[2], tonumber(ARGV[3]), ARGV[4] == '1', ARGV[5])
