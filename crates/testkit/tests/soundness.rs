//! Timelines that broke earlier designs of distributed locks, each played against the engine in virtual time. Losses,
//! delays, doubled messages and suspensions are scripted to the millisecond.

use std::{sync::Arc, time::Duration};

use lockkeeper_core::{
    Adopted, Capacity, Fence, Guard, Keeper, LatchError, LeaseClaim, LeaseError, Lost, ReleaseError, Units,
    all,
    memory::MemoryServer,
    store::{Eviction, Kind},
    testing::{self, FateSource, Virtual, VirtualClock},
};
use lockkeeper_testkit::faulty::{Fate, Network, faulty};
use tokio::time::{Instant, sleep, timeout};

const NAME: &str = "resource";

fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// A keeper whose network to the store of `world` a test can spoil.
async fn behind_a_network(world: &Virtual) -> (Keeper, Arc<Network>) {
    let network = Network::good();
    let store = faulty(world.server.connector("memory:"), network.clone());
    let keeper = Keeper::builder(store).virtual_time(world.clock.clock()).connect().await;
    (keeper.expect("a good network"), network)
}

/// The rest of the first holder's lease, by the store's own clock.
async fn left_at_the_store(keeper: &Keeper) -> Duration {
    let view = keeper.inspect(NAME).await.expect("a good network");
    view.and_then(|view| view.holders.first()?.remaining).unwrap_or_default()
}

/// Invariant I3: a holder stops believing that it holds before the store ends the lease.
async fn ends_before_the_store_does<M>(guard: &Guard<M>, onlooker: &Keeper) {
    assert!(guard.is_held(), "not a test of anything");
    while guard.is_held() {
        let (believed, left) = (guard.remaining(), left_at_the_store(onlooker).await);
        assert!(believed < left, "believes in {believed:?}, but the store in {left:?}");
        sleep(millis(10)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a1_asking_again_tells_what_is_left() {
    let world = Virtual::new();
    let (ours, network) = behind_a_network(&world).await;
    let theirs = world.keeper().await;
    network.next(Fate::LOST_REPLY);
    let asked = Instant::now();
    let guard = ours.mutex(NAME).expires_after(secs(10)).lock().await.expect("granted at the second asking");
    assert!(asked.elapsed() >= secs(2), "the first reply was lost");
    assert!(guard.remaining() < secs(8), "the lease runs since the first asking");
    ends_before_the_store_does(&guard, &theirs).await;
}

#[tokio::test(start_paused = true)]
async fn a2_a_pushed_grant_counts_from_the_copy_that_the_store_measured() {
    let world = Virtual::new();
    let (ours, network) = behind_a_network(&world).await;
    let theirs = world.keeper().await;
    let held = theirs.mutex(NAME).lock().await.expect("free");
    let mutex = ours.mutex(NAME).expires_after(secs(10));
    network.next(Fate::GOOD);
    // Every further copy is stuck on the way.
    (0..5).for_each(|_| network.next(Fate::late(secs(60))));
    let waiting = tokio::spawn(async move { mutex.lock().await });
    sleep(secs(5)).await;
    held.release().await.expect("held");
    let guard = waiting.await.expect("no panic").expect("granted by the releaser");
    ends_before_the_store_does(&guard, &theirs).await;
}

#[tokio::test(start_paused = true)]
async fn a2_a_jump_of_the_stores_clock_does_not_lengthen_a_pushed_grant() {
    let (store_clock, clock) = (VirtualClock::new(), VirtualClock::new());
    let server = MemoryServer::new(store_clock.clock());
    let keeper = || Keeper::builder(server.connector("memory:")).virtual_time(clock.clock()).connect();
    let (ours, theirs) = (keeper().await.expect("memory"), keeper().await.expect("memory"));
    let held = theirs.mutex(NAME).lease(secs(600)).lock().await.expect("free");
    let mutex = ours.mutex(NAME).expires_after(secs(10));
    let waiting = tokio::spawn(async move { mutex.lock().await });
    sleep(millis(100)).await;
    store_clock.suspend(secs(60));
    held.release().await.expect("held");
    let guard = waiting.await.expect("no panic").expect("granted");
    ends_before_the_store_does(&guard, &theirs).await;
}

#[tokio::test(start_paused = true)]
async fn a3_a_short_first_lease_becomes_the_full_one() {
    for renewed in [true, false] {
        let world = Virtual::new();
        let (ours, theirs) = (world.keeper().await, world.keeper().await);
        let held = theirs.mutex(NAME).lock().await.expect("free");
        let mutex = ours.mutex(NAME);
        let mutex = if renewed { mutex.lease(secs(10)) } else { mutex.expires_after(secs(10)) };
        let waiting = tokio::spawn(async move { mutex.lock().await });
        sleep(millis(100)).await;
        held.release().await.expect("held");
        let guard = waiting.await.expect("no panic").expect("granted by the releaser");
        assert!(guard.remaining() < secs(3), "a grant nobody confirmed yet is short");
        sleep(secs(9)).await;
        assert!(guard.is_held(), "renewed: {renewed}");
        sleep(secs(1)).await;
        assert_eq!(guard.is_held(), renewed, "a fixed lease counts from the grant");
    }
}

/// One lost request must not cost a lock that was only just granted.
#[tokio::test(start_paused = true)]
async fn a3_the_first_renewal_of_a_pushed_grant_is_tried_again_in_time() {
    for renewed in [true, false] {
        let world = Virtual::new();
        let (ours, network) = behind_a_network(&world).await;
        let theirs = world.keeper().await;
        let held = theirs.mutex(NAME).lock().await.expect("free");
        let mutex = ours.mutex(NAME);
        let mutex = if renewed { mutex.lease(secs(10)) } else { mutex.expires_after(secs(10)) };
        let waiting = tokio::spawn(async move { mutex.lock().await });
        sleep(millis(100)).await;
        held.release().await.expect("held");
        let guard = waiting.await.expect("no panic").expect("granted by the releaser");
        network.next(Fate { arrives: false, ..Fate::GOOD });
        sleep(secs(9)).await;
        assert!(guard.is_held(), "renewed: {renewed}");
        drop(guard);
    }
}

/// A store that takes more than half of the rest of a first lease to answer is slow, not silent.
#[tokio::test(start_paused = true)]
async fn a3_a_slow_answer_to_the_first_renewal_of_a_pushed_grant_counts() {
    let world = Virtual::new();
    let (ours, network) = behind_a_network(&world).await;
    let theirs = world.keeper().await;
    let held = theirs.mutex(NAME).lock().await.expect("free");
    let mutex = ours.mutex(NAME).expires_after(secs(10));
    let waiting = tokio::spawn(async move { mutex.lock().await });
    sleep(millis(100)).await;
    held.release().await.expect("held");
    let guard = waiting.await.expect("no panic").expect("granted by the releaser");
    for _ in 0..4 {
        network.next(Fate { after: millis(1200), ..Fate::GOOD });
    }
    sleep(secs(9)).await;
    assert!(guard.is_held());
    ends_before_the_store_does(&guard, &theirs).await;
}

#[tokio::test(start_paused = true)]
async fn a5_a6_tokens_grow_also_after_loss_of_data() {
    let world = Virtual::new();
    let keeper = world.keeper().await;
    let mut last = None;
    for round in 0..1000 {
        let guard = keeper.mutex(NAME).lock().await.expect("free");
        assert!(Some(guard.token()) > last, "round {round}");
        last = Some(guard.token());
        guard.release().await.expect("held");
        if round % 100 == 99 {
            world.server.lose_data();
        }
        sleep(millis(1)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a7_a_fence_admits_shared_holders_in_any_order() {
    let world = Virtual::new();
    let keeper = world.keeper().await;
    let semaphore = keeper.semaphore(NAME, 2);
    let (early, late) = (semaphore.acquire().await.expect("free"), semaphore.acquire().await.expect("free"));
    let stored = keeper.fence(NAME);
    let fence = Fence::new();
    for permit in [&late, &early, &late] {
        stored.admit_shared(permit.token(), permit.floor()).await.expect("both are valid");
        fence.admit_shared(permit.token(), permit.floor()).expect("both are valid");
    }
    let (stale, floor) = (early.token(), early.floor());
    drop((early, late));
    sleep(millis(10)).await;
    let both = semaphore.acquire_many(2).await.expect("free");
    stored.admit_shared(both.token(), both.floor()).await.expect("valid");
    fence.admit_shared(both.token(), both.floor()).expect("valid");
    stored.admit_shared(stale, floor).await.expect_err("nobody of then holds any more");
    fence.admit_shared(stale, floor).expect_err("nobody of then holds any more");
}

#[tokio::test(start_paused = true)]
async fn b1_after_a_suspend_no_method_says_held() {
    let world = Virtual::new();
    let keeper = world.keeper().await;
    let lock = async |name: &str| keeper.mutex(name).lease(secs(10)).detachable().lock().await.expect("free");
    let guards = [lock("a").await, lock("b").await, lock("c").await, lock("d").await];
    let write = keeper.rw_lock("e").lease(secs(10)).write().await.expect("free");
    let suspended = guards[0].run(async {
        // The machine sleeps for longer than the lease in the middle of the work.
        world.clock.suspend(secs(11));
        "done"
    });
    assert_eq!(suspended.await, Err(Lost::Expired));
    for guard in &guards {
        assert!(!guard.is_held());
        assert_eq!(guard.remaining(), Duration::ZERO);
        assert_eq!(guard.reenter().map(drop), Err(Lost::Expired));
        assert_eq!(guard.run(async {}).await, Err(Lost::Expired));
        assert!(matches!(guard.extend(secs(5)).await, Err(LeaseError::NotHeld { why: Lost::Expired, .. })));
        assert!(timeout(secs(2), guard.lost()).await.is_ok_and(|lost| lost == Lost::Expired));
    }
    let [a, b, ..] = guards;
    assert!(matches!(a.release().await, Err(ReleaseError::NotHeld { why: Lost::Expired, .. })));
    let detached = b.into_lease().await.map_err(LeaseError::from);
    assert!(matches!(detached, Err(LeaseError::NotHeld { why: Lost::Expired, .. })));
    let lowered = write.downgrade().await.map_err(LeaseError::from);
    assert!(matches!(lowered, Err(LeaseError::NotHeld { why: Lost::Expired, .. })));
}

#[tokio::test(start_paused = true)]
async fn b1_the_lost_signal_comes_before_the_lease_can_end() {
    let world = Virtual::new();
    let (ours, network) = behind_a_network(&world).await;
    let theirs = world.keeper().await;
    let guard = ours.mutex(NAME).lease(secs(10)).lock().await.expect("free");
    sleep(secs(20)).await;
    assert!(guard.is_held(), "renewed");
    network.cut();
    let lost = guard.lost();
    assert_eq!(lost.await, Lost::Expired);
    assert!(left_at_the_store(&theirs).await > Duration::ZERO, "told in time");
}

#[tokio::test(start_paused = true)]
async fn b2_eviction_asks_first_and_hits_only_whom_it_names() {
    let world = Virtual::new();
    let (ours, theirs) = (world.keeper().await, world.keeper().await);
    let guard = ours.mutex(NAME).lease(secs(9)).lock().await.expect("free");
    let view = theirs.inspect(NAME).await.expect("memory").expect("held");
    let (contender, token) = (view.holders[0].contender, view.holders[0].token);
    assert!(theirs.evict(NAME, contender, token, Eviction::Graceful).await.expect("memory"));
    let mutex = theirs.mutex(NAME);
    let next = tokio::spawn(async move { mutex.lock().await });
    assert!(guard.is_held(), "it does not know yet, and nobody else has it");
    assert_eq!(timeout(secs(4), guard.lost()).await, Ok(Lost::Evicted), "within a third of the lease");
    assert!(!next.is_finished(), "it passes when its holder leaves");
    drop(guard);
    let next = next.await.expect("no panic").expect("free");
    // The order comes once more, as a retried request would.
    assert!(!theirs.evict(NAME, contender, token, Eviction::Immediate).await.expect("memory"));
    sleep(secs(60)).await;
    assert!(next.is_held());
}

#[tokio::test(start_paused = true)]
async fn b3_a_detached_lease_outlives_its_keeper() {
    let world = Virtual::new();
    let (ours, theirs) = (world.keeper().await, world.keeper().await);
    let guard = ours.mutex(NAME).expires_after(secs(30)).detachable().lock().await.expect("free");
    let token = guard.token();
    let lease = guard.into_lease().await.expect("held");
    ours.close().await;
    assert!(theirs.mutex(NAME).try_lock().await.expect("memory").is_none());
    let Adopted::Mutex(adopted) = theirs.adopt(&lease).await.expect("it lives") else { panic!("a mutex") };
    assert_eq!(adopted.token(), token);
    ends_before_the_store_does(&adopted, &theirs).await;
    sleep(secs(1)).await;
    theirs.adopt(&lease).await.expect_err("over");
}

#[tokio::test(start_paused = true)]
async fn b3_a_minimum_hold_outlives_the_release() {
    let world = Virtual::new();
    let (ours, theirs) = (world.keeper().await, world.keeper().await);
    let start = Instant::now();
    let guard = ours.mutex(NAME).min_hold(secs(20)).lock().await.expect("free");
    guard.release().await.expect("held");
    ours.close().await;
    let next = theirs.mutex(NAME).lock().await.expect("free in the end");
    assert!(start.elapsed() >= secs(20));
    assert!(start.elapsed() < secs(22));
    drop(next);
}

/// The claim is stuck on the way, and the leave of the contender that stopped waiting overtakes it.
#[tokio::test(start_paused = true)]
async fn c1_a_claim_that_comes_after_its_leave_does_nothing() {
    for delay in [secs(1), secs(3), secs(4), secs(8), secs(30)] {
        let world = Virtual::new();
        let (ours, network) = behind_a_network(&world).await;
        let theirs = world.keeper().await;
        network.next(Fate::late(delay));
        let mutex = ours.mutex(NAME);
        timeout(millis(500), mutex.lock()).await.expect_err("stuck");
        let end = Instant::now() + secs(60);
        while Instant::now() < end {
            let view = theirs.inspect(NAME).await.expect("memory");
            assert_eq!(view, None, "a ghost after {delay:?}");
            sleep(millis(50)).await;
        }
        assert_eq!(world.server.kept(), 0, "also the mark against it is gone");
    }
}

/// The claim is stuck, asked again, granted and released; then the stuck copy arrives.
#[tokio::test(start_paused = true)]
async fn c1_a_late_copy_of_a_released_claim_does_nothing() {
    for delay in [millis(2500), secs(4), secs(8)] {
        let world = Virtual::new();
        let (ours, network) = behind_a_network(&world).await;
        let theirs = world.keeper().await;
        network.next(Fate::late(delay));
        let guard = ours.mutex(NAME).lock().await.expect("granted at the second asking");
        guard.release().await.expect("held");
        for _ in 0..1000 {
            assert_eq!(theirs.inspect(NAME).await.expect("memory"), None, "a ghost after {delay:?}");
            sleep(millis(10)).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn c2_a_count_down_asked_again_counts_once() {
    let world = Virtual::new();
    let (ours, network) = behind_a_network(&world).await;
    let latch = ours.latch(NAME);
    latch.create(3).await.expect("new");
    for left in [2, 1] {
        network.next(Fate::LOST_REPLY);
        network.next(Fate { again: Some(secs(1)), answers: false, ..Fate::GOOD });
        assert_eq!(latch.count_down().await.expect("counted at the third asking"), left);
    }
}

/// The process stops between two copies for so long that the store forgets the first one.
#[tokio::test(start_paused = true)]
async fn c2_a_count_down_that_the_store_forgot_is_not_counted_again() {
    let world = Virtual::new();
    let (ours, network) = behind_a_network(&world).await;
    let latch = ours.latch(NAME);
    latch.create(3).await.expect("new");
    network.next(Fate::LOST_REPLY);
    let counting = tokio::spawn({
        let latch = latch.clone();
        async move { latch.count_down().await }
    });
    // Past the request limit, in the pause before the second copy.
    sleep(millis(2010)).await;
    world.clock.suspend(secs(90));
    let error = counting.await.expect("no panic").expect_err("nobody knows");
    assert!(matches!(&error, LatchError::Store(error) if error.maybe_applied()), "{error}");
    assert_eq!(latch.state().await.expect("a good network").expect("there").remaining, 2);
}

/// All messages of the store come this late.
#[derive(Debug)]
struct LateMessages(Duration);

impl FateSource for LateMessages {
    fn request(&self) -> Fate {
        Fate::GOOD
    }

    fn wake(&self) -> Vec<Duration> {
        vec![self.0]
    }
}

/// The message about a grant comes when its keeper has long made a detached lease of it and forgotten that.
#[tokio::test(start_paused = true)]
async fn c3_a_late_message_does_not_give_a_detached_lease_back() {
    let world = Virtual::new();
    let theirs = world.keeper().await;
    let network = testing::Network::by(Arc::new(LateMessages(secs(70))));
    let store = network.wrap(world.server.connector("memory:"));
    let ours =
        Keeper::builder(store).virtual_time(world.clock.clock()).connect().await.expect("a good network");
    let held = theirs.mutex(NAME).lock().await.expect("free");
    let mut claim = LeaseClaim::new(Kind::Mutex, Units::All, Capacity::All);
    claim.lease = secs(600);
    let waiting = tokio::spawn({
        let (ours, claim) = (ours.clone(), claim.clone());
        async move { ours.acquire_lease(NAME, &claim, None).await }
    });
    sleep(millis(100)).await;
    held.release().await.expect("held");
    let released = Instant::now();
    waiting.await.expect("no panic").expect("a good network").expect("granted at its next poll");
    sleep(secs(65).saturating_sub(released.elapsed())).await;
    ours.acquire_lease("another", &claim, None).await.expect("a good network").expect("free");
    sleep(secs(75).saturating_sub(released.elapsed())).await;
    assert!(theirs.mutex(NAME).try_lock().await.expect("memory").is_none(), "two holders");
}

#[tokio::test(start_paused = true)]
async fn d_a_grant_is_handed_on_with_a_larger_token_and_the_same_deadline() {
    let world = Virtual::new();
    let (ours, theirs) = (world.keeper().await, world.keeper().await);
    let mutex = ours.mutex(NAME).expires_after(secs(10));
    let first = mutex.lock().await.expect("free");
    let (token, holder) = (first.token(), theirs.inspect(NAME).await.expect("memory").expect("held"));
    let waiting = tokio::spawn({
        let mutex = mutex.clone();
        async move { mutex.lock().await }
    });
    sleep(millis(5)).await;
    first.release().await.expect("held");
    let second = waiting.await.expect("no panic").expect("handed on");
    assert!(second.token() > token);
    assert_eq!(second.token().number(), token.number(), "no new grant");
    let now = theirs.inspect(NAME).await.expect("memory").expect("held");
    assert_eq!(now.holders[0].contender, holder.holders[0].contender, "the store saw nothing");
    assert!(second.remaining() < secs(10) - millis(5), "the deadline is inherited");
    ends_before_the_store_does(&second, &theirs).await;
}

#[tokio::test(start_paused = true)]
async fn d_nothing_is_handed_on_on_other_terms_or_out_of_turn() {
    let world = Virtual::new();
    let keeper = world.keeper().await;
    let mutex = keeper.mutex(NAME);
    for (first, second) in [
        (mutex.clone(), mutex.clone().lease(secs(5))),
        (mutex.clone().fifo(), mutex.clone().fifo()),
        (mutex.clone().min_hold(millis(20)), mutex.clone().min_hold(millis(20))),
    ] {
        let held = first.lock().await.expect("free");
        let number = held.token().number();
        let waiting = tokio::spawn(async move { second.lock().await });
        sleep(millis(2)).await;
        held.release().await.expect("held");
        let next = waiting.await.expect("no panic").expect("granted");
        assert!(next.token().number() > number, "a grant of its own");
        next.release().await.expect("held");
        sleep(secs(1)).await;
    }
}

/// Other processes wait at most a little longer than their turn, however busy this one is.
#[tokio::test(start_paused = true)]
async fn d_handing_on_does_not_starve_another_process() {
    let world = Virtual::new();
    let (ours, theirs) = (world.keeper().await, world.keeper().await);
    let busy: Vec<_> = (0..4)
        .map(|_| {
            let mutex = ours.mutex(NAME);
            tokio::spawn(async move {
                loop {
                    let guard = mutex.lock().await.expect("in the end");
                    sleep(millis(1)).await;
                    drop(guard);
                }
            })
        })
        .collect();
    sleep(millis(100)).await;
    for _ in 0..20 {
        let asked = Instant::now();
        drop(theirs.mutex(NAME).lock().await.expect("in the end"));
        assert!(asked.elapsed() < millis(30), "waited {:?}", asked.elapsed());
    }
    busy.iter().for_each(tokio::task::JoinHandle::abort);
}

/// Two names for one server must not make two orders.
#[tokio::test(start_paused = true)]
async fn e_several_locks_by_different_urls_do_not_deadlock() {
    let world = Virtual::new();
    let by =
        |url: &str| Keeper::builder(world.server.connector(url)).virtual_time(world.clock.clock()).connect();
    let (one, other) =
        (by("memory:localhost").await.expect("memory"), by("memory:127.0.0.1").await.expect("memory"));
    let there = [one.mutex("a"), other.mutex("b")];
    let back = [one.mutex("b"), other.mutex("a")];
    let tasks = [there, back].map(|mutexes| {
        tokio::spawn(async move {
            for _ in 0..100 {
                let guard = all(&mutexes).lock().await.expect("in the end");
                sleep(millis(1)).await;
                guard.release().await.expect("held");
            }
        })
    });
    for task in tasks {
        timeout(secs(600), task).await.expect("no deadlock").expect("no panic");
    }
    let twice = [one.mutex("a"), other.mutex("a")];
    all(&twice).lock().await.expect_err("one lock by two names would wait for itself");
}

/// The first is lost while waiting for the second: there is no moment at which both were held.
#[tokio::test(start_paused = true)]
async fn e_several_locks_are_all_held_on_return() {
    let world = Virtual::new();
    let (ours, theirs) = (world.keeper().await, world.keeper().await);
    let held = theirs.mutex("b").lock().await.expect("free");
    tokio::spawn(async move {
        sleep(secs(5)).await;
        drop(held);
    });
    let mutexes = [ours.mutex("a").expires_after(secs(2)), ours.mutex("b")];
    let guard = timeout(secs(60), all(&mutexes).lock()).await.expect("it starts over").expect("in the end");
    assert!(guard.is_held());
}
