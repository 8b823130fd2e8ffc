//! What leases that belong to no process cost, and what a store that cannot do something says before it is asked.

use std::time::Duration;

use lockkeeper_core::{Capacity, Keeper, LeaseClaim, Units, store::Kind, testing::Virtual};
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

/// Whoever hangs up while it waits leaves nothing behind.
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
