//! Servers that are others than the URL says, that use other words for errors, or that forget scripts.

use std::{
    collections::HashSet,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

use lockkeeper_testkit::servers::{Redis, RedisCluster, RedisOptions, StandIn};

use crate::{NAME, connect};

/// The first request fails with an error that says which URL to use.
#[tokio::test(flavor = "multi_thread")]
async fn a_url_that_names_a_node_as_a_single_server_gets_an_error_that_says_so() {
    let cluster = RedisCluster::start().expect("started");
    for server in cluster.servers() {
        let error = match lockkeeper::connect(&server.url()).await {
            Err(error) => error.to_string(),
            Ok(keeper) => keeper.mutex(NAME).try_lock().await.expect_err("no single server").to_string(),
        };
        println!("{error}");
        assert!(error.contains("redis+cluster://"), "{error}");
    }
}

/// Old servers and proxies have various errors for a command that they do not know.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_without_hello_is_recognised_in_any_words() {
    let redis = Redis::start().expect("started");
    for words in [
        "-ERR unknown command `HELLO`, with args beginning with: `3`, ",
        "-ERR unknown command 'HELLO'",
        "-ERR unsupported command",
        "-ERR invalid request",
        "-ERR handle request, command 'HELLO' is not allowed",
        "-ERR command is not supported: HELLO",
        "-NOPROTO unsupported protocol version",
    ] {
        let proxy = StandIn::start(redis.address(), move |request| {
            (request[0].eq_ignore_ascii_case("HELLO")).then(|| format!("{words}\r\n"))
        });
        let proxy = proxy.expect("started");
        let url = format!("redis://{}/", proxy.address());
        let error = lockkeeper::connect(&url).await.expect_err("it speaks no RESP3").to_string();
        assert!(error.contains("protocol=resp2"), "{words}: {error}");
        let keeper = connect(&format!("{url}?protocol=resp2")).await;
        keeper.mutex(NAME).try_lock().await.expect("up").expect("free").release().await.expect("held");
        keeper.close().await;
    }
}

/// Some proxies close the connection without an answer.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_hangs_up_at_the_greeting_is_told_from_one_that_is_down() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("a port");
    let hang_up = tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            // Not before it has received something, or connecting itself would fail.
            client.readable().await.expect("open");
            drop(client);
        }
    });
    let error = lockkeeper::connect(&format!("redis://{address}/")).await.expect_err("no server").to_string();
    assert!(error.contains("protocol=resp2") && error.contains("rediss://"), "{error}");
    hang_up.abort();
}

/// The servers do not know their own names, so a redirection has no host: it means the host that was asked.
#[tokio::test(flavor = "multi_thread")]
async fn a_redirection_without_a_host_is_followed() {
    let options = RedisOptions::default().setting("cluster-preferred-endpoint-type unknown-endpoint");
    let cluster = RedisCluster::start_with(&options).expect("started");
    let keeper = connect(&cluster.url()).await;
    let slot = cluster.slot_of(&format!("{{{NAME}}}")).expect("asked");
    let guard = keeper.mutex(NAME).lock().await.expect("free");
    let from = cluster.master_of(slot).expect("served");
    let told = cluster.servers()[(from + 1) % 3].command(["GET", &format!("lockkeeper:{{{NAME}}}")]);
    let port = cluster.servers()[from].address().port();
    let told = told.expect_err("sent on").to_string();
    assert!(told.contains(&format!(" :{port}")), "a server that names no host: {told}");
    cluster.move_slot(slot, (from + 1) % 3).expect("moved");
    assert!(keeper.mutex(NAME).try_lock().await.expect("followed").is_none(), "it is held");
    guard.release().await.expect("held");
    keeper.close().await;
}

/// Redis 7.4 forgets scripts that came with `EVAL` when there are many of them, and never those that were loaded. It
/// cannot be had here, so a stand-in in front of an older server forgets each script that came with `EVAL` at once.
#[tokio::test(flavor = "multi_thread")]
async fn scripts_are_loaded_so_that_a_server_keeps_them() {
    let redis = Redis::start().expect("started");
    let forgotten = Arc::new(AtomicUsize::new(0));
    let loaded = Arc::new(Mutex::new(HashSet::new()));
    let (count, known) = (forgotten.clone(), loaded.clone());
    let server = redis.address();
    let digest = move |text: &str| {
        // The server itself answers it; the script is the same.
        let script = ["SCRIPT", "LOAD", text];
        redis.command(script).expect("loaded")
    };
    let forgetful = StandIn::start(server, move |request| {
        let word = |at: usize| request.get(at).map(|word| word.to_ascii_uppercase()).unwrap_or_default();
        if word(0) == "SCRIPT" && word(1) == "LOAD" {
            known.lock().expect("no panic").insert(digest(&request[2]));
        }
        if word(0) == "EVALSHA" && !known.lock().expect("no panic").contains(&request[1]) {
            count.fetch_add(1, Ordering::Relaxed);
            return Some("-NOSCRIPT No matching script. Please use EVAL.\r\n".to_owned());
        }
        None
    });
    let forgetful = forgetful.expect("started");
    let keeper = connect(&format!("redis://{}/", forgetful.address())).await;
    for _ in 0..20 {
        keeper.mutex(NAME).lock().await.expect("free").release().await.expect("held");
    }
    let met = forgotten.load(Ordering::Relaxed);
    assert!((1..=4).contains(&met), "sent anew {met} times in 20 rounds");
    keeper.close().await;
}
