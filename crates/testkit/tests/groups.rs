//! Groups of requests to a store that takes several at a time: they may overtake each other on their way.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use lockkeeper_core::{
    AcquireError, Keeper,
    store::Verdict,
    testing::{self, Virtual},
};
use lockkeeper_testkit::{
    faulty::{Fate, Faults, Network, faulty},
    overrides::Overrides,
};
use tokio::{
    task::JoinHandle,
    time::{Instant, sleep, timeout},
};

fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// Overrides of a store that takes three groups at a time.
fn three_groups() -> Overrides {
    Overrides::new().capability(|capability| capability.requests_at_once = 3)
}

/// A keeper of a store that takes three groups at a time, behind this network.
async fn behind(world: &Virtual, network: &testing::Network) -> Keeper {
    let store = network.wrap(three_groups().of(world.server.connector("memory:")));
    Keeper::builder(store).virtual_time(world.clock.clock()).connect().await.expect("memory")
}

async fn done(tasks: Vec<JoinHandle<()>>) {
    for task in tasks {
        task.await.expect("no panic");
    }
}

/// A claim that comes before the release of its own task meets a lock that is still held, and then waits for what it gave back itself.
#[tokio::test(start_paused = true)]
async fn a_claim_travels_with_the_release_before_it() {
    let world = Virtual::new();
    let (network, busy) = (Network::good(), Arc::new(AtomicUsize::new(0)));
    network.set(Faults { usual: 20, ..Faults::NONE });
    let counted = busy.clone();
    let store = three_groups()
        .verdicts(move |_, verdict| {
            if matches!(verdict, Verdict::Busy { .. }) {
                counted.fetch_add(1, Ordering::Relaxed);
            }
            verdict
        })
        .of(faulty(world.server.connector("memory:"), network));
    let ours = Keeper::builder(store).virtual_time(world.clock.clock()).connect().await.expect("memory");
    for names in [1, 2] {
        let task = |task: usize| {
            let mutexes: Vec<_> = (0..names).map(|part| ours.mutex(&format!("name/{task}/{part}"))).collect();
            async move {
                for _ in 0..50 {
                    let mut guards = Vec::new();
                    for mutex in &mutexes {
                        guards.push(mutex.lock().await.expect("free"));
                    }
                }
            }
        };
        done((0..16).map(|nth| tokio::spawn(task(nth))).collect()).await;
        let busy = busy.load(Ordering::Relaxed);
        assert_eq!(busy, 0, "claims that overtook the release of their own task, with {names} names each");
    }
}

/// Leaves that get no answer are sent again and again. A claim waits for those before it only, so it fails in time.
#[tokio::test(start_paused = true)]
async fn releases_in_an_outage_hold_no_later_claim_back() {
    let world = Virtual::new();
    let network = testing::Network::new();
    let ours = behind(&world, &network).await;
    let lock = ours.rw_lock("stock").lease(secs(600));
    let (first, second) = (lock.read().await.expect("free"), lock.read().await.expect("shared"));
    network.cut();
    drop(first);
    sleep(secs(1)).await;
    drop(second);
    sleep(millis(500)).await;
    let tried = timeout(secs(10), lock.try_write()).await.expect("a try fails after a request limit or two");
    assert!(matches!(tried, Err(AcquireError::Store(_))), "{tried:?}");
    let waited = timeout(secs(40), lock.write()).await.expect("the outage limit bounds it");
    assert!(matches!(waited, Err(AcquireError::Store(_))), "{waited:?}");
}

/// The same for waiters that gave up.
#[tokio::test(start_paused = true)]
async fn waiters_that_gave_up_in_an_outage_hold_no_later_claim_back() {
    let world = Virtual::new();
    let network = testing::Network::new();
    let (ours, theirs) = (behind(&world, &network).await, world.keeper().await);
    let _held = theirs.mutex("stock").lease(secs(600)).lock().await.expect("free");
    let mutex = ours.mutex("stock").lease(secs(600)).fifo();
    let wait = |limit| {
        let mutex = mutex.clone();
        tokio::spawn(async move { mutex.lock_within(limit).await.map(drop).expect_err("held") })
    };
    let waiters = [wait(secs(2)), wait(secs(3))];
    sleep(secs(1)).await;
    network.cut();
    for waiter in waiters {
        waiter.await.expect("no panic");
    }
    sleep(millis(500)).await;
    let tried = timeout(secs(10), mutex.try_lock()).await.expect("a try fails after a request limit or two");
    assert!(matches!(tried, Err(AcquireError::Store(_))), "{tried:?}");
}

/// There is always a release of a reader under way. Those that came after the writer do not hold it back.
#[tokio::test(start_paused = true)]
async fn readers_of_the_same_process_do_not_starve_a_writer() {
    let world = Virtual::new();
    let network = testing::Network::new();
    let ours = behind(&world, &network).await;
    network.delay(millis(30));
    for nth in 0..3 {
        let lock = ours.rw_lock("stock");
        tokio::spawn(async move {
            sleep(millis(20 * nth)).await;
            loop {
                lock.read().await.expect("shared").release().await.expect("held");
            }
        });
    }
    for _ in 0..20 {
        sleep(millis(35)).await;
        let guard = timeout(secs(1), ours.rw_lock("stock").write()).await.expect("in time");
        guard.expect("granted").release().await.expect("held");
    }
}

/// The claim that was next is given up. The one behind it is sent at once, and not when another group ends.
#[tokio::test(start_paused = true)]
async fn a_claim_behind_one_that_was_given_up_is_sent_at_once() {
    let world = Virtual::new();
    let network = testing::Network::new();
    let ours = behind(&world, &network).await;
    let slow = [("a", 1500), ("b", 1500), ("c", 100)].map(|(name, delay)| {
        network.next(Fate::late(millis(delay)));
        let mutex = ours.mutex(name);
        tokio::spawn(async move { mutex.lock().await.map(drop).expect("free") })
    });
    sleep(millis(50)).await;
    // The first of these goes once a group has ended, and the others are behind it.
    network.next(Fate::late(millis(200)));
    let wait = || {
        let mutex = ours.mutex("stock").fifo();
        tokio::spawn(async move { mutex.lock_within(millis(600)).await })
    };
    let [first, second, third] = [wait(), wait(), wait()];
    sleep(millis(100)).await;
    second.abort();
    let begun = Instant::now();
    let held = first.await.expect("no panic").expect("free");
    assert!(begun.elapsed() < millis(300));
    let error = third.await.expect("no panic").expect_err("held");
    assert!(matches!(error, AcquireError::TimedOut { ahead: Some(0), .. }), "it was not sent: {error}");
    held.release().await.expect("held");
    done(slow.into()).await;
}
