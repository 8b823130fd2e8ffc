//! The log of outages: one event at the beginning, at most one a second, one at the end.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicUsize, Ordering},
};

use lockkeeper_core::{
    Keeper, StoreErrorKind,
    store::{Eviction, Renewed},
    testing::Virtual,
};
use lockkeeper_testkit::{
    faulty::{Faults, Network, faulty},
    overrides::Overrides,
};
use tokio::time::sleep;

use crate::{DEAD, NAME, WELL, behind, ended, is_outage, log::Log, millis, secs};

#[tokio::test(start_paused = true)]
async fn a_thousand_waits_say_once_that_they_go_on_and_once_that_it_is_over() {
    let log = Log::listen();
    let world = Virtual::new();
    let network = Network::good();
    let (ours, theirs) = (behind(&world, &network).await, world.keeper().await);
    let mut held = Vec::new();
    for place in 0..100 {
        held.push(theirs.mutex(&format!("{NAME}/{place}")).lock().await.expect("free"));
    }
    let waiting: Vec<_> = (0..1000)
        .map(|place| {
            let mutex = ours.mutex(&format!("{NAME}/{}", place % 100)).fifo();
            tokio::spawn(async move { mutex.lock().await.map(drop) })
        })
        .collect();
    let latch = ours.latch(NAME);
    latch.create(1).await.expect("new");
    let waiting_for_latch = tokio::spawn({
        let latch = latch.clone();
        async move { latch.wait().await }
    });
    sleep(secs(3)).await;
    assert_eq!(log.all(), Vec::<String>::new());
    network.set(DEAD);
    sleep(secs(25)).await;
    let said = log.with("waiting goes on");
    assert_eq!(said.len(), 1, "{:#?}", log.all());
    assert!(said[0].contains("waiting=100") && said[0].contains("no answer within"), "{said:?}");
    network.set(WELL);
    sleep(secs(5)).await;
    assert_eq!(log.with("answers again").len(), 1, "{:#?}", log.all());
    drop(held);
    latch.count_down().await.expect("there");
    for result in ended(waiting).await {
        result.expect("granted in the end");
    }
    waiting_for_latch.await.expect("no panic").expect("open");
    assert_eq!(log.all().len(), 2, "{:#?}", log.all());
}

/// A server that fails every other request must not fill the log.
#[tokio::test(start_paused = true)]
async fn a_store_that_fails_now_and_then_says_so_now_and_then() {
    let log = Log::listen();
    let world = Virtual::new();
    let network = Network::good();
    let (ours, theirs) = (behind(&world, &network).await, world.keeper().await);
    let held = theirs.mutex(NAME).lock().await.expect("free");
    let mutex = ours.mutex(NAME);
    let waiting = tokio::spawn(async move { mutex.lock().await.map(drop) });
    network.set(Faults { lost_request: 500, ..WELL });
    sleep(secs(600)).await;
    let said = log.all().len();
    assert!((2..=124).contains(&said), "{said} in ten minutes: {:#?}", log.all());
    network.set(WELL);
    sleep(secs(20)).await;
    let begun = log.with("waiting goes on").len();
    assert_eq!(log.with("answers again").len(), begun, "each beginning has an end: {:#?}", log.all());
    drop(held);
    waiting.await.expect("no panic").expect("granted");
}

#[tokio::test(start_paused = true)]
async fn a_thousand_renewals_that_fail_say_so_once_a_second_and_once_that_it_is_over() {
    let log = Log::listen();
    let world = Virtual::new();
    let network = Network::good();
    let keeper = behind(&world, &network).await;
    let mut guards = Vec::new();
    for place in 0..1000 {
        let mutex = keeper.mutex(&format!("{NAME}/{place}")).lease(secs(60));
        guards.push(mutex.lock().await.expect("free"));
        // They are not renewed all at the same moment.
        sleep(millis(10)).await;
    }
    sleep(secs(30)).await;
    assert_eq!(log.all(), Vec::<String>::new());
    network.set(DEAD);
    sleep(secs(35)).await;
    let said = log.with("renewal failed");
    assert!((2..=36).contains(&said.len()), "{} in 35 s: {:#?}", said.len(), log.all());
    assert_eq!(said.len(), log.all().len(), "{:#?}", log.all());
    assert!(said[0].contains("leases=") && said[0].contains("no answer within"), "{said:?}");
    network.set(WELL);
    sleep(secs(5)).await;
    assert_eq!(log.with("answers again").len(), 1, "{:#?}", log.all());
    assert!(guards.iter().all(lockkeeper_core::Guard::is_held), "in time");
    let late = log.with("came late").len();
    assert!(late <= 4, "{late} events about late renewals: {:#?}", log.all());
    assert_eq!(log.all().len(), log.with("renewal failed").len() + 1 + late, "{:#?}", log.all());
    assert!(guards[0].renewal_error().is_none(), "it is over");
    sleep(secs(600)).await;
    assert_eq!(log.with("answers again").len(), 1, "{:#?}", log.all());
    drop(guards);
}

/// All leases end in an outage, so no renewal is ever answered again. A claim that is answered ends it.
#[tokio::test(start_paused = true)]
async fn an_outage_that_outlasts_all_leases_is_over_with_the_next_answer() {
    let log = Log::listen();
    let world = Virtual::new();
    let network = Network::good();
    let keeper = behind(&world, &network).await;
    let mut guards = Vec::new();
    for place in 0..100 {
        guards.push(keeper.mutex(&format!("{NAME}/{place}")).lock().await.expect("free"));
    }
    network.set(DEAD);
    sleep(secs(600)).await;
    let lost = log.with("lock lost");
    assert_eq!(lost.len(), 100);
    for row in &lost {
        assert!(
            row.contains("expired") && row.contains("no answer within"),
            "the last renewal's error: {row}"
        );
    }
    let error = guards[0].renewal_error().expect("it failed");
    assert_eq!(error.kind(), StoreErrorKind::Unreachable);
    assert!(error.to_string().contains("no answer within"), "{error}");
    let failed = log.with("renewal failed").len();
    assert!((2..=31).contains(&failed), "{failed}: {:#?}", log.with("renewal failed"));
    network.set(WELL);
    drop(guards);
    sleep(secs(5)).await;
    keeper.mutex(NAME).lock().await.expect("free").release().await.expect("held");
    assert_eq!(log.with("answers again").len(), 1, "{:#?}", log.with("store"));
}

/// The store answered, and said that it is over.
#[tokio::test(start_paused = true)]
async fn a_loss_that_the_store_told_has_no_error_of_a_renewal() {
    for how in [Eviction::Graceful, Eviction::Immediate] {
        let world = Virtual::new();
        let keeper = world.keeper().await;
        let guard = keeper.mutex(NAME).lease(secs(3)).lock().await.expect("free");
        let view = keeper.inspect(NAME).await.expect("answered").expect("held");
        let holder = &view.holders[0];
        keeper.evict(NAME, holder.contender, holder.token, how).await.expect("evicted");
        guard.lost().await;
        assert!(guard.renewal_error().is_none(), "{how:?}: {:?}", guard.renewal_error());
    }
}

/// The lease is shorter than a request may take, so it ends before the renewal has failed.
#[tokio::test(start_paused = true)]
async fn a_loss_names_a_renewal_that_is_not_answered_yet() {
    let log = Log::listen();
    let world = Virtual::new();
    let network = Network::good();
    let keeper = behind(&world, &network).await;
    let guard = keeper.mutex(NAME).lease(secs(1)).lock().await.expect("free");
    assert!(guard.renewal_error().is_none());
    network.set(DEAD);
    guard.lost().await;
    let lost = log.with("lock lost");
    assert!(lost.len() == 1 && lost[0].contains("has not been answered"), "{lost:?}");
    let error = guard.renewal_error().expect("not answered");
    assert!(error.to_string().contains(NAME), "{error}");
    drop(guard);
    // A fixed lease is not renewed, so no error of a renewal ended it.
    network.set(WELL);
    sleep(secs(10)).await;
    let fixed = keeper.mutex(NAME).expires_after(secs(5)).lock().await.expect("free in the end");
    fixed.lost().await;
    assert!(fixed.renewal_error().is_none());
    assert!(!log.with("lock lost")[1].contains("error"), "{:?}", log.with("lock lost"));
}

/// A process that locks rarely: nobody asks again after the outage.
#[tokio::test(start_paused = true)]
async fn an_outage_is_over_with_the_first_answer_if_nobody_waits_any_more() {
    let log = Log::listen();
    let world = Virtual::new();
    let network = Network::good();
    let (ours, theirs) = (behind(&world, &network).await, world.keeper().await);
    let held = theirs.mutex(NAME).lock().await.expect("free");
    for _ in 0..2 {
        log.forget();
        network.set(DEAD);
        let error = ours.mutex(NAME).lock_within(secs(5)).await.expect_err("no store");
        assert!(is_outage(&error), "{error}");
        sleep(millis(1500)).await;
        assert_eq!(log.with("waiting goes on").len(), 1, "{:#?}", log.all());
        network.set(WELL);
        // The remains of the wait at the store are taken back.
        sleep(secs(3600)).await;
        let over = log.with("answers again");
        assert_eq!(over.len(), 1, "{:#?}", log.all());
        let lasted = over[0].split("failed_for_ms=").nth(1).and_then(|text| text.trim().parse().ok());
        assert!((4000..12_000).contains(&lasted.unwrap_or(0)), "{over:?}");
        assert_eq!(log.all().len(), 2, "{:#?}", log.all());
    }
    drop(held);
}

/// Its claim fails after the caller has the error.
#[tokio::test(start_paused = true)]
async fn a_wait_that_is_over_does_not_go_on() {
    let log = Log::listen();
    let world = Virtual::new();
    let network = Network::good();
    let keeper = behind(&world, &network).await;
    network.set(DEAD);
    let error = keeper.mutex(NAME).lock_within(secs(1)).await.expect_err("no store");
    assert!(is_outage(&error), "{error}");
    sleep(secs(60)).await;
    assert_eq!(log.all(), Vec::<String>::new());
}

/// The server that failed is never asked again, because another one keeps its names now.
#[tokio::test(start_paused = true)]
async fn an_outage_is_over_when_another_server_takes_over() {
    let log = Log::listen();
    let world = Virtual::new();
    let network = Network::good();
    let master = Arc::new(AtomicUsize::new(0));
    let store = Overrides::new()
        .servers({
            let master = master.clone();
            move |_, _| master.load(Ordering::Relaxed)
        })
        .of(faulty(world.server.connector("memory:"), network.clone()));
    let ours =
        Keeper::builder(store).virtual_time(world.clock.clock()).connect().await.expect("a good network");
    let theirs = world.keeper().await;
    let held = theirs.mutex(NAME).lock().await.expect("free");
    let renewed = ours.mutex("other").lock().await.expect("free");
    let mutex = ours.mutex(NAME);
    let waiting = tokio::spawn(async move { mutex.lock().await.map(drop) });
    sleep(secs(1)).await;
    network.set(DEAD);
    sleep(secs(20)).await;
    assert_eq!(log.with("waiting goes on").len(), 1, "{:#?}", log.all());
    assert!(!log.with("renewal failed").is_empty(), "{:#?}", log.all());
    master.store(1, Ordering::Relaxed);
    network.set(WELL);
    sleep(secs(5)).await;
    assert_eq!(log.with("work=\"waits\"").len(), 1, "{:#?}", log.all());
    assert_eq!(log.with("work=\"renewals\"").len(), 1, "{:#?}", log.all());
    sleep(secs(60)).await;
    assert_eq!(log.with("answers again").len(), 2, "{:#?}", log.all());
    drop((held, renewed));
    waiting.await.expect("no panic").expect("granted in the end");
}

/// The store answers, but does not know whether the lease is renewed: too few replicas have it.
#[tokio::test(start_paused = true)]
async fn renewals_of_unknown_outcome_fail() {
    let log = Log::listen();
    let world = Virtual::new();
    let doubtful = Arc::new(AtomicBool::new(false));
    let store = Overrides::new()
        .renewals({
            let doubtful = doubtful.clone();
            move |_, renewed| if doubtful.load(Ordering::Relaxed) { Renewed::Unknown } else { renewed }
        })
        .of(world.server.connector("memory:"));
    let keeper = Keeper::builder(store).virtual_time(world.clock.clock()).connect().await.expect("memory");
    let guard = keeper.mutex(NAME).lock().await.expect("free");
    doubtful.store(true, Ordering::Relaxed);
    sleep(secs(20)).await;
    let said = log.with("renewal failed");
    assert!(!said.is_empty() && said[0].contains("replicas"), "{:#?}", log.all());
    assert_eq!(said.len(), log.all().len(), "{:#?}", log.all());
    assert!(guard.renewal_error().is_some());
    doubtful.store(false, Ordering::Relaxed);
    sleep(secs(9)).await;
    assert!(guard.is_held() && guard.renewal_error().is_none(), "in time");
    assert_eq!(log.with("answers again").len(), 1, "{:#?}", log.all());
}
