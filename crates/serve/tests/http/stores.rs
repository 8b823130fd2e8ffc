//! The server on every store: callers see the same on all of them.

use std::time::{Duration, Instant};

use lockkeeper_testkit::servers::{Postgres, Redis, ZooKeeper};
use serde_json::{Value, json};

use crate::{
    client::{Answer, LIMIT},
    world::World,
};

async fn on(store: &str) -> World {
    World::with(|settings| settings.store = store.into()).await
}

/// Checks two servers of one store: a grant of one of them is known to the other one.
async fn serves(store: &str) {
    let (one, two) = (on(store).await, on(store).await);
    locks(&one, &two).await;
    queues(&one, &two).await;
    permits(&one, &two).await;
    let led = elections(&one, &two).await;
    fences(&one, &two, &led.get("token")).await;
    latches(&one, &two).await;
    evicts(&one, &two, &led.get("lease")).await;
    ends(one, &two).await;
}

/// Checks the same on a quorum, which has no semaphores and no latches, and fences only where members keep their data.
async fn serves_as_quorum(members: &[String], has_fences: bool) {
    let store = format!("quorum:{}", members.join(","));
    lockkeeper::quorum::found_fresh(&store).await.expect("founded");
    let (one, two) = (on(&store).await, on(&store).await);
    locks(&one, &two).await;
    queues(&one, &two).await;
    let led = elections(&one, &two).await;
    if has_fences {
        fences(&one, &two, &led.get("token")).await;
    } else {
        let fence = json!({ "name": "f", "token": led.get("token") });
        let why = "keep the fence with the data";
        refused(&one, ("/v1/fence", &fence), (400, "invalid"), why).await;
    }
    evicts(&one, &two, &led.get("lease")).await;
    let why = "no semaphores and no latches";
    for call in [
        ("/v1/acquire", &json!({ "name": "s", "permits": "2/3" })),
        ("/v1/latch/create", &json!({ "name": "l", "count": 1 })),
        ("/v1/latch/wait", &json!({ "name": "l", "wait": "1s" })),
    ] {
        refused(&one, call, (400, "invalid"), why).await;
    }
    ends(one, &two).await;
}

/// Checks that a call which the store cannot do is refused, and that the answer says why.
async fn refused(world: &World, (path, body): (&str, &Value), expected: (u16, &str), why: &str) {
    let answer = world.user().post(path, body).await;
    assert_eq!((answer.status, answer.code().as_str()), expected, "{answer:?}");
    assert!(answer.get("message").contains(why), "{answer:?}");
}

async fn locks(one: &World, two: &World) {
    let held = one.user().post("/v1/acquire", &json!({ "name": "a", "lease": "30s", "label": "x" })).await;
    assert_eq!(held.status, 200, "{held:?}");
    let left = held.json()["expires_in_ms"].as_u64().expect("a number");
    assert!((1..=30_000).contains(&left), "{left}");
    let busy = two.user().post("/v1/acquire", &json!({ "name": "a" })).await;
    assert_eq!(busy.code(), "busy");
    let lease = json!({ "lease": held.get("lease") });
    assert_eq!(two.user().post("/v1/renew", &lease).await.status, 200);
    let shown = two.look().get("/v1/lock?name=a").await.json();
    let holder = &shown["holders"][0];
    assert_eq!(
        (&holder["program"], &holder["label"], &holder["detached"]),
        (&json!("worker"), &json!("x"), &json!(true))
    );
    one.sampled().await;
    let listed = one.look().get("/v1/locks?prefix=a").await.json();
    assert_eq!(listed["locks"][0]["name"], json!("a"), "{listed}");
    assert_eq!(two.user().post("/v1/release", &lease).await.status, 200);
    assert_eq!(one.user().post("/v1/release", &lease).await.code(), "not_held");
    assert_eq!(one.user().post("/v1/renew", &lease).await.code(), "not_held");
}

async fn queues(one: &World, two: &World) {
    let lease = one.acquire("q").await;
    let wait = |world: &World| {
        let user = world.user();
        tokio::spawn(async move { user.post("/v1/acquire", &json!({ "name": "q", "wait": "1m" })).await })
    };
    let gone = wait(two);
    one.until_counts("q", (1, 1)).await;
    let next = wait(one);
    one.until_counts("q", (1, 2)).await;
    gone.abort();
    one.until_counts("q", (1, 1)).await;
    two.release(&lease).await;
    let granted = next.await.expect("answered");
    assert_eq!(granted.status, 200, "{granted:?}");
    two.release(&granted.get("lease")).await;
    one.until_counts("q", (0, 0)).await;
}

async fn permits(one: &World, two: &World) {
    let permits = json!({ "name": "s", "permits": "2/3" });
    let permit = one.user().post("/v1/acquire", &permits).await;
    assert_eq!(permit.status, 200, "{permit:?}");
    assert_eq!(two.user().post("/v1/acquire", &permits).await.code(), "busy");
    assert_eq!(two.user().post("/v1/acquire", &json!({ "name": "s" })).await.code(), "other_capacity");
}

/// Checks elections; a leader is left and returned.
async fn elections(one: &World, two: &World) -> Answer {
    let led = one.user().post("/v1/acquire", &json!({ "name": "e", "value": "here" })).await;
    assert_eq!(two.look().get("/v1/leader?name=e").await.json()["leader"]["value"], json!("here"));
    led
}

async fn fences(one: &World, two: &World, token: &str) {
    let fence = |token: &str| json!({ "name": "f", "token": token });
    assert_eq!(one.user().post("/v1/fence", &fence(token)).await.status, 200);
    assert_eq!(two.user().post("/v1/fence", &fence("1024")).await.code(), "stale_token");
}

async fn latches(one: &World, two: &World) {
    assert_eq!(one.user().post("/v1/latch/create", &json!({ "name": "l", "count": 1 })).await.status, 200);
    let waits = tokio::spawn({
        let user = two.user();
        async move { user.post("/v1/latch/wait", &json!({ "name": "l", "wait": "1m" })).await }
    });
    assert_eq!(one.user().post("/v1/latch/down", &json!({ "name": "l" })).await.get("remaining"), "0");
    assert_eq!(waits.await.expect("answered").status, 200);
}

async fn evicts(one: &World, two: &World, lease: &str) {
    let evicted = two.admin().post("/v1/evict", &json!({ "name": "e", "reason": "test", "now": true })).await;
    assert_eq!(evicted.json()["evicted"][0]["done"], json!(true));
    assert_eq!(one.user().post("/v1/renew", &json!({ "lease": lease })).await.code(), "not_held");
}

/// Ends one of the servers: its grants are still held, and requests that waited there are refused.
async fn ends(mut one: World, two: &World) {
    let kept = one.acquire("kept").await;
    let held = two.acquire("held").await;
    let waits = tokio::spawn({
        let user = one.user();
        async move { user.post("/v1/acquire", &json!({ "name": "held", "wait": "1m" })).await }
    });
    two.until_counts("held", (1, 1)).await;
    one.end();
    assert_eq!(waits.await.expect("answered").code(), "shutting_down");
    one.ended().await;
    two.until_counts("held", (1, 0)).await;
    assert_eq!(two.counts("kept").await, (1, 0));
    assert_eq!(two.user().post("/v1/renew", &json!({ "lease": kept })).await.status, 200);
    two.release(&kept).await;
    two.release(&held).await;
}

#[tokio::test]
async fn sqlite_is_served() {
    let folder = tempfile::tempdir().expect("a folder");
    serves(&format!("sqlite:{}", folder.path().join("locks.db").display())).await;
}

#[tokio::test]
async fn redis_is_served() {
    let redis = Redis::start().expect("a server");
    serves(&redis.url()).await;
}

#[tokio::test]
async fn a_quorum_of_files_is_served() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = |name| format!("sqlite:{}", folder.path().join(name).display());
    serves_as_quorum(&["a.db", "b.db", "c.db"].map(file), true).await;
}

#[tokio::test]
async fn a_quorum_of_redis_servers_is_served() {
    let servers = [(); 3].map(|()| Redis::start().expect("a server"));
    serves_as_quorum(&servers.each_ref().map(Redis::url), false).await;
}

#[tokio::test]
async fn postgres_is_served() {
    let postgres = Postgres::start().expect("a server");
    serves(&postgres.url()).await;
}

#[tokio::test]
async fn zookeeper_is_served_and_waiting_callers_are_capped() {
    let zookeeper = ZooKeeper::start().expect("a server");
    serves(&zookeeper.url()).await;
    let world = World::with(|settings| {
        settings.store = zookeeper.url();
        settings.limits.waiting = Some(2);
    })
    .await;
    let lease = world.acquire("cap").await;
    let mut waits = Vec::new();
    for waiting in 1..=2 {
        let user = world.user();
        waits.push(tokio::spawn(async move {
            user.post("/v1/acquire", &json!({ "name": "cap", "wait": "1m" })).await
        }));
        world.until_counts("cap", (1, waiting)).await;
    }
    // Each request is a session, even one that only tries.
    for body in [json!({ "name": "cap", "wait": "1m" }), json!({ "name": "free" })] {
        let refused = world.user().post("/v1/acquire", &body).await;
        assert_eq!((refused.status, refused.code().as_str()), (429, "too_many_waiting"));
        let message: Value = refused.json()["message"].clone();
        assert!(message.as_str().is_some_and(|text| text.contains("ZooKeeper")), "{message}");
    }
    world.release(&lease).await;
    let first = waits.remove(0).await.expect("answered");
    assert_eq!(first.status, 200, "{first:?}");
    world.release(&first.get("lease")).await;
    waits.remove(0).await.expect("answered");
}

/// How many scripts a server has run.
fn scripts(redis: &Redis) -> u64 {
    let stats = redis.info("commandstats", "cmdstat_evalsha").expect("it counts");
    let calls = stats.split(',').find_map(|part| part.strip_prefix("calls=")).expect("a count");
    calls.parse().expect("a number")
}

/// Acquiring and releasing are one request to the store each, and so are the looks of the server itself, once a second.
#[tokio::test]
async fn a_pair_of_calls_is_two_requests_to_the_store() {
    const PAIRS: u64 = 200;
    let redis = Redis::start().expect("a server");
    let world = on(&redis.url()).await;
    let lease = world.acquire("pair").await;
    world.release(&lease).await;
    let (before, started) = (scripts(&redis), Instant::now());
    for _ in 0..PAIRS {
        let lease = world.acquire("pair").await;
        world.release(&lease).await;
    }
    let (sent, seconds) = (scripts(&redis) - before, started.elapsed().as_secs() + 1);
    // The server's own: a look at readiness, and one at the lock in each of two samples that may show it.
    let own = 4 * seconds;
    assert!((2 * PAIRS..=2 * PAIRS + own).contains(&sent), "{sent} for {PAIRS} pairs in {seconds} s");
}

/// The store goes and comes back: callers are told to come again, and the server goes on.
#[tokio::test]
async fn an_outage_of_the_store_is_503_and_ends() {
    let redis = Redis::start().expect("a server");
    let world = on(&redis.url()).await;
    let lease = world.acquire("a").await;
    redis.process().kill();
    let failed = world.user().post("/v1/acquire", &json!({ "name": "b" })).await;
    assert_eq!((failed.status, failed.code().as_str()), (503, "store_unreachable"), "{failed:?}");
    assert!(failed.header("retry-after").is_some());
    // The last sample is shown for as long as it is fresh.
    let start = Instant::now();
    while world.look().get("/v1/locks").await.status == 200 {
        assert!(start.elapsed() < LIMIT);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    for path in ["/v1/locks", "/v1/lock?name=a"] {
        assert_eq!(world.look().get(path).await.code(), "store_unreachable", "{path}");
    }
    assert_eq!(world.user().get("/healthz").await.status, 200);
    let start = Instant::now();
    while world.user().get("/readyz").await.status != 503 {
        assert!(start.elapsed() < LIMIT);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let renewed = world.user().post("/v1/renew", &json!({ "lease": lease })).await;
    assert_eq!(renewed.status, 503, "{renewed:?}");
    redis.start_again().expect("started");
    while world.user().post("/v1/acquire", &json!({ "name": "b" })).await.status != 200 {
        assert!(start.elapsed() < LIMIT);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    while world.look().get("/v1/locks").await.status != 200 || world.user().get("/readyz").await.status != 200
    {
        assert!(start.elapsed() < LIMIT);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
