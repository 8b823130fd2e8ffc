//! Every call does what it says.

use serde_json::json;

use crate::world::World;

#[tokio::test]
async fn a_lock_is_acquired_renewed_and_released() {
    let world = World::start().await;
    let user = world.user();
    let first = user.post("/v1/acquire", &json!({ "name": "stock/42", "lease": "1m", "label": "hi" })).await;
    assert_eq!(first.status, 200, "{first:?}");
    assert_eq!((first.get("name"), first.get("token")), ("stock/42".into(), first.get("floor")));
    let left = first.json()["expires_in_ms"].as_u64().expect("a number");
    assert!((50_000..=60_000).contains(&left), "{left}");

    let busy = user.post("/v1/acquire", &json!({ "name": "stock/42" })).await;
    assert_eq!((busy.status, busy.code().as_str()), (409, "busy"));
    let late = user.post("/v1/acquire", &json!({ "name": "stock/42", "wait": "50ms" })).await;
    assert_eq!((late.status, late.code().as_str()), (409, "not_in_time"));

    let lease = json!({ "lease": first.get("lease") });
    let renewed = user.post("/v1/renew", &lease).await;
    assert_eq!((renewed.status, renewed.get("token")), (200, first.get("token")), "{renewed:?}");
    let shown = world.look().get("/v1/lock?name=stock/42").await.json();
    let holder = &shown["holders"][0];
    assert_eq!(
        (&holder["program"], &holder["host"], &holder["label"]),
        (&json!("worker"), &json!("127.0.0.1"), &json!("hi"))
    );
    assert_eq!((&holder["detached"], &holder["lease_ms"]), (&json!(true), &json!(60_000)));

    let released = user.post("/v1/release", &lease).await;
    assert_eq!((released.status, released.get("name").as_str()), (200, "stock/42"));
    for path in ["/v1/release", "/v1/renew"] {
        let again = user.post(path, &lease).await;
        assert_eq!((again.status, again.code().as_str()), (410, "not_held"));
    }
    let second = user.post("/v1/acquire", &json!({ "name": "stock/42" })).await;
    assert!(
        second.get("token").len() >= first.get("token").len() && second.get("token") > first.get("token")
    );
}

#[tokio::test]
async fn the_next_in_the_queue_gets_it_and_whoever_hangs_up_leaves() {
    let world = World::start().await;
    let lease = world.acquire("q").await;
    let user = world.user();
    let gone = tokio::spawn({
        let user = user.clone();
        async move { user.post("/v1/acquire", &json!({ "name": "q", "wait": "5m" })).await }
    });
    world.until_counts("q", (1, 1)).await;
    let waits = tokio::spawn({
        let user = user.clone();
        async move { user.post("/v1/acquire", &json!({ "name": "q", "wait": "5m" })).await }
    });
    world.until_counts("q", (1, 2)).await;
    gone.abort();
    world.until_counts("q", (1, 1)).await;
    world
        .until_logged(json!({ "what": "acquire", "name": "q", "outcome": "hung_up", "who": "worker" }))
        .await;
    world.release(&lease).await;
    let granted = waits.await.expect("answered");
    assert_eq!(granted.status, 200, "{granted:?}");
    assert_eq!(world.counts("q").await, (1, 0));
}

#[tokio::test]
async fn shared_permits_and_elections_are_acquired_alike() {
    let world = World::start().await;
    let user = world.user();
    for _ in 0..2 {
        assert_eq!(user.post("/v1/acquire", &json!({ "name": "r", "shared": true })).await.status, 200);
        assert_eq!(user.post("/v1/acquire", &json!({ "name": "s", "permits": "2/4" })).await.status, 200);
    }
    assert_eq!(user.post("/v1/acquire", &json!({ "name": "r" })).await.code(), "busy");
    assert_eq!(user.post("/v1/acquire", &json!({ "name": "s", "permits": "1/4" })).await.code(), "busy");
    assert_eq!(
        user.post("/v1/acquire", &json!({ "name": "s", "permits": "1/5" })).await.code(),
        "other_capacity"
    );
    for bad in ["0/4", "5/4", "4", "a/b", "1/0", ""] {
        assert_eq!(user.post("/v1/acquire", &json!({ "name": "s", "permits": bad })).await.code(), "invalid");
    }
    let both = json!({ "name": "r", "shared": true, "permits": "1/4" });
    assert_eq!(user.post("/v1/acquire", &both).await.code(), "invalid");

    assert_eq!(world.look().get("/v1/leader?name=e").await.json(), json!({ "name": "e", "leader": null }));
    let leads = user.post("/v1/acquire", &json!({ "name": "e", "value": "10.0.0.7:80" })).await;
    let leader = &world.look().get("/v1/leader?name=e").await.json()["leader"];
    assert_eq!((&leader["value"], &leader["token"]), (&json!("10.0.0.7:80"), &json!(leads.get("token"))));
}

#[tokio::test]
async fn times_are_those_of_the_command() {
    let world = World::start().await;
    for (field, value) in
        [("wait", "soon"), ("lease", "-1s"), ("min_hold", "1 s"), ("wait", "11m"), ("lease", "1ms")]
    {
        let answer = world.user().post("/v1/acquire", &json!({ "name": "t", field: value })).await;
        assert_eq!((answer.status, answer.code().as_str()), (400, "invalid"), "{field} {value}");
    }
    let answer =
        world.user().post("/v1/acquire", &json!({ "name": "t", "lease": "1h30m", "wait": "0s" })).await;
    assert_eq!(answer.status, 200);
}

#[tokio::test]
async fn a_minimum_hold_outlives_its_release() {
    let world = World::start().await;
    let user = world.user();
    let held = user.post("/v1/acquire", &json!({ "name": "m", "min_hold": "10m" })).await;
    assert_eq!(user.post("/v1/release", &json!({ "lease": held.get("lease") })).await.status, 200);
    assert_eq!(user.post("/v1/acquire", &json!({ "name": "m" })).await.code(), "busy");
}

#[tokio::test]
async fn a_latch_counts_and_is_waited_for() {
    let world = World::start().await;
    let user = world.user();
    let name = json!({ "name": "l" });
    assert_eq!(user.post("/v1/latch/down", &name).await.code(), "no_latch");
    assert_eq!(user.get("/v1/latch/show?name=l").await.code(), "no_latch");
    assert_eq!(user.post("/v1/latch/create", &json!({ "name": "l", "count": 2 })).await.status, 200);
    assert_eq!(
        user.post("/v1/latch/create", &json!({ "name": "l", "count": 2 })).await.code(),
        "latch_exists"
    );
    assert_eq!(user.post("/v1/latch/wait", &name).await.code(), "not_in_time");
    assert_eq!(
        user.post("/v1/latch/wait", &json!({ "name": "l", "wait": "20ms" })).await.code(),
        "not_in_time"
    );
    let waits = tokio::spawn({
        let user = user.clone();
        async move { user.post("/v1/latch/wait", &json!({ "name": "l", "wait": "1m" })).await }
    });
    assert_eq!(user.post("/v1/latch/down", &name).await.get("remaining"), "1");
    assert_eq!(user.post("/v1/latch/down", &json!({ "name": "l", "count": 5 })).await.get("remaining"), "0");
    assert_eq!(waits.await.expect("answered").status, 200);
    let shown = world.look().get("/v1/latch/show?name=l").await.json();
    assert_eq!(shown, json!({ "name": "l", "remaining": 0, "initial": 2 }));
    assert_eq!(user.post("/v1/latch/reset", &name).await.status, 200);
    assert_eq!(user.get("/v1/latch/show?name=l").await.get("remaining"), "2");
    world.sampled().await;
    let listed = world.look().get("/v1/latches?prefix=l").await.json();
    assert_eq!(listed["latches"][0]["name"], json!("l"));
    assert_eq!(user.post("/v1/latch/delete", &name).await.status, 200);
    assert_eq!(user.post("/v1/latch/delete", &name).await.code(), "no_latch");
}

#[tokio::test]
async fn a_fence_rejects_what_is_older() {
    let world = World::start().await;
    let user = world.user();
    let mut tokens = Vec::new();
    for _ in 0..2 {
        let held = user.post("/v1/acquire", &json!({ "name": "f" })).await;
        tokens.push(held.get("token"));
        user.post("/v1/release", &json!({ "lease": held.get("lease") })).await;
    }
    for (token, status) in [(&tokens[0], 200), (&tokens[1], 200), (&tokens[1], 200), (&tokens[0], 409)] {
        let answer = user.post("/v1/fence", &json!({ "name": "f", "token": token })).await;
        assert_eq!(answer.status, status, "{answer:?}");
    }
    assert_eq!(
        user.post("/v1/fence", &json!({ "name": "f", "token": tokens[0] })).await.code(),
        "stale_token"
    );
    assert_eq!(user.post("/v1/fence", &json!({ "name": "f", "token": "x" })).await.code(), "invalid");
}

#[tokio::test]
async fn every_path_is_described_and_every_error_is_json() {
    let described: serde_json::Value = serde_json::from_str(&lockkeeper_serve::description()).expect("JSON");
    assert_eq!(described["openapi"], json!("3.1.0"));
    let world = World::start().await;
    let served = world.look().get("/v1/openapi.json").await.json();
    assert_eq!(served, described);
    let paths = described["paths"].as_object().expect("paths");
    assert!(paths.len() >= 18, "{}", paths.len());
    for (path, methods) in paths {
        // It has no end.
        let methods = methods.as_object().expect("methods").keys().filter(|_| path != "/v1/events");
        for method in methods {
            let answer =
                world.admin().raw(&format!("{}\r\n", world.admin().head(&method.to_uppercase(), path))).await;
            // Without a body and without parameters hardly any of them can work, but all are there.
            assert!(answer.status == 200 || answer.status == 400, "{method} {path}: {answer:?}");
        }
        let answer = world.admin().raw(&format!("{}\r\n", world.admin().head("PUT", path))).await;
        assert_eq!((answer.status, answer.code().as_str()), (405, "wrong_method"), "{path}");
    }
    assert_eq!(world.admin().get("/v1/nothing").await.code(), "not_found");
    assert_eq!(world.admin().get("/nothing").await.code(), "not_found");
}

#[tokio::test]
async fn a_page_knows_who_it_is_and_where() {
    let world = World::start().await;
    let who = world.team().get("/v1/whoami").await.json();
    assert_eq!(who, json!({ "name": "team", "role": "use", "prefixes": ["team/", "shared/"] }));
    let store = world.look().get("/v1/store").await.json();
    assert_eq!((&store["store"], &store["survives"]["client_crash"]), (&json!("memory"), &json!("n/a")));
}
