//! Bad requests are refused, and cost nobody else anything.

use std::time::Duration;

use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tokio::io::AsyncWriteExt;

use crate::{client::read, world::World};

/// Returns all calls that need a token: method, path, a body that could work, and the role.
fn calls() -> Vec<(&'static str, &'static str, Value, &'static str)> {
    let name = json!({ "name": "other/1" });
    let lease = "lk1:00000000000000000000000000000001-1:5.0:5:all/all:mutex:30000:renewed:other/1";
    vec![
        ("POST", "/v1/acquire", name.clone(), "use"),
        ("POST", "/v1/renew", json!({ "lease": lease }), "use"),
        ("POST", "/v1/release", json!({ "lease": lease }), "use"),
        ("POST", "/v1/fence", json!({ "name": "other/1", "token": "1024" }), "use"),
        ("POST", "/v1/latch/create", json!({ "name": "other/1", "count": 1 }), "use"),
        ("POST", "/v1/latch/down", name.clone(), "use"),
        ("POST", "/v1/latch/wait", name.clone(), "use"),
        ("POST", "/v1/latch/reset", name.clone(), "use"),
        ("POST", "/v1/latch/delete", name, "use"),
        ("POST", "/v1/evict", json!({ "name": "other/1", "reason": "x" }), "administer"),
        ("GET", "/v1/locks", Value::Null, "look"),
        ("GET", "/v1/latches", Value::Null, "look"),
        ("GET", "/v1/lock?name=other/1", Value::Null, "look"),
        ("GET", "/v1/latch/show?name=other/1", Value::Null, "look"),
        ("GET", "/v1/leader?name=other/1", Value::Null, "look"),
        ("GET", "/v1/events", Value::Null, "look"),
        ("GET", "/v1/console?view=lock&name=other/1", Value::Null, "look"),
        ("GET", "/v1/history?name=other/1", Value::Null, "look"),
        ("GET", "/v1/hot", Value::Null, "look"),
        ("GET", "/v1/alarms", Value::Null, "look"),
        ("GET", "/v1/whoami", Value::Null, "look"),
        ("GET", "/v1/store", Value::Null, "look"),
        ("GET", "/v1/openapi.json", Value::Null, "look"),
        ("GET", "/metrics", Value::Null, "look"),
        ("GET", "/v1/nothing", Value::Null, "look"),
    ]
}

/// Returns the text of a call, with these lines instead of Host and Authorization.
fn call(method: &str, path: &str, body: &Value, lines: &str) -> String {
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let length = body.len();
    format!(
        "{method} {path} HTTP/1.1\r\n{lines}Content-Type: application/json\r\nContent-Length: {length}\r\nConnection: \
         close\r\n\r\n{body}"
    )
}

#[tokio::test]
async fn without_a_good_token_nothing_is_done() {
    let world = World::start().await;
    let client = world.admin();
    for (method, path, body, _) in calls() {
        for lines in [
            "",
            "Authorization: Bearer \r\n",
            "Authorization: Bearer\r\n",
            "Authorization: Basic YWRtaW46YWRtaW4=\r\n",
            "Cookie: token=adminadminadminadmin\r\n",
            "X-Token: adminadminadminadmin\r\n",
        ] {
            let lines = format!("Host: localhost\r\n{lines}");
            let answer = client.raw(&call(method, path, &body, &lines)).await;
            assert_eq!((answer.status, answer.code().as_str()), (401, "no_token"), "{method} {path} {lines}");
            assert_eq!(answer.header("www-authenticate"), Some("bearer"));
        }
        let separator = if path.contains('?') { '&' } else { '?' };
        let in_query = format!("{path}{separator}token=adminadminadminadmin");
        let answer = client.raw(&call(method, &in_query, &body, "Host: localhost\r\n")).await;
        assert_eq!(answer.status, 401, "{in_query}");
    }
    assert_eq!(world.counts("other/1").await, (0, 0));
}

#[tokio::test]
async fn wrong_tokens_are_refused_and_then_slowed_down() {
    let world = World::start().await;
    for wrong in
        ["adminadminadminadmi", "adminadminadminadminx", "ADMINADMINADMINADMIN", "look", "ops", "\u{e9}"]
    {
        let answer = world.client(wrong).get("/v1/locks").await;
        assert!(answer.status == 401, "{answer:?}");
    }
    let mut statuses = Vec::new();
    for _ in 0..40 {
        statuses.push(world.client("wrongwrongwrongwrong").get("/v1/locks").await.status);
    }
    assert!(statuses.contains(&429), "{statuses:?}");
    // A client that guesses tokens does not shut out clients that have one.
    assert_eq!(world.look().get("/v1/locks").await.status, 200);
    assert!(!world.log_text().contains("wrongwrong"), "tokens are in no log");
}

#[tokio::test]
async fn a_role_does_what_it_may_and_nothing_else() {
    let world = World::start().await;
    let order = |role: &str| ["look", "use", "administer"].iter().position(|word| *word == role);
    for (client, role) in [(world.look(), "look"), (world.user(), "use"), (world.admin(), "administer")] {
        // Streams have no end.
        let ends = |path: &str| !path.starts_with("/v1/events") && !path.starts_with("/v1/console");
        for (method, path, body, needs) in calls().into_iter().filter(|(_, path, ..)| ends(path)) {
            let lines = format!("Host: localhost\r\nAuthorization: Bearer {}\r\n", client.token);
            let answer = client.raw(&call(method, path, &body, &lines)).await;
            if order(role) < order(needs) {
                assert_eq!((answer.status, answer.code().as_str()), (403, "wrong_role"), "{role} {path}");
            } else {
                assert!(![401, 403].contains(&answer.status), "{role} {path} {answer:?}");
            }
        }
    }
}

#[tokio::test]
async fn a_token_for_prefixes_sees_and_uses_nothing_else() {
    let world = World::start().await;
    let lease = world.acquire("other/1").await;
    world.acquire("team/1").await;
    let team = world.team();
    for (method, path, body, needs) in calls() {
        let named = path.contains("name=") || body.is_object();
        if !named || needs == "administer" {
            continue;
        }
        let lines = format!("Host: localhost\r\nAuthorization: Bearer {}\r\n", team.token);
        let answer = team.raw(&call(method, path, &body, &lines)).await;
        assert_eq!((answer.status, answer.code().as_str()), (403, "wrong_prefix"), "{path}");
    }
    // Even with the lease of somebody else in hand.
    assert_eq!(team.post("/v1/release", &json!({ "lease": lease })).await.code(), "wrong_prefix");
    assert_eq!(team.post("/v1/acquire", &json!({ "name": "team/2" })).await.status, 200);
    assert_eq!(team.post("/v1/acquire", &json!({ "name": "team" })).await.code(), "wrong_prefix");
    world.sampled().await;
    let listed = world.client("teamlookteamlook").get("/v1/locks").await.json();
    let names: Vec<_> =
        listed["locks"].as_array().expect("a list").iter().map(|lock| &lock["name"]).collect();
    assert_eq!(names, ["team/1", "team/2"]);
    assert_eq!(listed["total_locks"], json!(2));
    let elsewhere = world.client("teamlookteamlook").get("/v1/locks?prefix=other/").await.json();
    assert_eq!(elsewhere["locks"], json!([]));
}

#[tokio::test]
async fn a_name_that_is_not_ours_is_refused() {
    let world = World::with(|settings| settings.hosts = vec!["locks.example".into()]).await;
    let client = world.admin();
    let token = format!("Authorization: Bearer {}\r\n", client.token);
    for (method, path, body, _) in calls() {
        for host in [
            "Host: evil.example\r\n",
            "Host: evil.example:7171\r\n",
            "Host: localhost.evil.example\r\n",
            "Host: 10.0.0.1\r\n",
            "Host: localhost\r\nHost: evil.example\r\n",
            "Host:\r\n",
            "",
            "Host: evil.example\r\nX-Forwarded-Host: localhost\r\n",
        ] {
            let answer = client.raw(&call(method, path, &body, &format!("{host}{token}"))).await;
            assert!([400, 403].contains(&answer.status), "{host} {path}: {answer:?}");
        }
    }
    let absolute =
        call("GET", "http://evil.example/v1/locks", &Value::Null, &format!("Host: localhost\r\n{token}"));
    assert_eq!(client.raw(&absolute).await.code(), "wrong_host");
    for host in ["localhost", "127.0.0.1:80", "[::1]:7171", "locks.example", "LOCKS.example:443"] {
        let good = call("GET", "/v1/locks", &Value::Null, &format!("Host: {host}\r\n{token}"));
        assert_eq!(client.raw(&good).await.status, 200, "{host}");
    }
    // Balancers call probes by address, and learn nothing but that.
    let probe = call("GET", "/healthz", &Value::Null, "Host: 10.0.0.1\r\n");
    assert_eq!(client.raw(&probe).await.status, 200);
}

#[tokio::test]
async fn pages_of_other_sites_change_nothing_and_read_nothing() {
    let world = World::start().await;
    let client = world.admin();
    let token = format!("Host: localhost:7171\r\nAuthorization: Bearer {}\r\n", client.token);
    for (method, path, body, _) in calls() {
        let mut bad = vec!["Sec-Fetch-Site: cross-site\r\n", "Sec-Fetch-Site: same-site\r\n"];
        if method == "POST" {
            bad.extend([
                "Origin: http://evil.example\r\n",
                "Origin: null\r\n",
                "Origin: https://localhost:7171\r\n",
                "Origin: http://localhost:8080\r\n",
                "Origin: http://localhost:7171.evil.example\r\n",
            ]);
        }
        for lines in bad {
            let answer = client.raw(&call(method, path, &body, &format!("{token}{lines}"))).await;
            assert_eq!((answer.status, answer.code().as_str()), (403, "wrong_origin"), "{path} {lines}");
        }
    }
    let ours = format!("{token}Origin: http://localhost:7171\r\nSec-Fetch-Site: same-origin\r\n");
    let answer = client.raw(&call("POST", "/v1/acquire", &json!({ "name": "own" }), &ours)).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    // Nobody is told that others may call.
    let ask = format!(
        "OPTIONS /v1/acquire HTTP/1.1\r\n{token}Connection: close\r\nOrigin: http://localhost:7171\r\n\r\n"
    );
    let answer = client.raw(&ask).await;
    assert!(answer.status == 405 && !answer.head.contains("access-control"), "{answer:?}");
}

#[tokio::test]
async fn answers_are_safe_for_browsers_and_no_cookie_is_set() {
    let world = World::start().await;
    for path in ["/healthz", "/v1/locks", "/metrics", "/nothing", "/v1/nothing"] {
        let answer = world.look().get(path).await;
        let policy = answer.header("content-security-policy").expect("a policy");
        assert!(policy.starts_with("default-src 'none'") && policy.contains("frame-ancestors 'none'"));
        assert!(!policy.contains("unsafe"), "{policy}");
        assert_eq!(answer.header("x-content-type-options"), Some("nosniff"));
        assert_eq!(answer.header("x-frame-options"), Some("deny"));
        assert_eq!(answer.header("referrer-policy"), Some("no-referrer"));
        assert_eq!(answer.header("cache-control"), Some("no-store"));
        assert_eq!(answer.header("set-cookie"), None);
    }
}

#[tokio::test]
async fn hostile_names_are_refused_or_nothing_but_text() {
    let world = World::start().await;
    let user = world.user();
    for bad in ["", "a\u{1b}[31m", "two\nlines", "nul\u{0}", "\u{9b}x", &"a".repeat(513)] {
        let answer = user.post("/v1/acquire", &json!({ "name": bad })).await;
        assert_eq!((answer.status, answer.code().as_str()), (400, "invalid"), "{bad:?}");
        assert!(!answer.text.contains('\u{1b}') && !answer.text.contains('\u{9b}'));
    }
    let names = [
        "<script>alert(1)</script>",
        "'; DROP TABLE entry; --",
        "../../etc/passwd",
        "%2e%2e%2f",
        "a\"b\\c",
        "{name}",
        "*",
        "\u{202e}gnp.exe",
        "\u{feff}bom",
        "👩‍👩‍👧",
        "=cmd|'/c calc'!A1",
        &"é".repeat(256),
    ];
    for name in names {
        let body = json!({ "name": name, "label": format!("{name}\u{1b}[2J\r\nevil: yes") });
        let answer = user.post("/v1/acquire", &body).await;
        assert_eq!((answer.status, answer.get("name").as_str()), (200, name), "{answer:?}");
        assert_eq!(answer.header("evil"), None);
    }
    world.sampled().await;
    let listed = world.look().get("/v1/locks").await;
    assert!(listed.header("content-type") == Some("application/json") && !listed.text.contains('\u{1b}'));
    assert!(!listed.text.contains('\u{202e}'), "marks that deceive readers are escaped");
    let found: Vec<String> = listed.json()["locks"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|lock| lock["name"].as_str().expect("text").to_owned())
        .collect();
    assert_eq!(found.len(), names.len());
    assert!(names.iter().all(|name| found.iter().any(|found| found == name)));
    world.until_logged(json!({ "what": "acquire", "name": "=cmd|'/c calc'!A1" })).await;
    assert!(!world.log_text().contains('\u{1b}') && !world.log_text().contains('\u{202e}'));
}

#[tokio::test]
async fn keys_of_locks_are_shown_to_nobody_else() {
    let world = World::start().await;
    let lease = world.acquire("secret").await;
    let key = lease.split(':').nth(1).expect("a contender").split('-').next().expect("a keeper").to_owned();
    for path in ["/v1/locks", "/v1/lock?name=secret", "/metrics"] {
        let answer = world.look().get(path).await;
        assert!(answer.status == 200 && !answer.text.contains(&key), "{path}");
    }
    assert!(!world.log_text().contains(&key));
}

#[tokio::test]
async fn what_is_no_request_is_refused() {
    let world = World::start().await;
    let user = world.user();
    let head = user.head("POST", "/v1/acquire");
    for (kind, body, code) in [
        ("text/plain", "{\"name\":\"a\"}", "not_json"),
        ("application/x-www-form-urlencoded", "name=a", "not_json"),
        ("multipart/form-data", "{\"name\":\"a\"}", "not_json"),
        ("application/json", "", "not_json"),
        ("application/json", "{", "not_json"),
        ("application/json", "[]", "not_json"),
        ("application/json", "{\"name\":1}", "not_json"),
        ("application/json", "{\"name\":\"a\",\"nmae\":1}", "not_json"),
        ("application/json", "{\"wait\":\"1s\"}", "not_json"),
        ("application/json", "\u{feff}{\"name\":\"a\"}", "not_json"),
    ] {
        let length = body.len();
        let text = format!("{head}Content-Type: {kind}\r\nContent-Length: {length}\r\n\r\n{body}");
        let answer = user.raw(&text).await;
        assert_eq!((answer.status, answer.code().as_str()), (400, code), "{kind} {body}");
    }
    let deep = format!("{{\"name\":{}1{}}}", "[".repeat(20_000), "]".repeat(20_000));
    let text =
        format!("{head}Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{deep}", deep.len());
    assert_eq!(user.raw(&text).await.status, 400);
    for query in
        ["/v1/lock", "/v1/lock?nmae=a", "/v1/locks?limit=0", "/v1/locks?limit=x", "/v1/locks?limit=99999999"]
    {
        assert_eq!(user.get(query).await.code(), "invalid", "{query}");
    }
    for raw in [
        "\r\n\r\n",
        "GET\r\n\r\n",
        "GET / HTTP/9.9\r\n\r\n",
        "\u{16}\u{3}\u{1}binary\r\n\r\n",
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ] {
        let answer = user.raw(raw).await;
        assert!([0, 400, 403, 505].contains(&answer.status), "{raw:?} {answer:?}");
        // Refusals have the shape of all errors.
        assert!(answer.status == 0 || !answer.code().is_empty(), "{raw:?} {answer:?}");
    }
    // Two lengths, or a length and chunks: proxies and servers could disagree about where a request ends.
    for smuggled in [
        "Content-Length: 5\r\nContent-Length: 6\r\n",
        "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding: chunked, identity\r\n",
    ] {
        let text = format!(
            "{head}Content-Type: application/json\r\n{smuggled}\r\n0\r\n\r\nGET /v1/locks HTTP/1.1\r\n\r\n"
        );
        let answer = user.raw(&text).await;
        assert!(
            answer.status == 400 && answer.text.matches("HTTP/1.1").count() == 0,
            "{smuggled} {answer:?}"
        );
    }
}

#[tokio::test]
async fn what_is_too_large_is_refused() {
    let world = World::start().await;
    let user = world.user();
    let large = json!({ "name": "a", "label": "x".repeat(70_000) });
    let answer = user.post("/v1/acquire", &large).await;
    assert_eq!((answer.status, answer.code().as_str()), (413, "too_large"));
    let chunked = format!(
        "{}Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n{}",
        user.head("POST", "/v1/acquire"),
        format!("4000\r\n{}\r\n", "x".repeat(0x4000)).repeat(6)
    );
    assert_eq!(user.raw(&chunked).await.code(), "too_large");
    let header = format!("{}X-Large: {}\r\n\r\n", user.head("GET", "/v1/locks"), "x".repeat(100_000));
    let answer = user.raw(&header).await;
    assert_eq!((answer.status, answer.code().as_str()), (431, "head_too_large"), "{answer:?}");
    let many = format!("{}{}\r\n", user.head("GET", "/v1/locks"), "X: y\r\n".repeat(200));
    assert_eq!(user.raw(&many).await.code(), "head_too_large");
    let bad = format!("{}X: y\u{1}\r\n\r\n", user.head("GET", "/v1/locks"));
    let answer = user.raw(&bad).await;
    assert_eq!((answer.status, answer.code().as_str()), (400, "not_http"), "{answer:?}");
    let text = json!({ "name": "a", "label": "x".repeat(5000) });
    assert_eq!(user.post("/v1/acquire", &text).await.code(), "invalid");
}

#[tokio::test]
async fn slow_and_silent_clients_cost_nobody_else_anything() {
    let world = World::with(|settings| {
        settings.limits.patience = Duration::from_millis(500);
        settings.limits.connections = 20;
    })
    .await;
    let user = world.user();
    // Clients that are silent, or send half a head or half a body: more of them than the server takes.
    let mut slow = Vec::new();
    for index in 0..60 {
        let mut stream = user.connect().await;
        let text = match index % 3 {
            0 => String::new(),
            1 => user.head("POST", "/v1/acquire"),
            _ => format!(
                "{}Content-Type: application/json\r\nContent-Length: 50\r\n\r\n{{\"name\":",
                user.head("POST", "/v1/acquire")
            ),
        };
        // It may have been closed already to make room.
        let _ = stream.write_all(text.as_bytes()).await;
        slow.push(stream);
    }
    for _ in 0..20 {
        let answer = user.post("/v1/acquire", &json!({ "name": "free" })).await;
        assert!([200, 409].contains(&answer.status), "{answer:?}");
    }
    // All of them are given up. They get an answer if their head was complete, and none otherwise.
    for mut stream in slow {
        let answer = read(&mut stream).await;
        assert!([0, 400, 408].contains(&answer.status), "{answer:?}");
    }
}

#[tokio::test]
async fn half_a_head_is_not_waited_for_any_longer_than_the_limit() {
    let world = World::with(|settings| settings.limits.patience = Duration::from_millis(300)).await;
    let user = world.user();
    let mut stream = user.connect().await;
    stream.write_all(user.head("GET", "/v1/locks").as_bytes()).await.expect("written");
    let trickle = async {
        loop {
            tokio::time::sleep(Duration::from_millis(50)).await;
            if stream.write_all(b"X: y\r\n").await.is_err() {
                break;
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(20), trickle).await.expect("it is closed");
}

#[tokio::test]
async fn a_caller_with_a_byte_too_many_hangs_up_like_others() {
    let world = World::start().await;
    let lease = world.acquire("x").await;
    let body = json!({ "name": "x", "wait": "5m" });
    let request = world.user().posted("/v1/acquire", "", &body);
    let keeps = request.replace("Connection: close\r\n", "");
    for too_many in ["\r\n".to_owned(), keeps.clone(), keeps.repeat(20)] {
        let mut stream = world.user().connect().await;
        stream.write_all(format!("{keeps}{too_many}").as_bytes()).await.expect("sent");
        world.until_counts("x", (1, 1)).await;
        drop(stream);
        world.until_counts("x", (1, 0)).await;
    }
    // A client that stays gets its answer, and then the answer to the request behind it.
    let mut stream = world.user().connect().await;
    stream
        .write_all(format!("{keeps}{}", world.user().head("GET", "/v1/whoami")).as_bytes())
        .await
        .expect("sent");
    world.until_counts("x", (1, 1)).await;
    stream.write_all(b"\r\n").await.expect("sent");
    world.release(&lease).await;
    let answers = read(&mut stream).await;
    assert!(answers.status == 200 && answers.text.contains("\"role\":\"use\""), "{answers:?}");
    world.until_counts("x", (1, 0)).await;
}

#[tokio::test]
async fn a_lease_cannot_be_made_from_another_one() {
    let world = World::start().await;
    let team = world.team();
    let acquire = |name: &str| json!({ "name": name, "lease": "5m" });
    let before = team.post("/v1/acquire", &acquire("team/before")).await;
    let held = world.user().post("/v1/acquire", &acquire("team/held")).await;
    let after = team.post("/v1/acquire", &acquire("team/after")).await;
    let right = held.get("lease");
    let id = |lease: &str| lease.split(':').nth(1).expect("an id").to_owned();
    // The shown id tells nobody which guess is right.
    let shown = team.get("/v1/lock?name=team/held").await.json()["holders"][0]["id"].clone();
    let hash: String = Sha256::digest(id(&right))[..8].iter().map(|byte| format!("{byte:02x}")).collect();
    assert_ne!(shown, json!(hash));
    // Callers that may look know all of the lease but the id.
    let (_, known) = right.split_once(&id(&right)).expect("it has its id");
    for own in [before, after] {
        let own = id(&own.get("lease"));
        let (keeper, number) = own.rsplit_once('-').expect("a keeper and a number");
        let number: u64 = number.parse().expect("a number");
        for guess in (0..20).chain(number.saturating_sub(10)..=number.saturating_add(10)) {
            let lease = json!({ "lease": format!("lk1:{keeper}-{guess}{known}") });
            for path in ["/v1/renew", "/v1/release"] {
                let answer = team.post(path, &lease).await;
                assert!(matches!(answer.code().as_str(), "not_held" | "invalid"), "{answer:?}");
            }
        }
    }
    assert_eq!(world.user().post("/v1/renew", &json!({ "lease": right })).await.status, 200);
    assert_eq!(world.counts("team/held").await, (1, 0));
}
