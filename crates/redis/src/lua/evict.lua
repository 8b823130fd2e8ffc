-- Takes a lock back from the holder with this id and number, and from nobody else (I15).
-- KEYS[3]    the resource
-- ARGV[3]    id    ARGV[4] number    ARGV[5] '1' to pass it on at once
-- Reply      nonce, 1 (done) or 2 (not held)
without_memory()
return finish({ARGV[1], library().evict(KEYS[3], ARGV[3], tonumber(ARGV[4]), ARGV[5] == '1')})
