//! The server for operators: evictions, metrics, probes, and the log.

use serde_json::json;

use crate::world::World;

#[tokio::test]
async fn an_eviction_is_ordered_with_a_reason_and_written_down() {
    let world = World::start().await;
    let admin = world.admin();
    let held = world.user().post("/v1/acquire", &json!({ "name": "e" })).await;
    let lease = json!({ "lease": held.get("lease") });
    for reason in [json!({ "name": "e" }), json!({ "name": "e", "reason": " " })] {
        assert_eq!(admin.post("/v1/evict", &reason).await.status, 400);
    }
    let other = json!({ "name": "e", "reason": "r", "token": "1024" });
    assert_eq!(admin.post("/v1/evict", &other).await.json()["evicted"], json!([]));
    assert_eq!(world.user().post("/v1/renew", &lease).await.status, 200);

    let order = json!({ "name": "e", "reason": "its machine is gone", "token": held.get("token") });
    let evicted = admin.post("/v1/evict", &order).await.json();
    assert_eq!(
        (&evicted["evicted"][0]["done"], &evicted["evicted"][0]["program"]),
        (&json!(true), &json!("worker"))
    );
    let line =
        world.until_logged(json!({ "what": "evict", "outcome": "evicted", "who": "ops", "name": "e" })).await;
    assert_eq!((&line["reason"], &line["token"]), (&json!("its machine is gone"), &json!(held.get("token"))));
    assert_eq!(world.user().post("/v1/renew", &lease).await.code(), "not_held");
    assert_eq!(world.counts("e").await, (1, 0));

    let now = json!({ "name": "e", "reason": "now", "now": true });
    assert_eq!(admin.post("/v1/evict", &now).await.json()["evicted"][0]["done"], json!(true));
    assert_eq!(world.counts("e").await, (0, 0));
    assert_eq!(admin.post("/v1/evict", &now).await.json()["evicted"], json!([]));
}

#[tokio::test]
async fn every_change_is_written_down_with_who_and_from_where() {
    let world = World::start().await;
    let user = world.user();
    let held = user.post("/v1/acquire", &json!({ "name": "a" })).await;
    let lease = json!({ "lease": held.get("lease") });
    user.post("/v1/renew", &lease).await;
    user.post("/v1/fence", &json!({ "name": "a", "token": held.get("token") })).await;
    user.post("/v1/release", &lease).await;
    user.post("/v1/latch/create", &json!({ "name": "a", "count": 2 })).await;
    for path in ["down", "reset", "delete"] {
        user.post(&format!("/v1/latch/{path}"), &json!({ "name": "a" })).await;
    }
    for (what, outcome) in [
        ("acquire", "granted"),
        ("renew", "renewed"),
        ("fence", "admitted"),
        ("release", "released"),
        ("latch create", "created"),
        ("latch down", "counted"),
        ("latch reset", "reset"),
        ("latch delete", "deleted"),
    ] {
        let fields =
            json!({ "what": what, "outcome": outcome, "name": "a", "who": "worker", "from": "127.0.0.1" });
        world.until_logged(fields).await;
    }
    assert!(!world.log_text().contains("useuseuse"), "tokens are in no log");
}

#[tokio::test]
async fn metrics_show_the_server_the_library_and_the_store() {
    let world = World::with(|settings| settings.hottest = 2).await;
    let held = world.acquire("team/hot\\\"1").await;
    let hot = tokio::spawn({
        let user = world.user();
        async move { user.post("/v1/acquire", &json!({ "name": "team/hot\\\"1", "wait": "1m" })).await }
    });
    let waits = world.until_waiting().await;
    for metric in [
        "lockkeeper_store_held{store=\"memory:\"} 1",
        "lockkeeper_store_waiting{store=\"memory:\"} 1",
        "lockkeeper_lock_waiting{name=\"team/hot\\\\\\\"1\"} 1",
        "lockkeeper_store_oldest_hold_seconds{store=\"memory:\"} ",
        "lockkeeper_store_oldest_wait_seconds{store=\"memory:\"} ",
        "lockkeeper_http_requests_total{path=\"/v1/acquire\",status=\"200\"} ",
        "lockkeeper_http_request_seconds_bucket{path=\"/v1/acquire\",le=\"0.001\"} ",
        "lockkeeper_store_request_seconds_bucket{operation=\"acquire\",le=\"0.001\"} ",
        "lockkeeper_store_listing_seconds_count ",
        "lockkeeper_acquired_total{kind=\"mutex\",outcome=\"granted\"} ",
        "lockkeeper_http_connections ",
        "lockkeeper_http_waiting ",
    ] {
        assert!(waits.contains(metric), "{metric} is not in\n{waits}");
    }
    let families = |mark| waits.lines().filter_map(move |line| line.strip_prefix(mark)?.split(' ').next());
    let explained: Vec<&str> = families("# HELP ").collect();
    assert!(explained.len() > 10, "{waits}");
    for family in families("# TYPE ") {
        assert!(explained.contains(&family), "{family} has no HELP");
    }
    let limited = world.client("teamlookteamlook").get("/metrics").await.text;
    assert!(limited.contains("team/hot"));
    // The library's own metrics are the same for all callers. Those of the store count only names that the token may
    // see.
    assert!(limited.contains("lockkeeper_store_held{store=\"memory:\"} 1"));
    world.acquire("other").await;
    tokio::time::sleep(std::time::Duration::from_millis(1100)).await;
    let limited = world.client("teamlookteamlook").get("/metrics").await.text;
    assert!(limited.contains("lockkeeper_store_held{store=\"memory:\"} 1"), "{limited}");
    world.release(&held).await;
    hot.await.expect("answered");
}

/// The gauge of alarms of the whole server would tell of names that the token may not see.
#[tokio::test]
async fn a_limited_token_counts_its_own_alarms_only() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("alarms.toml");
    std::fs::write(&file, "[[alarm]]\nheld = '1s'\n").expect("written");
    let world = World::with(|settings| settings.alarms = Some(file)).await;
    for name in ["team/a", "other", "third"] {
        world.acquire(name).await;
    }
    let start = std::time::Instant::now();
    while world.look().get("/v1/alarms").await.json()["active"].as_array().map_or(0, Vec::len) < 3 {
        assert!(start.elapsed() < crate::client::LIMIT, "no alarms");
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    let limited = world.client("teamlookteamlook").get("/metrics").await.text;
    assert!(limited.contains("lockkeeper_alarms{kind=\"held_too_long\"} 1\n"), "{limited}");
    assert!(limited.contains("lockkeeper_alarms{kind=\"doctor\"} 0\n"), "{limited}");
}

impl World {
    /// Waits until somebody waits, and returns the metrics then.
    async fn until_waiting(&self) -> String {
        loop {
            let text = self.look().get("/metrics").await.text;
            if text.contains("lockkeeper_store_waiting{store=\"memory:\"} 1") {
                return text;
            }
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    }
}
