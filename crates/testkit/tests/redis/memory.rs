//! The server loses its data, restarts, stops for a while, runs out of memory, or forgets its scripts.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

use lockkeeper::{Lost, ReleaseError};
use lockkeeper_testkit::servers::{Redis, RedisOptions};
use tokio::{
    task::JoinSet,
    time::{Instant, timeout},
};

use crate::{
    NAME, WORKER, connect,
    load::{Load, Rest},
    millis, secs, times,
};

#[test]
fn restarts_with_empty_memory_never_take_a_token_back() {
    let redis = Redis::start().expect("started");
    let mut load = Load::on(WORKER, &redis.url());
    for _ in 0..times(3, 50) {
        load.losing(Rest::Own, || redis.restart());
    }
    load.must_be_fenced();
}

#[test]
fn restarts_with_all_data_lose_nothing() {
    let redis = RedisOptions::default().append_only().start().expect("started");
    let mut load = Load::on(WORKER, &redis.url());
    for _ in 0..times(3, 50) {
        load.through(|| redis.restart());
    }
    load.must_be_safe();
}

/// The server is stopped for longer than a lease: all holders lose their locks, and all are told.
#[test]
fn a_stopped_server_is_waited_for() {
    let redis = Redis::start().expect("started");
    let mut load = Load::on(WORKER, &redis.url());
    for round in 0..times(2, 20) {
        redis.process().pause();
        load.listen(millis(if round % 2 == 0 { 1500 } else { 300 }));
        load.through(|| {
            redis.process().resume();
            Ok(())
        });
    }
    load.must_be_safe();
}

#[test]
fn forgotten_scripts_are_sent_again() {
    let redis = Redis::start().expect("started");
    let mut load = Load::on(WORKER, &redis.url());
    let stop = AtomicBool::new(false);
    let flushed = thread::scope(|scope| {
        let flushing = scope.spawn(|| {
            let mut flushed = 0;
            while !stop.load(Ordering::Acquire) {
                redis.command(["SCRIPT", "FLUSH"]).expect("flushed");
                flushed += 1;
            }
            flushed
        });
        for _ in 0..times(3, 200) {
            load.go_on(100);
        }
        stop.store(true, Ordering::Release);
        flushing.join().expect("no panic")
    });
    assert!(flushed > 3, "flushed only {flushed} times");
    load.must_be_safe();
}

#[test]
fn dropped_connections_are_opened_again() {
    let redis = Redis::start().expect("started");
    let mut load = Load::on(WORKER, &redis.url());
    for round in 0..times(5, 200) {
        let kind = if round % 2 == 0 { "pubsub" } else { "normal" };
        load.through(|| redis.command(["CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes"]).map(drop));
    }
    load.must_be_safe();
}

/// The lock is lost and another contender gets it. The old holder hears of it within one renewal, and neither its
/// renewal nor its late release touches the new hold.
#[tokio::test(flavor = "multi_thread")]
async fn i1_a_forgotten_holder_is_told_and_touches_nothing() {
    let redis = Redis::start().expect("started");
    let (ours, theirs) = (connect(&redis.url()).await, connect(&redis.url()).await);
    for _ in 0..times(2, 20) {
        let old = ours.mutex(NAME).lease(secs(3)).lock().await.expect("free");
        redis.restart().expect("restarted");
        let lost_at = Instant::now();
        let new = timeout(secs(10), theirs.mutex(NAME).lease(secs(30)).lock()).await;
        let new = new.expect("in time").expect("forgotten, so free");
        assert!(new.token() > old.token(), "tokens grow");
        let lost = timeout(secs(3), old.lost()).await.expect("before the lease ends");
        assert_eq!(lost, Lost::Gone);
        assert!(lost_at.elapsed() < secs(2), "within one renewal, but took {:?}", lost_at.elapsed());
        assert!(matches!(old.release().await, Err(ReleaseError::NotHeld { .. })));
        let view = theirs.inspect(NAME).await.expect("reachable").expect("held");
        assert_eq!(view.holders[0].token, new.token());
        new.release().await.expect("untouched");
    }
}

/// Releases that travel in a group with claims are done, although there is no memory for the claims.
#[tokio::test(flavor = "multi_thread")]
async fn a_full_server_takes_back_what_others_wait_for() {
    let redis = Redis::start().expect("started");
    let (ours, theirs) = (connect(&redis.url()).await, connect(&redis.url()).await);
    let (mut held, mut waiting) = (Vec::new(), JoinSet::new());
    for nth in 0..32 {
        let name = format!("held/{nth}");
        held.push(ours.mutex(&name).lock().await.expect("free"));
        let mutex = theirs.mutex(&name);
        waiting.spawn(async move { mutex.lock().await.expect("passed on") });
        while ours.inspect(&name).await.expect("reachable").is_none_or(|view| view.waiters.is_empty()) {}
    }
    redis.command(["CONFIG", "SET", "maxmemory", "1"]).expect("set");
    let mut tasks = JoinSet::new();
    for (nth, guard) in held.into_iter().enumerate() {
        let mutex = ours.mutex(&format!("free/{nth}"));
        tasks.spawn(async move { guard.release().await.expect("freed without memory") });
        // The claim may be granted: a release in the same group leaves some memory for it.
        tasks.spawn(async move { drop(mutex.try_lock().await) });
    }
    tasks.join_all().await;
    let passed = timeout(secs(20), waiting.join_all()).await.expect("in time");
    redis.command(["CONFIG", "SET", "maxmemory", "0"]).expect("set");
    for guard in passed {
        guard.release().await.expect("held");
    }
}

/// Without memory no lock is granted, but holds are renewed and released.
#[tokio::test(flavor = "multi_thread")]
async fn a_full_server_says_so_and_goes_on_with_what_is_held() {
    let redis = Redis::start().expect("started");
    let keeper = connect(&redis.url()).await;
    let held = keeper.mutex("held").lease(secs(2)).lock().await.expect("free");
    redis.command(["CONFIG", "SET", "maxmemory", "1mb"]).expect("set");
    redis.command(["CONFIG", "SET", "maxmemory", "1"]).expect("set");
    let error = keeper.mutex(NAME).try_lock().await.expect_err("no memory");
    assert!(error.to_string().contains("memory"), "{error}");
    tokio::time::sleep(secs(3)).await;
    assert!(held.is_held(), "it was renewed meanwhile");
    held.release().await.expect("freed without memory");
    redis.command(["CONFIG", "SET", "maxmemory", "0"]).expect("set");
    let guard = keeper.mutex(NAME).lock().await.expect("there is room again");
    guard.release().await.expect("held");
}

/// A waiter with a shortest hold claims again after its grant, so the server knows that it is there; and with `wait=n`
/// the grant is written again. Neither needs memory.
#[tokio::test(flavor = "multi_thread")]
async fn a_full_server_lets_a_grant_be_confirmed() {
    let (redis, replica) = (Redis::start().expect("started"), Redis::start().expect("started"));
    replica.follow(&redis).expect("in step");
    for options in ["", "?wait=1"] {
        let url = redis.url() + options;
        let (ours, theirs) = (connect(&url).await, connect(&url).await);
        let held = ours.mutex(NAME).lock().await.expect("free");
        let mutex = theirs.mutex(NAME).min_hold(millis(1));
        let waiting = tokio::spawn(async move { mutex.lock().await });
        while ours.inspect(NAME).await.expect("reachable").is_none_or(|view| view.waiters.is_empty()) {
            tokio::time::sleep(millis(2)).await;
        }
        redis.command(["CONFIG", "SET", "maxmemory", "1"]).expect("set");
        held.release().await.expect("freed without memory");
        let next = timeout(secs(20), waiting).await.expect("in time").expect("no panic").expect("granted");
        next.release().await.expect("held");
        redis.command(["CONFIG", "SET", "maxmemory", "0"]).expect("set");
    }
}
