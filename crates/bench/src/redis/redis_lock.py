"""Threads that take turns with redis-py's Lock as it comes, for the load harness.

Arguments: URL, name, threads, seconds. Prints: seconds and CPU seconds that it took, acquisitions
right after another thread's, what the lock protected, then a line per thread with its acquisitions
and the nanoseconds that every seventh of them took.
"""

import sys
import threading
import time

import redis

url, name, threads, seconds = sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
start, stop = threading.Barrier(threads + 1), threading.Event()
protected = {"counter": 0, "last": -1, "passed": 0}
turns = [(0, [])] * threads


def take_turns(thread):
    lock = redis.Redis.from_url(url).lock(name, timeout=30)
    acquired, times = 0, []
    start.wait()
    while not stop.is_set():
        asked = time.monotonic_ns()
        lock.acquire()
        protected["counter"] += 1
        protected["passed"] += protected["last"] != thread
        protected["last"] = thread
        lock.release()
        if acquired % 7 == 0:
            times.append(time.monotonic_ns() - asked)
        acquired += 1
    turns[thread] = (acquired, times)


hands = [threading.Thread(target=take_turns, args=(thread,)) for thread in range(threads)]
for hand in hands:
    hand.start()
start.wait()
began, cpu = time.monotonic(), time.process_time()
time.sleep(seconds)
stop.set()
for hand in hands:
    hand.join()
print(time.monotonic() - began, time.process_time() - cpu, protected["passed"], protected["counter"])
for acquired, times in turns:
    print(acquired, *times)
