//! Giving back: by whom and for how long. No matter what was lost on the way, nothing stays held that nobody holds.

use std::{future::poll_fn, pin::pin, sync::Arc, task::Poll, time::Duration};

use lockkeeper_core::{AcquireError, DowngradeError, Guard, Keeper, store::Eviction, testing::Virtual};
use lockkeeper_testkit::{
    counting::RequestCounter,
    faulty::{Fate, Faults, Network, faulty},
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
    Keeper::builder(store).virtual_time(world.clock.clock()).connect().await.expect("a good network")
}

/// Starts `future` and leaves it at its first wait.
async fn started<T>(mut future: std::pin::Pin<&mut impl Future<Output = T>>) {
    poll_fn(|context| {
        assert!(future.as_mut().poll(context).is_pending(), "there is nothing to wait for");
        Poll::Ready(())
    })
    .await;
}

/// How long it takes until somebody else has the lock.
async fn free_after(theirs: &Keeper) -> Duration {
    let asked = Instant::now();
    let next = timeout(secs(3600), theirs.mutex(NAME).lock()).await.expect("in the end").expect("memory");
    drop(next);
    asked.elapsed()
}

/// It may be detached at the store by now, so the next task must not get it by memory alone.
#[tokio::test(start_paused = true)]
async fn a_hold_that_was_about_to_be_detached_is_not_handed_on() {
    for lost in [false, true] {
        let world = Virtual::new();
        let network = Network::good();
        let keeper = behind(&world, &network).await;
        let (mutex, owner) = (keeper.mutex(NAME).detachable(), keeper.owner());
        let guard = mutex.lock().await.expect("free");
        let number = guard.token().number();
        let waiting = tokio::spawn({
            let (mutex, owner) = (mutex.clone(), owner.clone());
            async move { mutex.lock_as(&owner).await }
        });
        sleep(millis(1)).await;
        if lost {
            // Its answer is lost, so that it fails.
            network.next(Fate { answers: false, ..Fate::GOOD });
            guard.into_lease().await.expect_err("no answer");
        } else {
            // Dropped half-way.
            let mut detaching = pin!(guard.into_lease());
            started(detaching.as_mut()).await;
        }
        let next =
            timeout(secs(3), waiting).await.expect("left at once").expect("no panic").expect("granted");
        assert!(next.token().number() > number, "a grant of its own (lost: {lost})");
        let deeper = timeout(secs(3), mutex.lock_as(&owner)).await.expect("no waiting for oneself");
        drop((next, deeper.expect("held")));
    }
}

/// The answer is lost, so nobody knows whether the store detached it. It is held, entered and renewed as before.
#[tokio::test(start_paused = true)]
async fn a_guard_that_may_be_detached_goes_on() {
    let world = Virtual::new();
    let network = Network::good();
    let (keeper, theirs) = (behind(&world, &network).await, world.keeper().await);
    let (mutex, owner) = (keeper.mutex(NAME).detachable(), keeper.owner());
    let guard = mutex.lock_as(&owner).await.expect("free");
    network.next(Fate { answers: false, ..Fate::GOOD });
    let guard = guard.into_lease().await.expect_err("no answer").into_guard();
    let deeper =
        timeout(secs(3), mutex.lock_as(&owner)).await.expect("no waiting for oneself").expect("held");
    assert_eq!((guard.holds(), deeper.token()), (2, guard.token()));
    deeper.release().await.expect("held");
    sleep(secs(60)).await;
    assert!(guard.is_held(), "renewed twice by now");
    let lease = guard.into_lease().await.expect("answered");
    theirs.adopt(&lease).await.expect("alive").release().await.expect("held");
}

/// Nor is it handed on by a release: while the grant is young enough for that, another task waits for it.
#[tokio::test(start_paused = true)]
async fn a_hold_that_may_be_detached_is_not_handed_on_by_a_release() {
    let world = Virtual::new();
    let network = Network::good();
    let store = faulty(world.server.connector("memory:"), network.clone());
    let builder = Keeper::builder(store).virtual_time(world.clock.clock()).request_limit(millis(5));
    let keeper = builder.connect().await.expect("a good network");
    let mutex = keeper.mutex(NAME).detachable();
    let guard = mutex.lock().await.expect("free");
    let number = guard.token().number();
    let waiting = tokio::spawn({
        let mutex = mutex.clone();
        async move { mutex.lock().await }
    });
    tokio::task::yield_now().await;
    network.next(Fate { answers: false, ..Fate::GOOD });
    let guard = guard.into_lease().await.expect_err("no answer").into_guard();
    guard.release().await.expect("held");
    let next = waiting.await.expect("no panic").expect("granted");
    assert!(next.token().number() > number, "a grant of its own");
}

/// An owner enters a hold that is about to be detached once that has failed. It does not wait for itself at the store.
#[tokio::test(start_paused = true)]
async fn an_owner_enters_again_what_was_not_detached() {
    let world = Virtual::new();
    let network = Network::good();
    let keeper = behind(&world, &network).await;
    let (mutex, owner) = (keeper.mutex(NAME).detachable(), keeper.owner());
    let guard = mutex.lock_as(&owner).await.expect("free");
    let token = guard.token();
    network.next(Fate { answers: false, ..Fate::GOOD });
    let detaching = tokio::spawn(guard.into_lease());
    sleep(millis(1)).await;
    assert!(mutex.try_lock_as(&owner).await.expect("asked").is_none(), "it may be gone in a moment");
    let waiting = tokio::spawn({
        let (mutex, owner) = (mutex.clone(), owner.clone());
        async move { mutex.lock_as(&owner).await }
    });
    let guard = detaching.await.expect("no panic").expect_err("no answer").into_guard();
    let entered =
        timeout(secs(1), waiting).await.expect("not at the store").expect("no panic").expect("held");
    let deeper =
        timeout(secs(1), mutex.lock_as(&owner)).await.expect("no waiting for oneself").expect("held");
    assert!(entered.token() == token && deeper.token() == token && guard.holds() == 3);
}

/// An adopted lease is detached at the store already: a lost answer is no reason to keep it, and none to release it.
#[tokio::test(start_paused = true)]
async fn what_was_adopted_is_let_go_without_an_answer() {
    let world = Virtual::new();
    let network = Network::good();
    let (ours, theirs) = (behind(&world, &network).await, world.keeper().await);
    let guard = theirs.mutex(NAME).detachable().lock().await.expect("free");
    let lease = guard.into_lease().await.expect("held");
    let adopted = ours.adopt(&lease).await.expect("alive");
    network.next(Fate { answers: false, ..Fate::GOOD });
    let lease = adopted.into_lease().await.expect("it stays detached");
    ours.close().await;
    theirs.adopt(&lease).await.expect("alive").release().await.expect("held");
}

/// A writer whose downgrade may have been done is a reader; one whose downgrade was refused writes on.
#[tokio::test(start_paused = true)]
async fn a_writer_that_may_have_been_lowered_is_a_reader() {
    let world = Virtual::new();
    let network = Network::good();
    let (keeper, theirs) = (behind(&world, &network).await, world.keeper().await);
    let lock = keeper.rw_lock(NAME);
    let writer = lock.write().await.expect("free");
    network.next(Fate { answers: false, ..Fate::GOOD });
    let Err(DowngradeError::Unknown { guard: reader, error }) = writer.downgrade().await else {
        panic!("no answer")
    };
    assert!(error.maybe_applied() && reader.is_held(), "{error}");
    let other = theirs.rw_lock(NAME).try_read().await.expect("memory").expect("the store did lower it");
    assert!(theirs.rw_lock(NAME).try_write().await.expect("memory").is_none());
    other.release().await.expect("held");
    reader.release().await.expect("held");
    let writer = lock.write().await.expect("free");
    let deeper = writer.reenter().expect("held");
    let Err(DowngradeError::Unchanged { guard: writer, .. }) = writer.downgrade().await else {
        panic!("re-entered")
    };
    deeper.release().await.expect("held");
    assert!(theirs.rw_lock(NAME).try_read().await.expect("memory").is_none(), "it writes on");
    writer.downgrade().await.expect("alone now").release().await.expect("held");
}

/// As above, for a guard that came back because its change failed soon, and is then released.
#[tokio::test(start_paused = true)]
async fn a_guard_that_may_be_detached_is_released_to_the_store() {
    let world = Virtual::new();
    let network = Network::good();
    let store = faulty(world.server.connector("memory:"), network.clone());
    let keeper = Keeper::builder(store).request_limit(millis(3)).virtual_time(world.clock.clock());
    let keeper = keeper.connect().await.expect("a good network");
    let mutex = keeper.mutex(NAME).detachable();
    let guard = mutex.lock().await.expect("free");
    let number = guard.token().number();
    let waiting = tokio::spawn(async move { mutex.lock().await });
    sleep(millis(1)).await;
    network.next(Fate { answers: false, ..Fate::GOOD });
    let guard = guard.into_lease().await.expect_err("no answer").into_guard();
    guard.release().await.expect("held");
    let next = timeout(secs(3), waiting).await.expect("left at once").expect("no panic").expect("granted");
    assert!(next.token().number() > number, "a grant of its own");
}

/// An owner whose request is refused is no second guard while it asks.
#[test]
fn an_owner_that_is_refused_does_not_count_as_a_guard() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.expect("a runtime").block_on(async {
        let keeper = lockkeeper_core::testing::keeper().await;
        for round in 0..500 {
            let (lock, owner) = (keeper.rw_lock(&format!("{NAME}/{round}")).detachable(), keeper.owner());
            let guard = lock.read_as(&owner).await.expect("free");
            let refused = tokio::spawn(async move {
                loop {
                    match lock.write_as(&owner).await {
                        // Only after the guard was let go and its lease has ended.
                        Ok(guard) => return guard.release().await.expect("held"),
                        Err(error) => {
                            assert!(matches!(error, AcquireError::UpgradeRefused { .. }), "{error}");
                        }
                    }
                }
            });
            for _ in 0..200 {
                assert_eq!(guard.holds(), 1, "round {round}");
            }
            let lease = guard.into_lease().await;
            let lease = lease.unwrap_or_else(|error| panic!("round {round}: {error}"));
            keeper.adopt(&lease).await.expect("alive").release().await.expect("held");
            refused.await.expect("no panic");
        }
    });
}

/// The answer to `extend` is lost: the store believes in more than this process does.
#[tokio::test(start_paused = true)]
async fn a_leave_is_tried_for_as_long_as_a_lost_extension_may_last() {
    let world = Virtual::new();
    let network = Network::good();
    let (ours, theirs) = (behind(&world, &network).await, world.keeper().await);
    let guard = ours.mutex(NAME).expires_after(secs(5)).lock().await.expect("free");
    network.next(Fate::LOST_REPLY);
    guard.extend(secs(600)).await.expect_err("no answer");
    network.set(Faults { lost_request: 1000, ..Faults::NONE });
    drop(guard);
    sleep(secs(10)).await;
    network.set(Faults::NONE);
    let free = free_after(&theirs).await;
    assert!(free < secs(10), "held for {free:?} by nobody");
}

/// So it is with a pushed grant whose confirmation arrived although the answer did not.
#[tokio::test(start_paused = true)]
async fn a_leave_is_tried_for_as_long_as_a_lost_confirmation_may_last() {
    let world = Virtual::new();
    let network = Network::good();
    let (ours, theirs) = (behind(&world, &network).await, world.keeper().await);
    let held = theirs.mutex(NAME).lock().await.expect("free");
    let mutex = ours.mutex(NAME).expires_after(secs(600));
    let waiting = tokio::spawn(async move { mutex.lock().await });
    sleep(millis(100)).await;
    held.release().await.expect("held");
    let guard = waiting.await.expect("no panic").expect("granted by the releaser");
    network.set(Faults { lost_reply: 1000, ..Faults::NONE });
    guard.lost().await;
    network.set(Faults { lost_request: 1000, ..Faults::NONE });
    drop(guard);
    sleep(secs(30)).await;
    network.set(Faults::NONE);
    let free = free_after(&theirs).await;
    assert!(free < secs(10), "held for {free:?} by nobody");
}

/// A minimum hold protects work that somebody has begun. Nobody has.
#[tokio::test(start_paused = true)]
async fn a_grant_that_nobody_took_keeps_no_minimum_hold() {
    let world = Virtual::new();
    let network = Network::good();
    let (ours, theirs) = (behind(&world, &network).await, world.keeper().await);
    let mutex = ours.mutex(NAME).min_hold(secs(20));
    let mut locking = Box::pin(mutex.lock());
    started(locking.as_mut()).await;
    // The keeper's own thread brings the answer, but the task that asked never looks at it.
    sleep(millis(200)).await;
    assert_eq!(ours.stats().held, 1, "granted");
    drop(locking);
    let free = free_after(&theirs).await;
    assert!(free < secs(1), "held for {free:?} by nobody");
}

/// The keeper closes before the task has looked at its grant.
#[tokio::test(start_paused = true)]
async fn a_grant_that_nobody_took_keeps_no_minimum_hold_when_its_keeper_closes() {
    let world = Virtual::new();
    let network = Network::good();
    let (ours, theirs) = (behind(&world, &network).await, world.keeper().await);
    let mutex = ours.mutex(NAME).min_hold(secs(20));
    let mut locking = Box::pin(mutex.lock());
    started(locking.as_mut()).await;
    sleep(millis(200)).await;
    assert_eq!(ours.stats().held, 1, "granted");
    ours.close().await;
    let free = free_after(&theirs).await;
    assert!(free < secs(1), "held for {free:?} by nobody");
    drop(locking);
}

/// A guard that was granted by message while a copy of its claim was on its way, which has this fate.
async fn granted_before_its_copy_came(world: &Virtual, theirs: &Keeper, copy: Fate) -> (Keeper, Guard) {
    let (network, requests) = (Network::good(), RequestCounter::default());
    let store = requests.of(faulty(world.server.connector("memory:"), network.clone()));
    let ours =
        Keeper::builder(store).virtual_time(world.clock.clock()).connect().await.expect("a good network");
    let held = theirs.mutex(NAME).lease(secs(600)).lock().await.expect("free");
    network.next(Fate::GOOD);
    network.next(copy);
    let claims = || requests.so_far() - requests.watches();
    let before = claims();
    let mutex = ours.mutex(NAME).lease(secs(600)).detachable();
    let waiting = tokio::spawn(async move { mutex.lock().await });
    while claims() < before + 2 {
        sleep(millis(1)).await;
    }
    held.release().await.expect("held");
    (ours, waiting.await.expect("no panic").expect("granted by the releaser"))
}

/// The lock is passed to another process and released there. Then the copy arrives, whether its answer is still waited
/// for or not.
#[tokio::test(start_paused = true)]
async fn a_late_copy_of_a_lease_that_was_passed_on_holds_nothing() {
    for delay in [millis(600), secs(3)] {
        let world = Virtual::new();
        let theirs = world.keeper().await;
        let (ours, guard) = granted_before_its_copy_came(&world, &theirs, Fate::late(delay)).await;
        let lease = guard.into_lease().await.expect("held");
        theirs.adopt(&lease).await.expect("alive").release().await.expect("held");
        sleep(delay + millis(10)).await;
        let free = free_after(&theirs).await;
        assert!(free < secs(1), "held for {free:?} by nobody, {delay:?} late");
        drop(ours);
    }
}

/// An operator has taken the lock away, and another has had it since. Then the copy arrives and is granted; but the
/// guard of the first grant does not hold again.
#[tokio::test(start_paused = true)]
async fn a_late_copy_of_an_evicted_claim_is_left_at_once() {
    let world = Virtual::new();
    let theirs = world.keeper().await;
    let (ours, guard) = granted_before_its_copy_came(&world, &theirs, Fate::late(millis(600))).await;
    let view = theirs.inspect(NAME).await.expect("memory").expect("held");
    assert!(
        theirs
            .evict(NAME, view.holders[0].contender, guard.token(), Eviction::Immediate)
            .await
            .expect("memory")
    );
    theirs.mutex(NAME).lock().await.expect("free").release().await.expect("held");
    sleep(millis(610)).await;
    assert!(!guard.is_held(), "somebody else has held it since");
    let free = free_after(&theirs).await;
    assert!(free < secs(1), "held for {free:?} by nobody");
    drop((ours, guard));
}

/// As before, but the copy's answer is lost: the next renewal tells that there is a second grant. The guard is kept.
#[tokio::test(start_paused = true)]
async fn a_second_grant_that_a_renewal_finds_is_left_at_once() {
    let world = Virtual::new();
    let theirs = world.keeper().await;
    let lost = Fate { answers: false, ..Fate::late(millis(600)) };
    let (ours, guard) = granted_before_its_copy_came(&world, &theirs, lost).await;
    let view = theirs.inspect(NAME).await.expect("memory").expect("held");
    let contender = view.holders[0].contender;
    assert!(theirs.evict(NAME, contender, guard.token(), Eviction::Immediate).await.expect("memory"));
    theirs.mutex(NAME).lock().await.expect("free").release().await.expect("held");
    sleep(millis(610)).await;
    guard.extend(secs(600)).await.expect_err("somebody else has held it since");
    let free = free_after(&theirs).await;
    // The leave goes out when the copy that got no answer is given up.
    assert!(free < secs(3), "held for {free:?} by nobody");
    drop((ours, guard));
}

#[tokio::test(start_paused = true)]
async fn a_request_limit_without_end_ends_nothing() {
    let world = Virtual::new();
    let keeper = world.builder().request_limit(Duration::MAX).connect().await.expect("memory");
    let mutex = keeper.mutex(NAME);
    drop(mutex.lock().await.expect("free"));
    mutex.lock().await.expect("free").release().await.expect("held");
    timeout(millis(10), mutex.lock())
        .await
        .expect("free")
        .expect("free")
        .extend(secs(60))
        .await
        .expect("held");
    keeper.close().await;
    assert_eq!(world.server.kept(), 0);
}
