//! Listings are samples, and events are the differences between them.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines},
    net::TcpStream,
    time::timeout,
};

use crate::{
    client::{Client, LIMIT},
    world::World,
};

/// Events as they come.
struct Events {
    lines: Lines<BufReader<TcpStream>>,
}

impl Events {
    async fn follow(client: &Client, path: &str) -> Self {
        let mut stream = client.connect().await;
        stream.write_all(format!("{}\r\n", client.head("GET", path)).as_bytes()).await.expect("written");
        Self { lines: BufReader::new(stream).lines() }
    }

    /// Returns the next event: its kind and its data.
    async fn next(&mut self) -> Option<(String, Value)> {
        let mut kind = None;
        loop {
            let line = timeout(LIMIT, self.lines.next_line()).await.expect("in time").ok().flatten()?;
            if let Some(word) = line.strip_prefix("event: ") {
                kind = Some(word.to_owned());
            } else if let Some(data) = line.strip_prefix("data: ") {
                return Some((kind?, serde_json::from_str(data).expect("JSON")));
            }
        }
    }

    /// Returns all events before the next of a kind, and that one.
    async fn until(&mut self, wanted: &str) -> Vec<(String, Value)> {
        let mut events = Vec::new();
        loop {
            let event = self.next().await.expect("it goes on");
            let found = event.0 == wanted;
            events.push(event);
            if found {
                return events;
            }
        }
    }
}

fn names(events: &[(String, Value)], kind: &str) -> Vec<String> {
    let named = events.iter().filter(|(found, _)| found == kind);
    named.map(|(_, event)| event["name"].as_str().expect("a name").to_owned()).collect()
}

#[tokio::test]
async fn events_tell_what_is_there_and_then_what_changes() {
    let world = World::start().await;
    let lease = world.acquire("team/1").await;
    world.acquire("other/1").await;
    world.sampled().await;
    let mut events = Events::follow(&world.look(), "/v1/events").await;
    let begin = events.until("sample").await;
    assert_eq!(begin[0].0, "reset");
    assert_eq!(names(&begin, "lock"), ["other/1", "team/1"]);

    world.release(&lease).await;
    world.user().post("/v1/latch/create", &json!({ "name": "l", "count": 2 })).await;
    world.acquire("team/2").await;
    let mut seen = events.until("sample").await;
    while names(&seen, "gone").is_empty()
        || names(&seen, "latch").is_empty()
        || names(&seen, "lock").is_empty()
    {
        seen.extend(events.until("sample").await);
    }
    assert_eq!(
        (names(&seen, "gone"), names(&seen, "latch"), names(&seen, "lock")),
        (vec!["team/1".to_owned()], vec!["l".to_owned()], vec!["team/2".to_owned()])
    );
    // Nothing changes, so only the sample is told.
    assert_eq!(events.until("sample").await.len(), 1);
    world.user().post("/v1/latch/delete", &json!({ "name": "l" })).await;
    events.until("latch_gone").await;
}

#[tokio::test]
async fn events_are_for_what_was_asked_for_and_may_be_seen() {
    let world = World::start().await;
    for name in ["team/a/1", "team/b/1", "other/1"] {
        world.acquire(name).await;
    }
    world.sampled().await;
    let eye = world.client("teamlookteamlook");
    let mut all = Events::follow(&eye, "/v1/events").await;
    assert_eq!(names(&all.until("sample").await, "lock"), ["team/a/1", "team/b/1"]);
    let mut some = Events::follow(&eye, "/v1/events?prefix=team/b").await;
    let begin = some.until("sample").await;
    assert_eq!(names(&begin, "lock"), ["team/b/1"]);
    let number = begin.last().expect("a sample").1["sample"].as_u64().expect("a number");
    let mut later = Events::follow(&eye, &format!("/v1/events?since={number}")).await;
    let first = later.next().await.expect("an event");
    assert!(first.0 == "sample" || first.0 == "reset", "{first:?}");
}

#[tokio::test]
async fn pages_are_in_order_and_from_one_sample() {
    let world = World::start().await;
    for index in 0..25 {
        world.acquire(&format!("p/{index:02}")).await;
    }
    world.sampled().await;
    let (mut names, mut after) = (Vec::new(), String::new());
    loop {
        let page = world.look().get(&format!("/v1/locks?prefix=p/&limit=10{after}")).await.json();
        let locks = page["locks"].as_array().expect("a list");
        assert!(locks.len() <= 10 && page["total_locks"] == json!(25), "{page}");
        names.extend(locks.iter().map(|lock| lock["name"].as_str().expect("text").to_owned()));
        let Some(next) = page["next"].as_str() else { break };
        after = format!("&after={next}");
    }
    assert_eq!(names, (0..25).map(|index| format!("p/{index:02}")).collect::<Vec<_>>());
}

#[tokio::test]
async fn pages_end_by_their_bytes_too() {
    let world = World::start().await;
    for index in 0..300 {
        let body = json!({ "name": format!("n/{index:03}"), "label": "x".repeat(4000) });
        assert_eq!(world.user().post("/v1/acquire", &body).await.status, 200);
    }
    world.sampled().await;
    let (mut names, mut pages, mut after) = (0, 0, String::new());
    loop {
        let answer = world.look().get(&format!("/v1/locks?limit=10000{after}")).await;
        assert!(answer.text.len() < 1_100_000, "{}", answer.text.len());
        let page = answer.json();
        names += page["locks"].as_array().expect("a list").len();
        pages += 1;
        let Some(next) = page["next"].as_str() else { break };
        after = format!("&after={next}");
    }
    assert_eq!((names, pages), (300, 2));
}

#[tokio::test]
async fn many_who_look_cost_one_listing() {
    let world = World::start().await;
    let samples = |page: &Value| page["sample"].as_u64().expect("a number");
    let first = samples(&world.look().get("/v1/locks").await.json());
    let mut readers = Vec::new();
    for _ in 0..10 {
        readers.push(Events::follow(&world.look(), "/v1/events").await);
    }
    let started = std::time::Instant::now();
    while started.elapsed() < Duration::from_secs(3) {
        world.look().get("/v1/locks").await;
        for reader in &mut readers {
            reader.until("sample").await;
        }
    }
    let taken = samples(&world.look().get("/v1/locks").await.json()) - first;
    let most = started.elapsed().as_secs() + 2;
    assert!((2..=most).contains(&taken), "{taken} samples, at most {most}");
    drop(readers);
}

#[tokio::test]
async fn a_token_that_is_revoked_hears_no_more() {
    let world = World::start().await;
    let mut events = Events::follow(&world.look(), "/v1/events").await;
    events.until("sample").await;
    std::fs::write(world.token_file(), "administer adminadminadminadmin ops\n").expect("written");
    while events.next().await.is_some() {}
}

#[tokio::test]
async fn a_stream_is_sent_in_small_pieces() {
    let world = World::start().await;
    for index in 0..150 {
        let body = json!({ "name": format!("n/{index:03}"), "label": "x".repeat(4000) });
        assert_eq!(world.user().post("/v1/acquire", &body).await.status, 200);
    }
    world.sampled().await;
    let mut events = Events::follow(&world.look(), "/v1/events").await;
    let (mut largest, mut locks) = (0, 0);
    loop {
        let line = timeout(LIMIT, events.lines.next_line()).await.expect("in time").expect("read");
        let line = line.expect("it goes on");
        // The sizes of chunks are lines of their own.
        largest = largest.max(usize::from_str_radix(line.trim(), 16).unwrap_or(0));
        locks += usize::from(line.starts_with("event: lock"));
        if line.starts_with("event: sample") {
            break;
        }
    }
    assert_eq!(locks, 150);
    assert!((1..48 * 1024).contains(&largest), "{largest}");
}
