//! The Redis store's reports of servers on which locks are at risk, and the servers that it refuses.

use lockkeeper::{Keeper, error::StoreErrorKind, url};
use lockkeeper_redis::{Risk, check, examine};
use lockkeeper_testkit::servers::{Redis, RedisCluster, RedisOptions, RedisSentinel};

async fn risks(url: &str) -> Vec<Risk> {
    check(url).await.expect("reached").into_iter().map(|finding| finding.risk).collect()
}

async fn connect(url: &str) -> Result<Keeper, lockkeeper::StoreError> {
    Keeper::builder(url::connector(url)?).connect().await
}

#[tokio::test]
async fn risks_are_found_and_strict_refuses_them() {
    let lossy = RedisOptions::default().setting("maxmemory 100mb").setting("maxmemory-policy allkeys-lru");
    let lossy = lossy.start().expect("started");
    assert_eq!(risks(&lossy.url()).await, [Risk::Eviction, Risk::NoPersistence]);
    let error = connect(&format!("{}?strict=true", lossy.url())).await.expect_err("at risk");
    assert_eq!(error.kind(), StoreErrorKind::Config);
    assert!(error.to_string().contains("noeviction") && error.to_string().contains("appendonly"), "{error}");
    connect(&lossy.url()).await.expect("only warned").close().await;

    let sound = RedisOptions::default().append_only().start().expect("started");
    assert_eq!(risks(&sound.url()).await, []);
    connect(&format!("{}?strict=true", sound.url())).await.expect("nothing to find").close().await;
}

#[tokio::test]
async fn a_clock_far_off_and_masters_that_may_lose_grants_are_found() {
    let redis = RedisOptions::default().append_only().movable_clock().start().expect("started");
    redis.shift_clock(3600).expect("shifted");
    assert_eq!(risks(&redis.url()).await, [Risk::Clock]);

    let sentinel = RedisSentinel::start_with(&RedisOptions::default().append_only()).expect("started");
    assert_eq!(risks(&sentinel.url()).await, [Risk::Replication, Risk::CutOff]);
    assert_eq!(risks(&format!("{}?wait=1", sentinel.url())).await, [Risk::CutOff]);
    let master = sentinel.master().expect("known");
    master.command(["CONFIG", "SET", "min-replicas-to-write", "1"]).expect("set");
    assert_eq!(risks(&format!("{}?wait=1", sentinel.url())).await, []);
}

/// Each server is told, and one that does not answer hides nothing of the others.
#[tokio::test]
async fn every_server_is_told_and_a_silent_one_too() {
    let sentinel = RedisSentinel::start().expect("started");
    let found = examine(&sentinel.url()).await.expect("reached").servers;
    assert_eq!(found[0].role, "master", "{found:?}");
    assert!(found.len() > 1 && found[1].role == format!("replica of {}", found[0].server), "{found:?}");

    let cluster = RedisCluster::start().expect("started");
    let found = examine(&cluster.url()).await.expect("reached");
    let (masters, replicas): (Vec<_>, Vec<_>) =
        found.servers.iter().partition(|server| server.role == "master");
    assert_eq!((masters.len(), replicas.len()), (3, 3), "{found:?}");
    assert!(masters.iter().all(|server| server.answers && !server.version.is_empty()), "{found:?}");
    // Its replica must not take over.
    let pair = [&cluster.servers()[0], &cluster.servers()[3]];
    pair.iter().for_each(|server| server.process().pause());
    let found = examine(&cluster.url()).await;
    pair.iter().for_each(|server| server.process().resume());
    let found = found.expect("others answer");
    let silent = found.findings.iter().filter(|finding| finding.risk == Risk::Silent).count();
    let told = found.servers.iter().filter(|server| !server.answers).count();
    assert_eq!((silent, told), (1, 1), "{found:?}");
}

/// A grant that too few replicas have is given back, and the error says so.
#[tokio::test]
async fn a_grant_without_its_replicas_is_given_back() {
    let redis = Redis::start().expect("started");
    let keeper = connect(&format!("{}?wait=1&wait_limit=50ms", redis.url())).await.expect("up");
    let error = keeper.mutex("stock").try_lock().await.expect_err("there is no replica");
    assert!(error.to_string().contains("0 of 1 replicas"), "{error}");
    assert!(keeper.inspect("stock").await.expect("up").is_none(), "it was given back");
    keeper.close().await;
}

/// The beginning of a resource with one more row.
const HEAD: &str = "1700000000000000 1700000000000000 000001 x somebody 1700000000000000";

/// A key of another program in the namespace is left as it is, and costs no other resource anything.
#[tokio::test]
async fn a_foreign_key_is_refused_and_left_alone() {
    let redis = Redis::start().expect("started");
    let keeper = connect(&redis.url()).await.expect("up");
    for (name, command) in [
        ("text", ["SET", "lockkeeper:{text}", "precious"].as_slice()),
        ("list", &["RPUSH", "lockkeeper:{list}", "precious"]),
        ("long list", &["RPUSH", "lockkeeper:{long list}", HEAD, "precious"]),
        ("odd list", &["RPUSH", "lockkeeper:{odd list}", HEAD, "x precious", "x", "x"]),
        ("head", &["SET", "lockkeeper:{head}", HEAD]),
        ("set", &["ZADD", "lockkeeper:{set}", "0", "precious"]),
    ] {
        redis.command(command.iter().copied()).expect("set");
        let error = keeper.mutex(name).try_lock().await.expect_err(name);
        assert!(error.to_string().contains("namespace="), "{error}");
        assert_eq!(redis.command(["EXISTS", &format!("lockkeeper:{{{name}}}")]).expect("asked"), "1");
    }
    keeper.mutex("free").try_lock().await.expect("up").expect("free").release().await.expect("held");
    keeper.close().await;
}

#[tokio::test]
async fn other_layouts_are_refused() {
    let redis = Redis::start().expect("started");
    for (layout, remedy) in [("1 somebody", "remove the keys"), ("3 somebody", "update")] {
        redis.command(["SET", "lockkeeper:layout", layout]).expect("set");
        let error = connect(&redis.url()).await.expect_err("of another version");
        assert_eq!(error.kind(), StoreErrorKind::Corrupt);
        assert!(error.to_string().contains(remedy), "{error}");
    }
}
