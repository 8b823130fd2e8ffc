//! The ends of waits in an outage. Without one, no wait ends like that.

use std::time::Duration;

use lockkeeper_core::{
    AcquireError, Keeper, LatchError, StoreErrorKind, all,
    testing::{self, Fate, Virtual},
};
use lockkeeper_testkit::faulty::{Faults, Network, faulty};
use tokio::time::{Instant, sleep};

use crate::{DEAD, NAME, WELL, behind, ended, is_outage, log::Log, millis, secs};

#[tokio::test(start_paused = true)]
async fn a_wait_that_hears_nothing_or_failures_ends_with_the_stores_error() {
    Log::listen();
    let world = Virtual::new();
    let network = Network::good();
    let (ours, theirs) = (behind(&world, &network).await, world.keeper().await);
    let held = theirs.mutex(NAME).lock().await.expect("free");
    let busy = ours.mutex(NAME).lock_within(secs(5)).await.expect_err("held");
    assert!(matches!(busy, AcquireError::TimedOut { ahead: Some(0), .. }), "{busy}");

    network.set(DEAD);
    // Less than a request takes to fail, so nothing is heard; and long enough to hear of failures.
    for limit in [millis(100), secs(5)] {
        for mutex in [ours.mutex(NAME), ours.mutex(NAME).fifo()] {
            let start = Instant::now();
            let error = mutex.lock_within(limit).await.expect_err("no store");
            assert!(is_outage(&error), "{error}");
            assert!(!error.to_string().contains("who holds it"), "{error}");
            assert!(start.elapsed() <= limit + millis(10));
        }
        for result in [
            ours.rw_lock(NAME).read_within(limit).await.map(drop),
            ours.semaphore(NAME, 3).acquire_within(limit).await.map(drop),
            ours.election(NAME).campaign_within("me", limit).await.map(drop),
        ] {
            let error = result.expect_err("no store");
            assert!(is_outage(&error), "{error}");
        }
    }
    drop(held);
}

/// The last thing that was heard decides, not the first.
#[tokio::test(start_paused = true)]
async fn an_outage_that_begins_during_a_wait_or_ends_before_it_counts_as_it_is_at_the_end() {
    Log::listen();
    let world = Virtual::new();
    let network = Network::good();
    let (ours, theirs) = (behind(&world, &network).await, world.keeper().await);
    let held = theirs.mutex(NAME).lock().await.expect("free");
    for mutex in [ours.mutex(NAME), ours.mutex(NAME).fifo()] {
        let waiting = tokio::spawn({
            let mutex = mutex.clone();
            async move { mutex.lock_within(secs(20)).await }
        });
        sleep(secs(5)).await;
        network.set(DEAD);
        let error = waiting.await.expect("no panic").expect_err("held");
        assert!(is_outage(&error) && error.maybe_applied(), "{error}");
        let waiting = tokio::spawn(async move { mutex.lock_within(secs(20)).await });
        sleep(secs(10)).await;
        network.set(WELL);
        let error = waiting.await.expect("no panic").expect_err("held");
        assert!(matches!(error, AcquireError::TimedOut { ahead: Some(0), .. }), "{error}");
    }
    drop(held);
}

/// Each task in front gives up just before the outage has lasted for too long. The outage does not begin anew for the next.
#[tokio::test(start_paused = true)]
async fn an_outage_lasts_as_long_for_one_who_waits_behind_others() {
    Log::listen();
    let world = Virtual::new();
    let network = Network::good();
    let ours = behind(&world, &network).await;
    network.set(DEAD);
    let begun = Instant::now();
    let ahead: Vec<_> = [29, 58]
        .map(|limit| {
            let mutex = ours.mutex(NAME);
            tokio::spawn(async move { mutex.lock_within(secs(limit)).await.map(drop) })
        })
        .into();
    tokio::task::yield_now().await;
    let error = ours.mutex(NAME).lock().await.expect_err("no store");
    assert!(is_outage(&error) || matches!(error, AcquireError::Store(_)), "{error}");
    assert!(begun.elapsed() < secs(35), "{:?}", begun.elapsed());
    for result in ended(ahead).await {
        result.expect_err("no store");
    }
}

/// All limits pass at the same moment, so each task becomes the front for no time at all.
#[tokio::test(start_paused = true)]
async fn tasks_behind_another_of_their_process_end_as_the_first_does() {
    Log::listen();
    let world = Virtual::new();
    let network = Network::good();
    let (ours, theirs) = (behind(&world, &network).await, world.keeper().await);
    let held = theirs.mutex(NAME).lock().await.expect("free");
    let crowd = |limit: Duration| -> Vec<_> {
        (0..20)
            .map(|place| {
                let mutex = ours.mutex(NAME);
                // Some with the front's limit, some earlier.
                let limit = limit - millis(place % 3);
                tokio::spawn(async move { mutex.lock_within(limit).await })
            })
            .collect()
    };
    for result in ended(crowd(secs(5))).await {
        let error = result.expect_err("held");
        assert!(matches!(error, AcquireError::TimedOut { .. }), "{error}");
    }
    network.set(DEAD);
    for limit in [millis(100), secs(5)] {
        for result in ended(crowd(limit)).await {
            let error = result.expect_err("no store");
            assert!(is_outage(&error), "{error}");
        }
    }
    drop(held);
}

/// The front is dropped by its caller in the middle of an outage.
#[tokio::test(start_paused = true)]
async fn a_task_that_moves_up_goes_on_with_what_was_heard_before_it() {
    Log::listen();
    let world = Virtual::new();
    let network = Network::good();
    let (ours, theirs) = (behind(&world, &network).await, world.keeper().await);
    let held = theirs.mutex(NAME).lock().await.expect("free");
    for (faults, outage) in [(WELL, false), (DEAD, true)] {
        network.set(faults);
        let (front, next) = (ours.mutex(NAME), ours.mutex(NAME));
        let front = tokio::spawn(async move { front.lock().await });
        tokio::task::yield_now().await;
        let next = tokio::spawn(async move { next.lock_within(secs(5)).await });
        sleep(secs(5) - millis(1)).await;
        // From here on, nothing is answered in time.
        network.set(DEAD);
        front.abort();
        let error = next.await.expect("no panic").expect_err("held");
        assert_eq!(is_outage(&error), outage, "{error}");
    }
    drop(held);
}

/// Another call of the same owner is acquiring it.
#[tokio::test(start_paused = true)]
async fn calls_behind_another_of_their_owner_end_as_the_first_does() {
    Log::listen();
    let world = Virtual::new();
    let network = Network::good();
    let (ours, theirs) = (behind(&world, &network).await, world.keeper().await);
    let held = theirs.rw_lock(NAME).write().await.expect("free");
    let (lock, owner) = (ours.rw_lock(NAME), ours.owner());
    for (faults, outage) in [(WELL, false), (DEAD, true)] {
        network.set(faults);
        let (first, second) =
            tokio::join!(lock.read_as_within(&owner, secs(5)), lock.read_as_within(&owner, secs(4)));
        for result in [first, second] {
            let error = result.expect_err("held");
            assert_eq!(is_outage(&error), outage, "{error}");
            assert_eq!(matches!(error, AcquireError::TimedOut { .. }), !outage, "{error}");
        }
    }
    drop(held);
}

/// The other call of the owner only tries, and hears nothing for longer than this call waits.
#[tokio::test(start_paused = true)]
async fn a_call_behind_a_try_of_its_owner_hears_of_an_outage() {
    Log::listen();
    let world = Virtual::new();
    let network = Network::good();
    let keeper = behind(&world, &network).await;
    let (mutex, owner) = (keeper.mutex(NAME), keeper.owner());
    network.set(DEAD);
    let (tried, waited) = tokio::join!(mutex.try_lock_as(&owner), mutex.lock_as_within(&owner, secs(1)));
    assert!(matches!(tried, Err(AcquireError::Store(_))), "{tried:?}");
    let error = waited.expect_err("no store");
    assert!(is_outage(&error) && !error.maybe_applied(), "{error}");
}

/// Only the front has asked the store for anything.
#[tokio::test(start_paused = true)]
async fn tasks_behind_the_front_know_that_they_hold_nothing() {
    Log::listen();
    let world = Virtual::new();
    let network = Network::good();
    let keeper = behind(&world, &network).await;
    network.set(DEAD);
    let crowd: Vec<_> = (0..5)
        .map(|_| {
            let mutex = keeper.mutex(NAME);
            tokio::spawn(async move { mutex.lock().await })
        })
        .collect();
    let mut maybe_applied = Vec::new();
    for result in ended(crowd).await {
        let error = result.expect_err("no store");
        assert!(matches!(error, AcquireError::Store(_)), "{error}");
        maybe_applied.push(error.maybe_applied());
    }
    assert_eq!(maybe_applied, [true, false, false, false, false]);
}

/// A task of this process holds it, and the store has nothing to do with that.
#[tokio::test(start_paused = true)]
async fn a_lock_that_this_process_holds_is_busy() {
    Log::listen();
    let world = Virtual::new();
    let network = Network::good();
    let keeper = behind(&world, &network).await;
    let held = keeper.mutex(NAME).lock().await.expect("free");
    let error = keeper.mutex(NAME).lock_within(millis(5)).await.expect_err("held");
    assert!(matches!(error, AcquireError::TimedOut { .. }), "{error}");
    drop(held);
}

/// Claims of one name go to the store one by one, so the limit of some passes before they are sent.
#[tokio::test(start_paused = true)]
async fn a_lock_that_is_too_busy_to_be_asked_for_is_busy() {
    Log::listen();
    let world = Virtual::new();
    let network = Network::good();
    let (ours, theirs) = (behind(&world, &network).await, world.keeper().await);
    let held = theirs.semaphore(NAME, 1).acquire().await.expect("free");
    let crowd = || -> Vec<_> {
        (0..200)
            .map(|_| {
                let semaphore = ours.semaphore(NAME, 1);
                tokio::spawn(async move { semaphore.acquire_within(millis(500)).await.map(drop) })
            })
            .collect()
    };
    network.set(Faults { usual: 10, ..WELL });
    let mut never_sent = 0;
    for result in ended(crowd()).await {
        let error = result.expect_err("held");
        assert!(matches!(error, AcquireError::TimedOut { .. }), "{error}");
        never_sent += usize::from(!error.maybe_applied());
    }
    assert!(never_sent > 50, "{never_sent}");
    // The last answers of before are there.
    sleep(secs(1)).await;
    network.set(DEAD);
    for result in ended(crowd()).await {
        let error = result.expect_err("no store");
        assert!(is_outage(&error), "{error}");
    }
    drop(held);
}

/// The last lock is asked for when less time is left than an answer takes.
#[tokio::test(start_paused = true)]
async fn locks_that_are_too_busy_together_are_busy() {
    Log::listen();
    let world = Virtual::new();
    let network = testing::Network::new();
    let (ours, theirs) = (world.keeper_behind(&network).await, world.keeper().await);
    let held = theirs.mutex("a").lock().await.expect("free");
    let waiting = tokio::spawn(async move {
        let both = all(&[ours.mutex("a"), ours.mutex("b")]);
        (both.lock_within(secs(5)).await.map(drop), ours)
    });
    sleep(secs(5) - millis(30)).await;
    // The grant of the first is pushed, so the next request is the claim of the second.
    network.next(Fate::late(millis(100)));
    held.release().await.expect("held");
    let (result, ours) = waiting.await.expect("no panic");
    let error = result.expect_err("too late");
    assert!(matches!(error, AcquireError::TimedOut { .. }), "{error}");
    assert!(error.to_string().contains("\"b\"") && error.maybe_applied(), "{error}");
    drop(ours);
}

#[tokio::test(start_paused = true)]
async fn a_latch_that_nothing_is_heard_of_is_not_closed() {
    Log::listen();
    let world = Virtual::new();
    let network = Network::good();
    let keeper = behind(&world, &network).await;
    let latch = keeper.latch(NAME);
    latch.create(2).await.expect("new");
    let waiting = tokio::spawn({
        let latch = latch.clone();
        async move { latch.wait_within(secs(20)).await }
    });
    sleep(secs(5)).await;
    network.set(DEAD);
    let error = waiting.await.expect("no panic").expect_err("no store");
    assert!(
        matches!(&error, LatchError::Store(error) if error.kind() == StoreErrorKind::Unreachable),
        "{error}"
    );
    assert!(!error.maybe_applied(), "a look changes nothing");
    let waiting = tokio::spawn(async move { latch.wait_within(secs(20)).await });
    sleep(secs(10)).await;
    network.set(WELL);
    let error = waiting.await.expect("no panic").expect_err("closed");
    assert!(matches!(error, LatchError::TimedOut { remaining: 2, .. }), "{error}");
}

/// A look changes nothing, so a wait for a latch is bounded by the keeper's limit alone.
#[tokio::test(start_paused = true)]
async fn waits_outlast_an_outage_that_is_shorter_than_the_limit() {
    Log::listen();
    let world = Virtual::new();
    let network = Network::good();
    let store = faulty(world.server.connector("memory:"), network.clone());
    let builder = Keeper::builder(store).virtual_time(world.clock.clock()).outage_limit(Duration::MAX);
    let (ours, theirs) = (builder.connect().await.expect("a good network"), world.keeper().await);
    let held = theirs.mutex(NAME).lock().await.expect("free");
    theirs.latch(NAME).create(1).await.expect("new");
    let (mutex, latch) = (ours.mutex(NAME), ours.latch(NAME));
    let locking = tokio::spawn(async move { mutex.lock().await.map(drop) });
    let opening = tokio::spawn(async move { latch.wait().await });
    sleep(secs(1)).await;
    network.set(DEAD);
    sleep(secs(3600)).await;
    assert!(!locking.is_finished() && !opening.is_finished(), "they wait for ever");
    network.set(WELL);
    drop(held);
    theirs.latch(NAME).count_down().await.expect("there");
    locking.await.expect("no panic").expect("granted in the end");
    opening.await.expect("no panic").expect("open");
}
