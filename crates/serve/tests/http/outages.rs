//! A store that is silent or slow, and callers that hang up meanwhile.

use std::time::{Duration, Instant};

use lockkeeper_testkit::{proxy::Proxy, servers::Redis};
use serde_json::json;
use tokio::io::AsyncWriteExt;

use crate::world::World;

/// A server whose way to Redis leads through a proxy.
struct Stage {
    world: World,
    proxy: Proxy,
    _redis: Redis,
}

impl Stage {
    async fn start() -> Self {
        let redis = Redis::start().expect("a server");
        let proxy = Proxy::start(redis.address()).expect("a proxy");
        let store = format!("redis://{}/", proxy.address());
        let world = World::with(|settings| settings.store = store).await;
        Self { world, proxy, _redis: redis }
    }
}

#[tokio::test]
async fn metrics_do_not_wait_for_a_silent_store() {
    let stage = Stage::start().await;
    let look = stage.world.look();
    assert!(look.get("/metrics").await.text.contains("lockkeeper_store_held"));
    stage.proxy.pause(true);
    loop {
        let started = Instant::now();
        let metrics = look.get("/metrics").await;
        assert!(
            metrics.status == 200 && metrics.text.contains("lockkeeper_http_requests_total"),
            "{metrics:?}"
        );
        assert!(started.elapsed() < Duration::from_secs(8), "{:?}", started.elapsed());
        // Once the last sample is too old, its gauges are not shown.
        if !metrics.text.contains("lockkeeper_store_held") {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    stage.proxy.pause(false);
}

#[tokio::test]
async fn a_change_is_done_and_written_down_although_its_caller_hangs_up() {
    let stage = Stage::start().await;
    let world = &stage.world;
    world.acquire("a").await;
    world.user().post("/v1/latch/create", &json!({ "name": "l", "count": 2 })).await;
    stage.proxy.delay(Duration::from_millis(250));
    let evict = world.admin().posted("/v1/evict", "", &json!({ "name": "a", "reason": "r", "now": true }));
    let down = world.admin().posted("/v1/latch/down", "", &json!({ "name": "l" }));
    for request in [evict, down] {
        let mut stream = world.admin().connect().await;
        stream.write_all(request.as_bytes()).await.expect("sent");
        // Long enough for the request to begin, and too short for an answer.
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    stage.proxy.delay(Duration::ZERO);
    world.until_logged(json!({ "what": "evict", "outcome": "evicted", "who": "ops", "name": "a" })).await;
    world.until_logged(json!({ "what": "latch down", "outcome": "counted", "name": "l" })).await;
    assert_eq!(world.counts("a").await, (0, 0));
}

#[tokio::test]
async fn a_probe_that_hangs_up_does_not_make_a_silent_store_ready() {
    let stage = Stage::start().await;
    let look = stage.world.look();
    assert_eq!(look.get("/readyz").await.status, 200);
    // The present answer becomes too old.
    tokio::time::sleep(Duration::from_millis(1100)).await;
    stage.proxy.pause(true);
    for _ in 0..3 {
        let mut stream = look.connect().await;
        stream.write_all(b"GET /readyz HTTP/1.1\r\nHost: localhost\r\n\r\n").await.expect("sent");
        tokio::time::sleep(Duration::from_millis(300)).await;
        drop(stream);
        let started = Instant::now();
        assert_eq!(look.get("/readyz").await.status, 503);
        assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
    }
    stage.proxy.pause(false);
    let started = Instant::now();
    while look.get("/readyz").await.status != 200 {
        assert!(started.elapsed() < Duration::from_secs(30), "it is ready again");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
