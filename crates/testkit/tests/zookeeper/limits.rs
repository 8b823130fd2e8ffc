//! Servers with other limits than the URL says: shorter sessions, longer ticks.

use std::time::{Duration, Instant};

use lockkeeper_testkit::servers::ZooKeeperNode;

use crate::stage::{Stage, soon, until_renewed};

/// Long enough for a server to start on a busy machine: a session that has become shorter meanwhile must still live.
const SESSION: Duration = Duration::from_secs(30);
const SHORTER: Duration = Duration::from_secs(20);

/// How long a test watches that no deadline becomes later.
const WATCHED: Duration = Duration::from_secs(8);

/// Restarts a server with other settings.
fn restart_with(server: &ZooKeeperNode, settings: &[(&str, &str)]) {
    server.process().kill();
    for (setting, value) in settings {
        server.configure(setting, value).expect("written");
    }
    server.start_again().expect("started");
    server.until_ready().expect("ready");
}

/// A server is restarted and keeps sessions for less than before. A holder is told before anybody else holds the lock.
#[tokio::test(flavor = "multi_thread")]
async fn i3_a_session_that_became_shorter_on_reconnecting() {
    let stage = Stage::single(SESSION);
    let (proxy, keeper) = stage.proxied().await;
    let guard = keeper.mutex("stock").lock().await.expect("locked");
    restart_with(&stage.servers.nodes()[0], &[("maxSessionTimeout", "20000")]);
    until_renewed(&guard).await;
    // The guard shows the session length that the server granted, once it has been asked.
    soon(async {
        while guard.remaining() > SHORTER {
            assert!(guard.is_held(), "lost");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    let other = lockkeeper::connect(&stage.url().replace("session=30000", "session=20000")).await;
    let other = other.expect("connected");
    let next = tokio::spawn(async move {
        let guard = other.mutex("stock").lease(SHORTER).lock().await.expect("locked");
        (guard, Instant::now())
    });
    proxy.refuse(true);
    proxy.cut_all();
    soon(guard.lost()).await;
    let lost = Instant::now();
    let (next, entered) = soon(next).await.expect("no panic");
    assert!(lost < entered, "the next one entered {:?} before", lost - entered);
    next.release().await.expect("released");
}

/// One of three servers keeps sessions for less than the others. The session may move to it at any time, so it counts
/// from the start.
#[tokio::test(flavor = "multi_thread")]
async fn i3_the_server_with_the_shortest_sessions_counts() {
    let stage = Stage::ensemble(SESSION);
    let servers = stage.servers.nodes();
    restart_with(&servers[1], &[("maxSessionTimeout", "20000")]);
    let keeper = stage.keeper().await;
    let guard = keeper.mutex("stock").lock().await.expect("locked");
    soon(async {
        while guard.remaining() > SHORTER {
            assert!(guard.is_held(), "lost");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    let started = Instant::now();
    while started.elapsed() < WATCHED {
        assert!(guard.is_held() && guard.remaining() <= SHORTER, "{:?}", guard.remaining());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    guard.release().await.expect("released");
    keeper.close().await;
}

/// Ticks are ten times as long as the URL says, which shows in how short a session can be.
#[tokio::test(flavor = "multi_thread")]
async fn i3_longer_ticks_are_allowed_for() {
    // Short enough that its signs of life are less than a tick apart.
    let (session, tick) = (Duration::from_secs(10), Duration::from_secs(2));
    let stage = Stage::single(session);
    restart_with(&stage.servers.nodes()[0], &[("tickTime", "2000"), ("minSessionTimeout", "-1")]);
    let keeper = stage.keeper().await;
    let guard = keeper.mutex("stock").lock().await.expect("locked");
    // At first the deadline comes from the answer that opened the session, which needs the leader.
    let opened = Instant::now() + session;
    let started = Instant::now();
    while started.elapsed() < WATCHED {
        let now = Instant::now();
        let (ends, heard) = (now + guard.remaining(), now - tick + session);
        assert!(
            guard.is_held() && ends <= heard.max(opened),
            "{:?} after {:?}",
            guard.remaining(),
            started.elapsed()
        );
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    guard.release().await.expect("released");
    keeper.close().await;
}

/// The session moves to an unknown server, which keeps it for less, and the connection is cut right after that. A holder
/// that was told a later end learns the earlier one at once, and not only by the next renewal.
#[tokio::test(flavor = "multi_thread")]
async fn i3_a_session_that_moves_and_is_cut_right_after() {
    let (session, shorter) = (Duration::from_secs(10), Duration::from_secs(5));
    let stage = Stage::ensemble(session);
    let servers = stage.servers.nodes();
    restart_with(&servers[1], &[("maxSessionTimeout", "5000")]);
    let (proxy, keeper) = stage.proxied().await;
    let (other_proxy, other) = stage.patiently_proxied().await;
    let guard = keeper.mutex("stock").lock().await.expect("locked");
    assert!(guard.remaining() > shorter, "the first renewal comes after a third of this");
    let next = {
        let other = other.clone();
        tokio::spawn(async move {
            let guard = other.mutex("stock").lock().await.expect("locked");
            (guard, Instant::now())
        })
    };
    proxy.lead_to(servers[1].address());
    proxy.cut_all();
    let told = async {
        while guard.remaining() > shorter {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    // Well before the first renewal.
    drop(tokio::time::timeout(session / 5, told).await);
    proxy.refuse(true);
    proxy.cut_all();
    soon(guard.lost()).await;
    let lost = Instant::now();
    let (next, entered) = soon(next).await.expect("no panic");
    assert!(lost < entered, "the next one entered {:?} before", lost - entered);
    next.release().await.expect("released");
    other.close().await;
    drop(other_proxy);
}

/// Sessions shorter than two ticks would end again and again, however good the connection is. Connecting says so.
#[tokio::test(flavor = "multi_thread")]
async fn servers_that_keep_no_session_long_enough_are_refused() {
    let stage = Stage::single(SESSION);
    restart_with(&stage.servers.nodes()[0], &[("maxSessionTimeout", "2000")]);
    let error = lockkeeper::connect(&stage.servers.url()).await.expect_err("too short");
    let text = error.to_string();
    assert!(text.contains("2s") && text.contains("maxSessionTimeout") && text.contains("tick="), "{text}");
    // With the ticks that they have it is long enough.
    let keeper =
        lockkeeper::connect(&format!("{}?tick=200ms", stage.servers.url())).await.expect("connected");
    let guard = keeper.mutex("stock").lock().await.expect("locked");
    let started = Instant::now();
    while started.elapsed() < WATCHED {
        assert!(guard.is_held(), "lost after {:?}", started.elapsed());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    guard.release().await.expect("released");
    keeper.close().await;
}
