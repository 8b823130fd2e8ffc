/*
 * A peer of the load harness: the mutex of Apache Curator, told what to do line by line.
 *
 *   round TASKS NAMES MILLIS PREFIX   threads that acquire and release; answers on one line with the
 *                                     nanoseconds, how often the lock passed to another thread, what the
 *                                     lock protected, and the shares and times of acquisitions
 *   pass MILLIS                       one thread, one name for all processes; answers a line for each
 *                                     acquisition, with the times at which it had it and gave it back,
 *                                     and then "end"
 *   hold PATH                         takes a lock; answers "held"
 *   wait COUNT PATH                   lets so many threads wait for it; answers "waiting"
 *   release                           lets them through; answers the nanoseconds it took
 */

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.stream.Collectors;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.retry.ExponentialBackoffRetry;

public final class CuratorPeer {
    /** As in the harness: every so many acquisitions one is timed. */
    private static final long TIMED = 7;

    private static final int SESSION_MILLIS = 10_000;

    /** What a lock protects: a number that two threads at once would miscount. */
    private static final class Protected {
        volatile long counter;
        volatile long last;

        boolean enter(long task) {
            long before = counter;
            boolean passed = last != task;
            last = task;
            counter = before + 1;
            return passed;
        }
    }

    private static final class Turns extends Thread {
        final InterProcessMutex mutex;
        final Protected shared;
        final long task;
        final CountDownLatch start;
        final long millis;
        final List<Long> times = new ArrayList<>();
        long acquired;
        long passed;
        Exception failure;

        Turns(InterProcessMutex mutex, Protected shared, long task, CountDownLatch start, long millis) {
            this.mutex = mutex;
            this.shared = shared;
            this.task = task;
            this.start = start;
            this.millis = millis;
        }

        @Override
        public void run() {
            try {
                start.await();
                long end = System.nanoTime() + millis * 1_000_000;
                while (System.nanoTime() < end) {
                    long asked = System.nanoTime();
                    mutex.acquire();
                    boolean other = shared.enter(task);
                    mutex.release();
                    if (acquired % TIMED == 0) {
                        times.add(System.nanoTime() - asked);
                    }
                    acquired += 1;
                    passed += other ? 1 : 0;
                }
            } catch (Exception failed) {
                failure = failed;
            }
        }
    }

    private final CuratorFramework client;
    private final PrintStream out;
    private InterProcessMutex held;
    private final List<Thread> waiting = new ArrayList<>();

    private CuratorPeer(CuratorFramework client, PrintStream out) {
        this.client = client;
        this.out = out;
    }

    private void round(int tasks, int names, long millis, String prefix) throws Exception {
        Protected[] places = new Protected[names];
        for (int name = 0; name < names; name++) {
            places[name] = new Protected();
        }
        CountDownLatch start = new CountDownLatch(1);
        List<Turns> all = new ArrayList<>();
        for (int task = 0; task < tasks; task++) {
            int name = task % names;
            InterProcessMutex mutex = new InterProcessMutex(client, prefix + "/" + name);
            Turns turns = new Turns(mutex, places[name], task + 1, start, millis);
            turns.start();
            all.add(turns);
        }
        long started = System.nanoTime();
        start.countDown();
        long passed = 0;
        for (Turns turns : all) {
            turns.join();
            if (turns.failure != null) {
                throw turns.failure;
            }
            passed += turns.passed;
        }
        long elapsed = System.nanoTime() - started;
        long counted = 0;
        for (Protected place : places) {
            counted += place.counter;
        }
        String shares = all.stream().map(turns -> Long.toString(turns.acquired)).collect(Collectors.joining(","));
        String times = all.stream()
                .flatMap(turns -> turns.times.stream())
                .map(time -> Long.toString(time))
                .collect(Collectors.joining(","));
        out.println(elapsed + " " + passed + " " + counted + " " + shares + " " + times);
    }

    private void pass(long millis) throws Exception {
        InterProcessMutex mutex = new InterProcessMutex(client, "/bench/curator/w3p");
        StringBuilder lines = new StringBuilder();
        long end = System.nanoTime() + millis * 1_000_000;
        while (true) {
            mutex.acquire();
            // On Linux this is the clock that the other processes look at.
            long granted = System.nanoTime();
            long released = System.nanoTime();
            mutex.release();
            if (granted > end) {
                break;
            }
            lines.append(granted).append(' ').append(released).append('\n');
        }
        out.print(lines);
        out.println("end");
    }

    private void hold(String path) throws Exception {
        held = new InterProcessMutex(client, path);
        held.acquire();
        out.println("held");
    }

    private void waitFor(int count, String path) {
        for (int waiter = 0; waiter < count; waiter++) {
            InterProcessMutex mutex = new InterProcessMutex(client, path);
            Thread thread = new Thread(() -> {
                try {
                    mutex.acquire();
                    mutex.release();
                } catch (Exception failed) {
                    // Without an answer the harness fails.
                    System.exit(1);
                }
            });
            thread.start();
            waiting.add(thread);
        }
        out.println("waiting");
    }

    private void release() throws Exception {
        long started = System.nanoTime();
        held.release();
        for (Thread thread : waiting) {
            thread.join();
        }
        waiting.clear();
        out.println(System.nanoTime() - started);
    }

    private void obey(String[] words) throws Exception {
        switch (words[0]) {
            case "round" -> round(
                    Integer.parseInt(words[1]), Integer.parseInt(words[2]), Long.parseLong(words[3]), words[4]);
            case "pass" -> pass(Long.parseLong(words[1]));
            case "hold" -> hold(words[1]);
            case "wait" -> waitFor(Integer.parseInt(words[1]), words[2]);
            case "release" -> release();
            default -> throw new IllegalArgumentException(words[0]);
        }
        out.flush();
    }

    public static void main(String[] words) throws Exception {
        CuratorFramework client = CuratorFrameworkFactory.newClient(
                words[0], SESSION_MILLIS, SESSION_MILLIS, new ExponentialBackoffRetry(100, 3));
        client.start();
        client.blockUntilConnected();
        PrintStream out = new PrintStream(System.out, false);
        out.println("ready " + client.getZookeeperClient().getZooKeeper().getSessionId());
        out.flush();
        CuratorPeer peer = new CuratorPeer(client, out);
        BufferedReader orders = new BufferedReader(new InputStreamReader(System.in));
        for (String order = orders.readLine(); order != null; order = orders.readLine()) {
            peer.obey(order.split(" "));
        }
        client.close();
    }
}
