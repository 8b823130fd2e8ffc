//! The price of leases that belong to no process, and the abilities that a store tells before it is asked.

use std::{pin::pin, time::Duration};

use lockkeeper_core::{
    AcquireError, Adopted, Capacity, Keeper, LeaseClaim, LeaseError, Lost, Units,
    clock::Clock,
    memory::MemoryServer,
    store::{Eviction, Kind},
    testing::{Fate, Network, Virtual},
};
use lockkeeper_testkit::{counting::RequestCounter, overrides::Overrides};

/// A server for others acquires and releases in two requests, whether or not it had to wait.
#[tokio::test(start_paused = true)]
async fn a_lease_for_somebody_else_costs_a_claim_and_a_leave() {
    let (world, requests) = (Virtual::new(), RequestCounter::default());
    let store = requests.of(world.server.connector("memory:"));
    let keeper = Keeper::builder(store).virtual_time(world.clock.clock()).connect().await.expect("memory");
    let claim = LeaseClaim::new(Kind::Mutex, Units::All, Capacity::All);
    let before = requests.so_far();
    let acquired = keeper.acquire_lease("deploy", &claim, None).await.expect("free").expect("it waits");
    assert_eq!(requests.so_far() - before, 1, "a claim");
    assert_eq!(keeper.stats().held, 0, "it is nobody's");
    keeper.renew_lease(&acquired.lease).await.expect("held");
    assert_eq!(requests.so_far() - before, 2, "a renewal");
    keeper.release_lease(&acquired.lease).await.expect("held");
    assert_eq!(requests.so_far() - before, 3, "a leave");
    assert_eq!(world.server.kept(), 0);
}

/// A caller that hangs up while it waits leaves nothing behind.
#[tokio::test(start_paused = true)]
async fn a_claim_for_somebody_who_hangs_up_leaves_the_queue() {
    let world = Virtual::new();
    let (ours, theirs) = (world.keeper().await, world.keeper().await);
    let held = theirs.mutex("deploy").lock().await.expect("free");
    let claim = LeaseClaim::new(Kind::Mutex, Units::All, Capacity::All);
    let waiting = tokio::spawn(async move { ours.acquire_lease("deploy", &claim, None).await });
    while theirs.inspect("deploy").await.expect("memory").is_none_or(|view| view.waiters.is_empty()) {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    waiting.abort();
    assert!(waiting.await.expect_err("aborted").is_cancelled());
    held.release().await.expect("held");
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(world.server.kept(), 0);
}

/// The grant is given back with everything else, so nobody may be told of it.
#[tokio::test(start_paused = true)]
async fn a_lease_that_is_granted_while_its_keeper_closes_is_nobodys() {
    let world = Virtual::new();
    let (ours, theirs) = (world.keeper().await, world.keeper().await);
    let held = theirs.mutex("deploy").lock().await.expect("free");
    let claim = LeaseClaim::new(Kind::Mutex, Units::All, Capacity::All);
    let mut waiting = pin!(ours.acquire_lease("deploy", &claim, None));
    while theirs.inspect("deploy").await.expect("memory").is_none_or(|view| view.waiters.is_empty()) {
        tokio::time::timeout(Duration::from_millis(10), waiting.as_mut()).await.expect_err("it is held");
    }
    held.release().await.expect("held");
    while ours.stats().held == 0 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    ours.close().await;
    let refusal = waiting.await.expect_err("closed");
    assert!(matches!(refusal, AcquireError::Closed { .. }), "{refusal:?}");
    assert!(theirs.mutex("deploy").try_lock().await.expect("memory").is_some(), "it is free");
}

/// The lease and the store agree, whether the acquisition or the end of the keeper comes first.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_that_is_acquired_while_its_keeper_closes_is_held_or_free() {
    let server = MemoryServer::new(Clock::boot());
    let connect = || Keeper::builder(server.connector("memory:")).connect();
    let theirs = connect().await.expect("memory");
    let claim = LeaseClaim::new(Kind::Mutex, Units::All, Capacity::All);
    for round in 0..200 {
        let ours = connect().await.expect("memory");
        let closing = tokio::spawn({
            let ours = ours.clone();
            async move {
                for _ in 0..round % 20 {
                    tokio::task::yield_now().await;
                }
                ours.close().await;
            }
        });
        let acquired = ours.acquire_lease("deploy", &claim, None).await;
        closing.await.expect("no panic");
        let free = theirs.mutex("deploy").try_lock().await.expect("memory");
        assert_eq!(free.is_none(), acquired.is_ok(), "round {round}: {acquired:?}");
        if let Ok(acquired) = acquired {
            theirs.release_lease(&acquired.expect("it waits").lease).await.expect("held");
        }
    }
}

/// A late copy of its claim is granted after the lease was evicted. A keeper that renews or adopts the lease finds that
/// grant, which nobody has, and gives it back.
#[tokio::test(start_paused = true)]
async fn a_second_grant_of_a_detached_lease_is_given_back() {
    for adopts in [false, true] {
        let world = Virtual::new();
        let network = Network::new();
        let (ours, theirs) = (world.keeper_behind(&network).await, world.keeper().await);
        network.next(Fate::late(Duration::from_secs(4)));
        let guard = ours.mutex("deploy").detachable().lock().await.expect("granted at the second asking");
        let lease = guard.into_lease().await.expect("held");
        let holder = theirs.inspect("deploy").await.expect("memory").expect("held").holders.remove(0);
        let evicted = theirs.evict("deploy", holder.contender, holder.token, Eviction::Immediate).await;
        assert!(evicted.expect("memory"));
        tokio::time::sleep(Duration::from_secs(4)).await;
        let second = theirs.inspect("deploy").await.expect("memory").expect("granted anew").holders.remove(0);
        assert!(second.contender == holder.contender && second.token > holder.token);
        let error = if adopts {
            theirs.adopt(&lease).await.map(drop).expect_err("it is over")
        } else {
            theirs.renew_lease(&lease).await.map(drop).expect_err("it is over")
        };
        assert!(matches!(error, LeaseError::NotHeld { why: Lost::Gone, .. }), "{error}");
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(theirs.inspect("deploy").await.expect("memory"), None, "given back");
    }
}

/// As before, but the lease was adopted, and a renewal finds the second grant. The contender is another keeper's, whose numbers
/// say nothing about the locks and waiters of this one.
#[tokio::test(start_paused = true)]
async fn a_second_grant_of_an_adopted_lease_concerns_no_other_lock() {
    for waits in [false, true] {
        let world = Virtual::new();
        let network = Network::new();
        let (ours, theirs) = (world.keeper_behind(&network).await, world.keeper().await);
        let busy = world.keeper().await.mutex("other").lock().await.expect("free");
        // It has the number that the contender of the lease has at its own keeper.
        let first = if waits {
            let mutex = theirs.mutex("other");
            Err(tokio::spawn(async move { mutex.lock().await }))
        } else {
            busy.release().await.expect("held");
            Ok(theirs.mutex("other").lock().await.expect("free"))
        };
        tokio::time::sleep(Duration::from_millis(100)).await;
        network.next(Fate::late(Duration::from_secs(4)));
        let guard = ours.mutex("deploy").detachable().lock().await.expect("granted at the second asking");
        let lease = guard.into_lease().await.expect("held");
        let Adopted::Mutex(adopted) = theirs.adopt(&lease).await.expect("held") else { panic!("a mutex") };
        let holder = theirs.inspect("deploy").await.expect("memory").expect("held").holders.remove(0);
        let evicted = theirs.evict("deploy", holder.contender, holder.token, Eviction::Immediate).await;
        assert!(evicted.expect("memory"));
        tokio::time::sleep(Duration::from_secs(4)).await;
        let second = theirs.inspect("deploy").await.expect("memory").expect("granted anew").holders.remove(0);
        assert!(second.contender == holder.contender && second.token > holder.token);
        adopted.extend(Duration::from_secs(60)).await.expect_err("it is over");
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(theirs.inspect("deploy").await.expect("memory"), None, "given back");
        match first {
            Ok(guard) => assert!(guard.is_held(), "nothing has happened to it"),
            Err(waiting) => waiting.abort(),
        }
    }
}

/// Texts come from strangers. While the store is down, none of them is tried for longer than a lease can last.
#[tokio::test(start_paused = true)]
async fn a_lease_that_claims_to_last_for_ever_is_not_released_for_ever() {
    let hour = Duration::from_secs(3600);
    let (world, network) = (Virtual::new(), Network::new());
    let store = Overrides::new()
        .capability(move |can| can.max_lease = hour)
        .of(network.wrap(world.server.connector("memory:")));
    let keeper = Keeper::builder(store).virtual_time(world.clock.clock()).connect().await.expect("memory");
    let text = "lk1:00000000000000000000000000000001-1:5.0:5:all/all:mutex:30000:renewed,extended=9223372036854775807:x";
    network.cut();
    keeper.release_lease(&text.parse().expect("a lease")).await.expect_err("an outage");
    tokio::time::timeout(2 * hour, keeper.close())
        .await
        .expect("no lease of this store is longer than an hour");
}

/// The lease lasts longer than its own length, so a release that fails is tried for longer, too.
#[tokio::test(start_paused = true)]
async fn an_extended_lease_is_released_after_a_long_outage() {
    let world = Virtual::new();
    let network = Network::new();
    let (ours, theirs) = (world.keeper_behind(&network).await, world.keeper().await);
    let guard = ours.mutex("deploy").lease(Duration::from_secs(10)).detachable().lock().await.expect("free");
    guard.extend(Duration::from_secs(3600)).await.expect("held");
    let text = guard.into_lease().await.expect("held").to_string();
    network.cut();
    ours.release_lease(&text.parse().expect("a lease")).await.expect_err("an outage");
    tokio::time::sleep(Duration::from_secs(1800)).await;
    assert!(theirs.mutex("deploy").try_lock().await.expect("memory").is_none(), "it is still held");
    network.restore();
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert!(theirs.mutex("deploy").try_lock().await.expect("memory").is_some(), "released in the end");
}

#[tokio::test(start_paused = true)]
async fn a_store_without_permits_refuses_semaphores_and_latches_unasked() {
    let (world, requests) = (Virtual::new(), RequestCounter::default());
    let store = Overrides::new().capability(|can| can.counts_permits = false);
    let store = store.of(requests.of(world.server.connector("memory:")));
    let keeper = Keeper::builder(store).virtual_time(world.clock.clock()).connect().await.expect("memory");
    let before = requests.so_far();
    let refusals = [
        keeper.semaphore("gpu", 2).acquire().await.expect_err("no permits").to_string(),
        keeper.latch("import").create(1).await.expect_err("no latches").to_string(),
        keeper.latch("import").wait().await.expect_err("no latches").to_string(),
    ];
    for refusal in refusals {
        assert!(refusal.contains("no semaphores and no latches"), "{refusal}");
    }
    assert_eq!(requests.so_far(), before, "nothing was sent");
    keeper.mutex("stock").lock().await.expect("a mutex").release().await.expect("held");
}

/// A user who chose no lease gets one that the store keeps. A user who chose one is told if it does not fit.
#[tokio::test(start_paused = true)]
async fn the_default_lease_is_one_that_the_store_keeps() {
    let world = Virtual::new();
    let minute = Duration::from_secs(60);
    let builder = || {
        let store = Overrides::new().capability(move |can| can.min_lease = minute);
        Keeper::builder(store.of(world.server.connector("memory:"))).virtual_time(world.clock.clock())
    };
    let keeper = builder().connect().await.expect("memory");
    assert_eq!(keeper.default_lease(), minute);
    keeper.mutex("stock").lock().await.expect("it fits").release().await.expect("held");
    let chosen = builder().default_lease(Duration::from_secs(30)).connect().await.expect_err("too short");
    assert!(chosen.to_string().contains("the default lease does not fit"), "{chosen}");
}

/// A connector is a way to a store, not one connection.
#[tokio::test(start_paused = true)]
async fn a_connector_connects_again() {
    let world = Virtual::new();
    let connector = world.server.connector("memory:");
    let connect = || Keeper::builder(connector.clone()).virtual_time(world.clock.clock()).connect();
    let (first, second) = (connect().await.expect("memory"), connect().await.expect("memory"));
    assert_ne!(first.id(), second.id());
    let held = first.mutex("stock").lock().await.expect("free");
    assert!(second.mutex("stock").try_lock().await.expect("memory").is_none(), "they share the store");
    held.release().await.expect("held");
}

/// The id in a lease's text is the key to it. A caller that was served the lease before must not be able to guess it.
#[tokio::test(start_paused = true)]
async fn a_lease_for_somebody_else_cannot_be_guessed_from_another_one() {
    let world = Virtual::new();
    let keeper = world.keeper().await;
    let claim = LeaseClaim::new(Kind::Mutex, Units::All, Capacity::All);
    let mut numbers = Vec::new();
    for name in ["a", "b", "c"] {
        let acquired = keeper.acquire_lease(name, &claim, None).await.expect("free").expect("it waits");
        let text = acquired.lease.to_string();
        let contender = text.split(':').nth(1).expect("a contender");
        numbers.push(contender.split_once('-').expect("a number").1.parse::<u64>().expect("a number"));
    }
    for (one, other) in [(0, 1), (1, 2), (0, 2)] {
        assert!(numbers[one].abs_diff(numbers[other]) > 1 << 32, "{numbers:?}");
    }
    assert!(numbers.iter().all(|number| (1 << 62..1 << 63).contains(number)), "{numbers:?}");
}
