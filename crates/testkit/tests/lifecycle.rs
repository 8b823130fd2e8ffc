//! Beginnings and ends: closing, dropping, outages and doubled messages, each as somebody once
//! found it to go wrong.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use lockkeeper_core::{
    AcquireError, Error, Keeper, LatchError, Lost, StoreError, StoreErrorKind, memory::MemoryServer,
    store::Verdict, testing::Virtual,
};
use lockkeeper_testkit::{
    dice::Dice,
    faulty::{Fate, Faults, Network, faulty},
    overrides::Overrides,
};
use tokio::time::{Instant, sleep, timeout};

const NAME: &str = "stock/42";

fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

async fn behind(world: &Virtual, network: &Arc<Network>) -> Keeper {
    let store = faulty(world.server.connector("memory:"), network.clone());
    let builder = Keeper::builder(store).virtual_time(world.clock.clock()).outage_limit(secs(5));
    builder.connect().await.expect("a good network")
}

/// A second copy of a grant's message must not give back a lease that has moved on to another process.
#[tokio::test(start_paused = true)]
async fn a_doubled_grant_message_does_not_release_a_detached_lease() {
    for seed in 0..20 {
        let world = Virtual::new();
        let network = Network::new(Dice::new(seed), Faults { odd_wake: 1000, late: 4000, ..Faults::NONE });
        let (ours, theirs) = (behind(&world, &network).await, world.keeper().await);
        let held = theirs.mutex(NAME).lock().await.expect("free");
        let mutex = ours.mutex(NAME).detachable();
        let waiting = tokio::spawn(async move { mutex.lock().await });
        sleep(millis(50)).await;
        held.release().await.expect("held");
        let guard = waiting.await.expect("no panic").expect("granted");
        let lease = guard.into_lease().await.expect("held");
        let adopted = theirs.adopt(&lease).await.expect("alive");
        sleep(secs(10)).await;
        assert!(world.keeper().await.mutex(NAME).try_lock().await.expect("memory").is_none(), "seed {seed}");
        adopted.release().await.expect("still held");
    }
}

/// Nor a retired hold, which its owner has left for others to wait for.
#[tokio::test(start_paused = true)]
async fn a_doubled_grant_message_does_not_cut_a_minimum_hold_short() {
    for seed in 0..20 {
        let world = Virtual::new();
        let network = Network::new(Dice::new(seed), Faults { odd_wake: 1000, late: 1500, ..Faults::NONE });
        let (ours, theirs) = (behind(&world, &network).await, world.keeper().await);
        let held = theirs.mutex(NAME).lock().await.expect("free");
        let mutex = ours.mutex(NAME).min_hold(secs(20));
        let waiting = tokio::spawn(async move { mutex.lock().await });
        sleep(millis(50)).await;
        held.release().await.expect("held");
        let guard = waiting.await.expect("no panic").expect("granted");
        let granted = Instant::now();
        // The release gets lost and is tried again, while the message comes once more.
        network.set(Faults { lost_request: 1000, ..Faults::NONE });
        drop(guard);
        sleep(secs(2)).await;
        network.set(Faults::NONE);
        let next = theirs.mutex(NAME).lock().await.expect("free in the end");
        assert!(granted.elapsed() >= secs(15), "seed {seed}: {:?}", granted.elapsed());
        next.release().await.expect("held");
    }
}

/// On a store where every answer comes at once, a loop of locks still lets other tasks of its runtime run.
#[tokio::test]
async fn a_loop_of_locks_lets_others_run() {
    let keeper = lockkeeper_core::testing::keeper().await;
    let mutex = keeper.mutex(NAME);
    let (stop, stopped) =
        (Arc::new(std::sync::atomic::AtomicBool::new(false)), tokio::sync::oneshot::channel());
    let (told, hears) = stopped;
    let stopping = {
        let stop = stop.clone();
        tokio::spawn(async move {
            tokio::task::yield_now().await;
            stop.store(true, std::sync::atomic::Ordering::Relaxed);
            told.send(()).expect("heard");
        })
    };
    let mut turns = 0;
    while !stop.load(std::sync::atomic::Ordering::Relaxed) {
        drop(mutex.lock().await.expect("free"));
        assert!(mutex.try_lock().await.is_ok());
        turns += 1;
        assert!(turns < 200, "nobody else has had a turn");
    }
    hears.await.expect("told");
    stopping.await.expect("no panic");
}

#[tokio::test(start_paused = true)]
async fn an_owner_holds_in_one_store_only() {
    let (one, other) = (Virtual::new(), Virtual::new());
    let (here, there) = (one.keeper().await, other.keeper().await);
    let owner = here.owner();
    let first = here.mutex(NAME).lock_as(&owner).await.expect("free");
    let second = there.mutex(NAME).lock_as(&owner).await.expect("free");
    assert!(there.inspect(NAME).await.expect("memory").is_some(), "the other store was asked");
    drop((first, second));
}

#[tokio::test(start_paused = true)]
async fn an_owner_does_not_write_while_it_becomes_a_reader() {
    let world = Virtual::new();
    let network = Network::good();
    let keeper = behind(&world, &network).await;
    let (lock, owner) = (keeper.rw_lock(NAME), keeper.owner());
    let writer = lock.write_as(&owner).await.expect("free");
    network.next(Fate::late(millis(100)));
    let downgrade = tokio::spawn(writer.downgrade());
    sleep(millis(10)).await;
    assert!(matches!(lock.write_as(&owner).await, Err(AcquireError::UpgradeRefused { .. })));
    drop(downgrade.await.expect("no panic").expect("held"));
}

#[tokio::test(start_paused = true)]
async fn closing_ends_those_who_wait_behind_a_task_of_the_same_process() {
    let world = Virtual::new();
    let keeper = world.keeper().await;
    let held = keeper.mutex(NAME).lock().await.expect("free");
    let mutex = keeper.mutex(NAME);
    let waiting = tokio::spawn(async move { mutex.lock().await });
    sleep(millis(1)).await;
    keeper.close().await;
    let waited = timeout(secs(60), waiting).await.expect("told at once").expect("no panic");
    assert!(matches!(waited, Err(AcquireError::Closed { .. })));
    let late = timeout(secs(60), keeper.mutex(NAME).lock()).await.expect("told at once");
    assert!(matches!(late, Err(AcquireError::Closed { .. })));
    assert!(!held.is_held());
}

#[tokio::test(start_paused = true)]
async fn closing_twice_ends_also_when_a_guard_is_dropped_in_between() {
    let world = Virtual::new();
    let keeper = world.keeper().await;
    let (guard, other) = (keeper.mutex("a").lock().await.expect("free"), keeper.clone());
    let mutex = keeper.mutex("a").fifo();
    let waiting = tokio::spawn(async move { mutex.lock().await });
    sleep(millis(1)).await;
    tokio::join!(keeper.close(), other.close());
    drop(guard);
    drop(waiting.await.expect("no panic"));
    timeout(secs(60), keeper.close()).await.expect("it has ended");
    assert_eq!(world.server.kept(), 0);
}

#[tokio::test(start_paused = true)]
async fn closing_gives_back_what_is_lost_but_still_guarded() {
    let world = Virtual::new();
    let (ours, theirs) = (world.keeper().await, world.keeper().await);
    let guard = ours.mutex(NAME).max_hold(secs(2)).lock().await.expect("free");
    assert_eq!(guard.lost().await, Lost::MaxHold);
    sleep(secs(1)).await;
    ours.close().await;
    assert!(theirs.mutex(NAME).try_lock().await.expect("memory").is_some(), "long before its lease ends");
    drop(guard);
}

#[tokio::test(start_paused = true)]
async fn an_outage_ends_all_who_wait_in_a_lane_at_once() {
    let world = Virtual::new();
    let network = Network::good();
    let keeper = behind(&world, &network).await;
    network.cut();
    let start = Instant::now();
    let waiting: Vec<_> = (0..20)
        .map(|_| {
            let mutex = keeper.mutex(NAME);
            tokio::spawn(async move { mutex.lock().await })
        })
        .collect();
    for (task, is_front) in waiting.into_iter().zip([true].into_iter().chain(std::iter::repeat(false))) {
        let error = task.await.expect("no panic").expect_err("no store");
        assert_eq!(error.maybe_applied(), is_front, "its claim may have arrived, the others sent none");
        assert!(error.to_string().contains(NAME), "{error}");
    }
    assert!(start.elapsed() < secs(9), "the limit is 5 s, not 5 s for each: {:?}", start.elapsed());
}

/// A mistake of one task is no business of the tasks that wait behind it.
#[tokio::test(start_paused = true)]
async fn a_task_that_is_refused_fails_alone() {
    let world = Virtual::new();
    let network = Network::new(Dice::new(1), Faults { usual: 10, ..Faults::NONE });
    let refused = AtomicBool::new(false);
    let overrides = Overrides::new().verdicts(move |_, verdict| {
        if refused.swap(true, Ordering::Relaxed) {
            return verdict;
        }
        Verdict::Refused(StoreError::new(StoreErrorKind::Denied, "not you"))
    });
    let store = overrides.of(faulty(world.server.connector("memory:"), network));
    let keeper =
        Keeper::builder(store).virtual_time(world.clock.clock()).connect().await.expect("a good network");
    let mutex = keeper.mutex(NAME);
    let (first, second) = tokio::join!(mutex.lock(), mutex.lock());
    assert!(first.expect_err("refused").to_string().contains("not you"));
    second.expect("its own claim was not refused").release().await.expect("held");
}

/// The store can do nothing at this moment and says so. Waiters ask again, and try-claims as well, but for no longer
/// than a request may take.
#[tokio::test(start_paused = true)]
async fn what_a_store_cannot_do_now_is_asked_for_again() {
    let world = Virtual::new();
    let refusals = Arc::new(AtomicUsize::new(0));
    let left = refusals.clone();
    let overrides = Overrides::new().verdicts(move |_, verdict| {
        let refuse =
            left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok();
        let error = || StoreError::new(StoreErrorKind::Conflict, "on the move");
        if refuse { Verdict::NotNow(error()) } else { verdict }
    });
    let store = overrides.of(world.server.connector("memory:"));
    let keeper = Keeper::builder(store).virtual_time(world.clock.clock()).connect().await.expect("memory");
    refusals.store(3, Ordering::Relaxed);
    keeper.mutex(NAME).lock().await.expect("in the end").release().await.expect("held");
    refusals.store(3, Ordering::Relaxed);
    let tried = keeper.mutex(NAME).try_lock().await.expect("in the end").expect("free");
    tried.release().await.expect("held");
    refusals.store(usize::MAX, Ordering::Relaxed);
    let start = Instant::now();
    let error = keeper.mutex(NAME).try_lock().await.expect_err("never");
    assert!(error.to_string().contains("on the move") && !error.maybe_applied(), "{error}");
    assert!(start.elapsed() >= secs(2) && start.elapsed() < secs(4), "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_task_whose_lease_is_too_short_fails_alone() {
    let world = Virtual::new();
    let network = Network::good();
    let keeper = behind(&world, &network).await;
    network.set(Faults { usual: 40, slow: 1000, late: 100, ..Faults::NONE });
    let (short, usual) = (keeper.mutex(NAME).lease(millis(10)), keeper.mutex(NAME));
    let (short, usual) = tokio::join!(short.lock(), usual.lock());
    assert!(short.expect_err("always too late").to_string().contains("longer lease"));
    usual.expect("long enough").release().await.expect("held");
}

/// A waiter may have been granted the lock at the very moment it stopped waiting.
#[tokio::test(start_paused = true)]
async fn who_timed_out_says_whether_it_may_hold() {
    let world = Virtual::new();
    let network = Network::good();
    let (ours, theirs) = (behind(&world, &network).await, world.keeper().await);
    let held = theirs.mutex(NAME).lock().await.expect("free");
    let mutex = ours.mutex(NAME);
    let (front, behind_it) = tokio::join!(mutex.lock_within(millis(100)), mutex.lock_within(millis(50)));
    assert!(front.expect_err("held").maybe_applied(), "it was in the queue");
    assert!(!behind_it.expect_err("held").maybe_applied(), "the store never heard of it");
    network.cut();
    let lost = ours.mutex("other").lock_within(millis(100)).await.expect_err("cut");
    assert!(matches!(lost, AcquireError::Store(_)) && lost.maybe_applied(), "{lost}");
    drop(held);
}

/// The limit is for all of them together, so the error tells how long the call has waited, not its last lock.
#[tokio::test(start_paused = true)]
async fn the_error_of_several_locks_tells_the_whole_wait() {
    let world = Virtual::new();
    let (ours, theirs) = (world.keeper().await, world.keeper().await);
    let _second = theirs.mutex("second").lock().await.expect("free");
    let both = lockkeeper_core::all([&ours.mutex("first"), &ours.mutex("second")]);
    // Once it waits at the store, and once behind another task of its process.
    for front in [None, Some(ours.mutex("second"))] {
        let first = theirs.mutex("first").lock().await.expect("free");
        let front =
            front.map(|mutex| tokio::spawn(async move { mutex.lock_within(secs(5)).await.map(drop) }));
        let (error, ()) = tokio::join!(both.lock_within(secs(1)), async {
            sleep(millis(600)).await;
            first.release().await.expect("held");
        });
        let error = error.expect_err("the second is held");
        let AcquireError::TimedOut { waited, .. } = &error else { panic!("{error}") };
        assert!(*waited >= secs(1), "{error}");
        if let Some(front) = front {
            front.abort();
        }
    }
}

/// Each of them would enter the store's queue only to leave it again.
#[tokio::test(start_paused = true)]
async fn a_crowd_that_times_out_at_once_costs_the_store_one_position() {
    let world = Virtual::new();
    let network = Network::good();
    let (ours, theirs) = (behind(&world, &network).await, world.keeper().await);
    let held = theirs.mutex(NAME).lock().await.expect("free");
    let crowd: Vec<_> = (0..100)
        .map(|_| {
            let mutex = ours.mutex(NAME);
            tokio::spawn(async move { mutex.lock_within(millis(100)).await })
        })
        .collect();
    let mut known = 0;
    for task in crowd {
        let error = task.await.expect("no panic").expect_err("held");
        assert!(matches!(error, AcquireError::TimedOut { .. }), "{error}");
        known += usize::from(error.maybe_applied());
    }
    assert_eq!(known, 1, "so many have entered the store's queue");
    held.release().await.expect("held");
}

#[tokio::test(start_paused = true)]
async fn errors_of_the_store_name_resource_and_operation() {
    let world = Virtual::new();
    let network = Network::good();
    let keeper = behind(&world, &network).await;
    let guard = keeper.mutex(NAME).lock().await.expect("free");
    network.cut();
    let errors: [Error; 5] = [
        keeper.fence(NAME).admit(guard.token()).await.expect_err("cut").into(),
        keeper.latch(NAME).count_down().await.expect_err("cut").into(),
        keeper.mutex(NAME).try_lock().await.expect_err("cut").into(),
        guard.extend(secs(1)).await.expect_err("cut").into(),
        keeper.inspect(NAME).await.expect_err("cut"),
    ];
    for (error, operation) in errors.iter().zip(["admit", "count_down", "try_lock", "extend", "inspect"]) {
        let text = error.to_string();
        assert!(text.contains(NAME) && text.contains("memory:") && text.contains(operation), "{text}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_latch_is_waited_for_no_longer_than_the_limit() {
    let world = Virtual::new();
    let network = Network::good();
    let keeper = behind(&world, &network).await;
    let latch = keeper.latch(NAME);
    latch.create(2).await.expect("new");
    let early = latch.wait_within(millis(100)).await.expect_err("closed");
    assert!(matches!(early, LatchError::TimedOut { remaining: 2, .. }), "{early}");
    network.cut();
    let start = Instant::now();
    let cut = latch.wait_within(millis(100)).await.expect_err("no store");
    assert!(matches!(&cut, LatchError::Store(error) if error.kind() == StoreErrorKind::Unreachable), "{cut}");
    assert!(start.elapsed() < millis(200));
}

#[tokio::test(start_paused = true)]
async fn settings_that_contradict_each_other_are_refused() {
    let world = Virtual::new();
    let keeper = world.keeper().await;
    let mutex = keeper.mutex(NAME);
    for bad in [
        mutex.clone().lease(Duration::ZERO).min_hold(secs(1)),
        mutex.clone().expires_after(millis(100)).min_hold(secs(3)),
        mutex.clone().max_hold(secs(1)).min_hold(secs(2)),
    ] {
        let error = bad.lock().await.expect_err("a contradiction");
        assert!(matches!(error, AcquireError::Invalid { .. }), "{error}");
    }
    assert_eq!(keeper.inspect(NAME).await.expect("memory"), None);
}

#[tokio::test(start_paused = true)]
async fn a_lost_lock_keeps_its_minimum_hold() {
    let world = Virtual::new();
    let (ours, theirs) = (world.keeper().await, world.keeper().await);
    let start = Instant::now();
    let guard = ours.mutex(NAME).expires_after(secs(2)).min_hold(secs(2)).lock().await.expect("free");
    guard.lost().await;
    drop(guard);
    drop(theirs.mutex(NAME).lock().await.expect("free in the end"));
    assert!(start.elapsed() >= secs(2), "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn an_adopted_lease_keeps_its_limits() {
    let world = Virtual::new();
    let (ours, theirs) = (world.keeper().await, world.keeper().await);
    let mutex = ours.mutex(NAME).max_hold(secs(10)).detachable();
    let guard = mutex.lock().await.expect("free");
    sleep(secs(4)).await;
    let lease = guard.into_lease().await.expect("held");
    let start = Instant::now();
    let adopted = theirs.adopt(&lease).await.expect("alive");
    assert_eq!(adopted.lost().await, Lost::MaxHold);
    assert!(start.elapsed() <= secs(6), "{:?}", start.elapsed());
    drop(adopted);
    // Also where the rest of one limit is below the other.
    let mutex = ours.mutex(NAME).min_hold(secs(8)).max_hold(secs(10)).detachable();
    let guard = mutex.lock().await.expect("free");
    sleep(secs(3)).await;
    let short = guard.into_lease().await.expect("held");
    theirs.adopt(&short).await.expect("alive").release().await.expect("held");
    let written = lease.to_string();
    let forged = written.replace(":30000:", ":99999999999999:");
    assert_ne!(forged, written);
    theirs.adopt(&forged.parse().expect("a lease")).await.expect_err("longer than this store keeps a lease");
}

#[tokio::test(start_paused = true)]
async fn a_store_slower_than_the_lease_is_reported_and_not_asked_for_ever() {
    let world = Virtual::new();
    let network = Network::good();
    let keeper = behind(&world, &network).await;
    network.set(Faults { usual: 1000, slow: 1000, late: 1900, ..Faults::NONE });
    let lock = keeper.mutex(NAME).lease(millis(10));
    let error = timeout(secs(600), lock.lock()).await.expect("it gives up").expect_err("always too late");
    assert!(error.to_string().contains("longer lease"), "{error}");
}

/// Requests of all runtimes go through the keeper's own thread: none that ends or stands still
/// keeps the others waiting.
#[test]
fn a_runtime_that_ends_or_stands_still_stops_nobody_else() {
    let build = || tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let (main, first) = (build(), build());
    let server = MemoryServer::new(lockkeeper_core::clock::Clock::boot());
    let network = Network::new(Dice::new(1), Faults { slow: 1000, late: 100, usual: 100, ..Faults::NONE });
    let keeper = main.block_on(Keeper::builder(faulty(server.connector("memory:"), network)).connect());
    let keeper = keeper.expect("a slow network");
    for round in 0..10 {
        let (one, two) = (keeper.mutex("one"), keeper.mutex("two"));
        // It starts a request and then neither goes on nor sees the answer.
        first.spawn(async move { one.lock().await });
        first.block_on(async { tokio::task::yield_now().await });
        let answered = main.block_on(async {
            let taken = timeout(secs(5), two.try_lock()).await.expect("not held up").expect("memory");
            // Not dropped: it would go along with the request that stands still, whose delay is a timer of its runtime.
            taken.unwrap_or_else(|| panic!("round {round}")).release().await
        });
        answered.expect("held");
    }
    drop(first);
    let done = main.block_on(async {
        timeout(secs(5), keeper.mutex("three").lock())
            .await
            .expect("not held up")
            .expect("free")
            .release()
            .await
    });
    done.expect("held");
    main.block_on(async { timeout(secs(10), keeper.close()).await }).expect("it ends");
}
