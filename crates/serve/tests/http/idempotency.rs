//! Requests that are repeated with their key are done once.

use serde_json::json;

use crate::world::World;

const KEY: &str = "Idempotency-Key: 6a1f\r\n";

#[tokio::test]
async fn a_repeat_gets_the_same_lease() {
    let world = World::start().await;
    let user = world.user();
    let body = json!({ "name": "a", "lease": "1m" });
    let first = user.post_with("/v1/acquire", KEY, &body).await;
    let again = user.post_with("/v1/acquire", KEY, &body).await;
    assert_eq!(
        (first.status, first.get("lease"), first.get("token")),
        (200, again.get("lease"), again.get("token"))
    );
    // The store was asked, which renews the lease.
    assert!(again.json()["expires_in_ms"].as_u64().is_some_and(|left| (30_000..=60_000).contains(&left)));
    assert_eq!(user.post("/v1/acquire", &body).await.code(), "busy");
    // Another token, another path and another body are other requests.
    assert_eq!(world.admin().post_with("/v1/acquire", KEY, &body).await.code(), "busy");
    let other = user.post_with("/v1/acquire", KEY, &json!({ "name": "b" })).await;
    assert_eq!((other.status, other.code().as_str()), (400, "key_reused"));
    let lease = json!({ "lease": first.get("lease") });
    for _ in 0..2 {
        assert_eq!(user.post_with("/v1/release", KEY, &lease).await.status, 200);
    }
    assert_eq!(user.post("/v1/release", &lease).await.code(), "not_held");
    // A late copy must not acquire the lock anew after its release.
    assert_eq!(user.post_with("/v1/acquire", KEY, &body).await.code(), "not_held");
    assert_eq!(world.counts("a").await, (0, 0));
}

#[tokio::test]
async fn a_repeat_waits_for_the_first_and_takes_over_if_that_hangs_up() {
    let world = World::start().await;
    let lease = world.acquire("a").await;
    let wait = || {
        let user = world.user();
        tokio::spawn(async move {
            user.post_with("/v1/acquire", KEY, &json!({ "name": "a", "wait": "5m" })).await
        })
    };
    let first = wait();
    world.until_counts("a", (1, 1)).await;
    let (second, third) = (wait(), wait());
    first.abort();
    world.until_logged(json!({ "what": "acquire", "outcome": "hung_up" })).await;
    world.until_counts("a", (1, 1)).await;
    world.release(&lease).await;
    let (second, third) = (second.await.expect("answered"), third.await.expect("answered"));
    assert_eq!((second.status, second.get("lease")), (200, third.get("lease")));
    assert_eq!(world.counts("a").await, (1, 0));
}

#[tokio::test]
async fn a_repeat_does_not_say_held_when_it_is_not() {
    let world = World::start().await;
    let user = world.user();
    // An operator evicts the holder.
    let body = json!({ "name": "a", "lease": "1m" });
    assert_eq!(user.post_with("/v1/acquire", KEY, &body).await.status, 200);
    let evicted = world.admin().post("/v1/evict", &json!({ "name": "a", "reason": "r", "now": true })).await;
    assert_eq!(evicted.status, 200);
    let again = user.post_with("/v1/acquire", KEY, &body).await;
    assert_eq!((again.status, again.code().as_str()), (410, "not_held"));
    assert_eq!(world.counts("a").await, (0, 0));
    // The lease has ended, and somebody else has the lock.
    let other = "Idempotency-Key: other\r\n";
    let body = json!({ "name": "b", "lease": "1s" });
    assert_eq!(user.post_with("/v1/acquire", other, &body).await.status, 200);
    let next = world.admin().post("/v1/acquire", &json!({ "name": "b", "wait": "1m" })).await;
    assert_eq!(next.status, 200);
    assert_eq!(user.post_with("/v1/acquire", other, &body).await.code(), "not_held");
}

#[tokio::test]
async fn repeats_that_wait_have_their_own_limits() {
    let world = World::with(|settings| settings.limits.waiting = Some(2)).await;
    world.acquire("a").await;
    let wait = || {
        let user = world.user();
        tokio::spawn(async move {
            user.post_with("/v1/acquire", KEY, &json!({ "name": "a", "wait": "2s" })).await
        })
    };
    let started = std::time::Instant::now();
    let first = wait();
    world.until_counts("a", (1, 1)).await;
    let others = [wait(), wait(), wait()];
    let mut codes = vec![first.await.expect("answered").code()];
    for other in others {
        codes.push(other.await.expect("answered").code());
    }
    let took = started.elapsed();
    codes.sort();
    assert_eq!(codes, ["not_in_time", "not_in_time", "too_many_waiting", "too_many_waiting"]);
    assert!(took < std::time::Duration::from_millis(3800), "{took:?}");
}

#[tokio::test]
async fn a_latch_is_counted_once() {
    let world = World::start().await;
    let user = world.user();
    user.post("/v1/latch/create", &json!({ "name": "l", "count": 3 })).await;
    for _ in 0..3 {
        let down = user.post_with("/v1/latch/down", KEY, &json!({ "name": "l" })).await;
        assert_eq!((down.status, down.get("remaining").as_str()), (200, "2"));
    }
    assert_eq!(user.post("/v1/latch/down", &json!({ "name": "l" })).await.get("remaining"), "1");
}

#[tokio::test]
async fn bad_keys_are_refused() {
    let world = World::start().await;
    for key in ["", "two words", &"x".repeat(256), "a\r\nIdempotency-Key: b"] {
        let header = format!("Idempotency-Key: {key}\r\n");
        let answer = world.user().post_with("/v1/acquire", &header, &json!({ "name": "a" })).await;
        assert_eq!((answer.status, answer.code().as_str()), (400, "invalid"), "{key}");
    }
}
