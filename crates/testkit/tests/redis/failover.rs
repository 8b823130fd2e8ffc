//! A replica becomes the master: writes that the old master had not sent yet are lost.

use lockkeeper_testkit::servers::{Redis, RedisSentinel};
use tokio::time::{Instant, timeout};

use crate::{
    NAME, WORKER, connect,
    connections::replies_get_lost,
    load::{Load, Rest},
    millis, secs, times,
};

#[test]
fn promotions_under_load_never_take_a_token_back() {
    let servers = RedisSentinel::start().expect("started");
    let mut load = Load::on(WORKER, &servers.url());
    for _ in 0..times(2, 50) {
        load.losing(Rest::OldCopy, || {
            servers.promote()?;
            servers.until_settled()
        });
    }
    load.must_be_fenced();
}

#[test]
fn dead_masters_under_load_are_replaced() {
    let servers = RedisSentinel::start().expect("started");
    let mut load = Load::on(WORKER, &servers.url());
    for _ in 0..times(1, 10) {
        let master = servers.master().expect("known");
        load.losing(Rest::OldCopy, || {
            master.process().kill();
            servers.until_master_is_not(master.address())?;
            master.start_again()?;
            servers.until_settled()
        });
    }
    load.must_be_fenced();
}

/// The grant counts only when both replicas have it, so it is there after the promotion too.
#[tokio::test(flavor = "multi_thread")]
async fn a_grant_that_replicas_have_survives_a_promotion() {
    let servers = RedisSentinel::start().expect("started");
    let url = format!("{}?wait=2&wait_limit=2s", servers.url());
    let (ours, theirs) = (connect(&url).await, connect(&url).await);
    for _ in 0..times(1, 10) {
        let guard = ours.mutex(NAME).lease(secs(30)).lock().await.expect("free");
        servers.promote().expect("promoted");
        let taken = theirs.mutex(NAME).try_lock().await.expect("the new master answers");
        assert!(taken.is_none(), "the lock was lost with its old master");
        assert!(guard.is_held());
        servers.until_settled().expect("settled");
        guard.release().await.expect("held");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn i9_a_lost_reply_of_a_master_is_asked_for_again() {
    let mut servers = RedisSentinel::start().expect("started");
    let proxies = servers.behind_proxies().expect("started");
    for _ in 0..2 {
        let master = servers.master().expect("known");
        let place = servers.servers().iter().position(|server| std::ptr::eq(server, master));
        let proxy = &proxies[place.expect("one of them")];
        replies_get_lost(&servers.url(), master, proxy, times(2, 100)).await;
        servers.promote().expect("promoted");
        servers.until_settled().expect("settled");
    }
}

/// Too few replicas answer in time: the store gives the grant back, and the error says so.
#[tokio::test(flavor = "multi_thread")]
async fn without_its_replicas_a_grant_is_given_back() {
    let (master, replica) = (Redis::start().expect("started"), Redis::start().expect("started"));
    replica.follow(&master).expect("in step");
    let keeper = connect(&format!("{}?wait=1&wait_limit=300ms", master.url())).await;
    let plain = connect(&master.url()).await;
    let guard = keeper.mutex(NAME).lock().await.expect("one replica is there");
    guard.release().await.expect("held");
    replica.process().pause();
    let refused = keeper.mutex(NAME).lease(secs(5)).try_lock().await.expect_err("no replica has it");
    assert!(refused.to_string().contains("replica"), "{refused}");
    let free = timeout(secs(5), async {
        while plain.inspect(NAME).await.expect("reachable").is_some() {
            tokio::time::sleep(millis(10)).await;
        }
    });
    free.await.expect("it was given back");
    replica.process().resume();
    let guard = timeout(secs(10), keeper.mutex(NAME).lock()).await.expect("in time").expect("it is back");
    guard.release().await.expect("held");
}

/// A failover is under way, or the URL names the wrong server: either way the error says what to do.
#[tokio::test(flavor = "multi_thread")]
async fn a_url_that_names_a_replica_gets_an_error_that_says_so() {
    let (master, replica) = (Redis::start().expect("started"), Redis::start().expect("started"));
    replica.follow(&master).expect("in step");
    let keeper = match lockkeeper::connect(&replica.url()).await {
        // The error comes at once.
        Err(error) => return assert!(error.to_string().contains("replica"), "{error}"),
        Ok(keeper) => keeper,
    };
    let started = Instant::now();
    let error = keeper.mutex(NAME).try_lock().await.expect_err("a replica takes no writes");
    assert!(error.to_string().contains("replica"), "{error}");
    assert!(started.elapsed() < secs(30));
}
