//! A user's waker may panic or call the keeper. That is the trouble of its own task and of nobody else.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::mpsc,
    thread,
    time::Duration,
};

use lockkeeper_core::{
    Keeper,
    clock::Clock,
    memory::MemoryServer,
    testing::{Fate, Network, Virtual},
};
use lockkeeper_testkit::wakers::{left_with, panicking, that_does};
use tokio::{
    runtime::{Builder, Handle},
    task::yield_now,
    time::{sleep, timeout},
};

const SECOND: Duration = Duration::from_secs(1);
const LONG: Duration = Duration::from_secs(30);

/// Losses are noticed by the watchdog, which also renews all other locks.
#[tokio::test(start_paused = true)]
async fn a_panic_of_one_who_hears_of_a_loss_loses_no_other_lock() {
    let world = Virtual::new();
    let keeper = world.keeper().await;
    let fixed = keeper.mutex("fixed").expires_after(SECOND).lock().await.expect("free");
    let renewed = keeper.mutex("renewed").lease(3 * SECOND).lock().await.expect("free");
    let before = left_with(&panicking(), fixed.lost());
    let told = tokio::spawn(fixed.lost());
    yield_now().await;
    let after = left_with(&panicking(), fixed.lost());
    sleep(10 * SECOND).await;
    assert!(renewed.is_held(), "nobody renews any more");
    timeout(SECOND, told).await.expect("told, too").expect("no panic");
    drop((before, after));
}

#[tokio::test(start_paused = true)]
async fn a_panic_of_one_who_hears_of_a_release_leaves_no_lock_behind() {
    let world = Virtual::new();
    let keeper = world.keeper().await;
    let guard = keeper.mutex("name").lock().await.expect("free");
    let lost = left_with(&panicking(), guard.lost());
    catch_unwind(AssertUnwindSafe(|| drop(guard))).expect("dropping it does not panic");
    sleep(SECOND).await;
    assert!(keeper.inspect("name").await.expect("memory").is_none(), "it is still held");
    drop(lost);
}

#[tokio::test(start_paused = true)]
async fn a_panic_of_one_who_hears_that_it_was_handed_on_keeps_it_from_nobody() {
    let world = Virtual::new();
    let keeper = world.keeper().await;
    let mutex = keeper.mutex("name");
    let guard = mutex.lock().await.expect("free");
    let lost = left_with(&panicking(), guard.lost());
    let next = tokio::spawn(async move { mutex.lock().await });
    yield_now().await;
    catch_unwind(AssertUnwindSafe(|| drop(guard))).expect("dropping it does not panic");
    let next = timeout(LONG, next).await.expect("handed on").expect("no panic").expect("free");
    assert_eq!(next.token().step(), 1, "without the store");
    drop((next, lost));
    sleep(SECOND).await;
    assert!(keeper.inspect("name").await.expect("memory").is_none(), "it is still held");
}

/// The task that is handed the lock has it, although its waker panics. When it is gone, the next one has it.
#[tokio::test(start_paused = true)]
async fn a_panic_of_one_who_is_handed_a_lock_reaches_nobody() {
    let world = Virtual::new();
    let keeper = world.keeper().await;
    let mutex = keeper.mutex("name");
    let guard = mutex.lock().await.expect("free");
    let second = left_with(&panicking(), mutex.lock());
    let third = left_with(&panicking(), mutex.lock());
    let last = tokio::spawn({
        let mutex = mutex.clone();
        async move { mutex.lock().await.map(drop) }
    });
    yield_now().await;
    catch_unwind(AssertUnwindSafe(|| drop(guard))).expect("dropping it does not panic");
    catch_unwind(AssertUnwindSafe(|| drop(second))).expect("dropping it does not panic");
    drop(third.await.expect("handed on"));
    timeout(LONG, last).await.expect("handed on").expect("no panic").expect("free");
}

/// A try has one answer, and fails if that one is lost.
#[tokio::test(start_paused = true)]
async fn a_panic_of_one_who_is_answered_costs_a_try_of_its_group_nothing() {
    let world = Virtual::new();
    let keeper = world.keeper().await;
    world.network.next(Fate::late(SECOND / 100));
    let first = keeper.mutex("a");
    let first = tokio::spawn(async move { first.lock().await.map(drop) });
    yield_now().await;
    let (second, third) = (keeper.mutex("b"), keeper.mutex("c"));
    let claims = Vec::from_iter((0..3).map(|_| left_with(&panicking(), second.try_lock())));
    let third = tokio::spawn(async move { third.try_lock().await.map(|guard| guard.is_some()) });
    first.await.expect("no panic").expect("free");
    let taken = timeout(LONG, third).await.expect("it has an outcome").expect("no panic").expect("answered");
    assert!(taken, "it is free");
    drop(claims);
    timeout(LONG, keeper.close()).await.expect("nothing is left to wait for");
}

#[tokio::test(start_paused = true)]
async fn a_panic_of_those_who_wait_when_the_keeper_closes_stops_nothing() {
    let tasks = || Handle::current().metrics().num_alive_tasks();
    let (world, before) = (Virtual::new(), tasks());
    let keeper = world.keeper().await;
    let theirs = world.keeper().await;
    let held = theirs.mutex("name").lock().await.expect("free");
    let mutex = keeper.mutex("name");
    // One at the store and others behind it.
    let waiting = Vec::from_iter((0..4).map(|_| left_with(&panicking(), mutex.lock())));
    let closing = Vec::from_iter((0..16).map(|_| {
        let keeper = keeper.clone();
        left_with(&panicking(), async move { keeper.close().await })
    }));
    sleep(SECOND).await;
    timeout(LONG, keeper.close()).await.expect("nothing is left to wait for");
    drop((waiting, closing, held));
    timeout(LONG, theirs.close()).await.expect("nothing is left to wait for");
    sleep(SECOND).await;
    assert_eq!(tasks(), before, "the keeper's tasks go on");
}

/// The guard is sealed while it becomes a lease, and its owner waits for the outcome.
#[tokio::test(start_paused = true)]
async fn a_panic_of_an_owner_who_enters_again_costs_no_lease() {
    let world = Virtual::new();
    let keeper = world.keeper().await;
    let (owner, mutex) = (keeper.owner(), keeper.mutex("name").detachable());
    let guard = mutex.lock_as(&owner).await.expect("free");
    world.network.next(Fate::late(SECOND));
    let lease = tokio::spawn(guard.into_lease());
    yield_now().await;
    let again = left_with(&panicking(), mutex.lock_as(&owner));
    let lease = lease.await.expect("no panic").expect("held");
    drop(again);
    keeper.release_lease(&lease).await.expect("held");
}

#[tokio::test(start_paused = true)]
async fn a_panic_of_an_observer_does_not_end_what_it_observes() {
    let world = Virtual::new();
    let keeper = world.keeper().await;
    let election = keeper.election("name");
    let mut observer = election.observe();
    assert!(observer.next().await.expect("news").expect("memory").is_none(), "nobody leads");
    let next = left_with(&panicking(), observer.next());
    let leadership = election.campaign("us").await.expect("free");
    sleep(SECOND).await;
    drop(next);
    assert!(observer.next().await.expect("news").expect("memory").is_some(), "somebody leads");
    drop(leadership);
    let next = timeout(LONG, observer.next()).await.expect("news");
    assert!(next.expect("it goes on").expect("memory").is_none(), "nobody leads");
}

/// The keeper's thread takes requests over from tasks that do not poll them, and limits their time.
#[tokio::test]
async fn a_panic_of_one_whose_request_is_taken_over_leaves_no_request_without_a_limit() {
    let network = Network::new();
    let server = MemoryServer::new(Clock::boot());
    let store = network.wrap(server.connector("memory:"));
    let keeper = Keeper::builder(store).request_limit(SECOND / 2).connect().await.expect("memory");
    network.delay(SECOND / 10);
    let mutex = keeper.mutex("a");
    let claim = left_with(&panicking(), mutex.lock());
    while keeper.stats().held == 0 {
        sleep(SECOND / 100).await;
    }
    // Otherwise the next request could be sent on the keeper's thread, where it has a limit anyway.
    sleep(SECOND / 4).await;
    network.cut();
    let failed = timeout(LONG, keeper.mutex("b").try_lock()).await.expect("the request has a limit");
    failed.expect_err("the store is silent");
    drop(claim);
}

/// Whoever hears of a change may ask the keeper at once.
#[test]
fn a_waker_may_call_its_keeper() {
    for closes in [false, true] {
        let (done, is_done) = mpsc::channel();
        // On a thread of its own, which a failure leaves behind.
        thread::spawn(move || {
            let runtime = Builder::new_current_thread().enable_all().start_paused(true).build();
            let seen = runtime.expect("a runtime").block_on(waker_calls_keeper(closes));
            done.send(seen).expect("somebody waits");
        });
        let seen = is_done.recv_timeout(LONG).expect("neither a deadlock nor a panic");
        assert!(seen > 0, "nobody was woken");
    }
}

/// Waits for a latch with a waker that calls the keeper; returns how many subscriptions it saw.
async fn waker_calls_keeper(closes: bool) -> usize {
    let world = Virtual::new();
    let keeper = world.keeper().await;
    let latch = keeper.latch("name");
    latch.create(1).await.expect("new");
    let (saw, seen) = mpsc::channel();
    let calls = keeper.clone();
    let waker = that_does(move || saw.send(calls.stats().subscriptions).expect("somebody listens"));
    let waiting = left_with(&waker, latch.wait());
    if closes {
        keeper.close().await;
    } else {
        world.keeper().await.latch("name").count_down().await.expect("there");
    }
    drop(waiting);
    let seen = seen.try_iter().next().unwrap_or_default();
    drop(waker);
    seen
}
