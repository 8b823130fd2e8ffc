//! Sessions: suspended, ended, replaced; and the leases that have one of their own.

use std::time::Duration;

use lockkeeper::{Lost, error::StoreErrorKind};
use lockkeeper_testkit::proxy::Proxy;
use zookeeper_client::Client;

use crate::{
    relay::Relay,
    stage::{LONG, Stage, nodes, soon, until_nodes, until_renewed},
};

const SESSION: Duration = Duration::from_secs(3);

/// A connection that is cut for less than the session lasts costs nothing but time.
#[tokio::test(flavor = "multi_thread")]
async fn suspended_is_not_expired() {
    // The client tries again ever more rarely, and a busy machine adds to that.
    let stage = Stage::single(2 * SESSION);
    let (proxy, keeper) = stage.proxied().await;
    let client = stage.client().await;
    let guard = keeper.mutex("stock").lock().await.expect("locked");
    let before = client.list_children("/lockkeeper/locks/stock").await.expect("listed");
    for _ in 0..3 {
        proxy.refuse(true);
        proxy.cut_all();
        tokio::time::sleep(SESSION / 4).await;
        assert!(guard.is_held(), "lost while suspended");
        proxy.refuse(false);
        until_renewed(&guard).await;
    }
    assert_eq!(
        client.list_children("/lockkeeper/locks/stock").await.expect("listed"),
        before,
        "the same node"
    );
    soon(guard.release()).await.expect("still held");
    keeper.close().await;
}

/// The address in the URL leads to another server of the ensemble from now on, and the first server is gone. The session
/// moves along with all its holds and waiters.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_moves_behind_its_address() {
    // Longer than an election takes on a busy machine.
    let stage = Stage::ensemble(Duration::from_secs(10));
    let (proxy, keeper) = stage.proxied().await;
    let servers = stage.servers.nodes();
    let guard = keeper.mutex("stock").lock().await.expect("locked");
    let other = lockkeeper::connect(&stage.url()).await.expect("connected");
    let token = guard.token();
    let waiter = tokio::spawn(async move {
        let guard = other.mutex("stock").lock().await.expect("served");
        let token = guard.token();
        guard.release().await.expect("released");
        other.close().await;
        token
    });
    proxy.lead_to(servers[1].address());
    servers[0].process().kill();
    until_renewed(&guard).await;
    assert!(!waiter.is_finished());
    soon(guard.release()).await.expect("still held");
    assert!(soon(waiter).await.expect("no panic") > token);
    // And back, to a server that has been away.
    servers[0].start_again().expect("started");
    servers[0].until_ready().expect("ready");
    proxy.lead_to(servers[0].address());
    servers[1].process().kill();
    let guard = soon(keeper.mutex("stock").lock()).await.expect("locked");
    assert!(guard.token() > token);
    soon(guard.release()).await.expect("released");
    keeper.close().await;
}

/// One of three servers accepts connections and says nothing. A keeper that tries it first turns to another.
#[tokio::test(flavor = "multi_thread")]
async fn a_silent_server_keeps_nobody_out() {
    let stage = Stage::ensemble(Duration::from_secs(10));
    // This makes the namespace. An election would be another matter.
    stage.keeper().await.close().await;
    let follower = stage.servers.nodes().iter().find(|server| server.mode().as_deref() == Some("follower"));
    let follower = follower.expect("two of them");
    follower.process().pause();
    let mut keepers = tokio::task::JoinSet::new();
    for _ in 0..8 {
        let url = stage.url();
        keepers.spawn(async move {
            let keeper = lockkeeper::connect(&url).await.expect("connected");
            soon(keeper.mutex("stock").lock()).await.expect("locked").release().await.expect("released");
            keeper.close().await;
        });
    }
    while let Some(served) = keepers.join_next().await {
        served.expect("served");
    }
    follower.process().resume();
}

/// As above for a lease with a session of its own: the client soon turns away from a silent server, and until then that
/// server holds up neither the claims nor the leaves of its keeper for long.
#[tokio::test(flavor = "multi_thread")]
async fn a_silent_server_does_not_hold_up_the_claims_of_a_keeper() {
    let stage = Stage::single(Duration::from_secs(20));
    let (one, two) = (stage.address(), Proxy::start(stage.address()).expect("started"));
    // Connections to it are accepted by the kernel.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").expect("bound");
    let silent = silent.local_addr().expect("an address");
    let url = format!("zookeeper://{one},{},{silent}?session=20s&tick=200ms", two.address());
    let keeper = lockkeeper::builder(&url).expect("a good URL").request_limit(LONG).connect().await;
    let keeper = keeper.expect("connected");
    let mutex = keeper.mutex("stock");
    mutex.lock().await.expect("locked").release().await.expect("released");
    let mut longest = Duration::ZERO;
    for nth in 0..8 {
        let lonely = keeper.mutex(&format!("lonely/{nth}")).lease(Duration::from_secs(50)).detachable();
        let asking = tokio::spawn(async move { lonely.lock().await.expect("locked").release().await });
        while !asking.is_finished() {
            let started = tokio::time::Instant::now();
            soon(mutex.lock()).await.expect("locked").release().await.expect("released");
            longest = longest.max(started.elapsed());
        }
        soon(asking).await.expect("no panic").expect("released");
    }
    // The client waits 20 s for an answer to a session as long as that lease.
    assert!(longest < Duration::from_secs(10), "held up for {longest:?}");
    keeper.close().await;
}

/// A keeper that closes leaves its session and opens no other.
#[tokio::test(flavor = "multi_thread")]
async fn a_keeper_that_closes_opens_no_session() {
    let session = Duration::from_secs(20);
    let stage = Stage::single(session);
    for _ in 0..5 {
        let relay = Relay::start(stage.address(), false);
        let url = format!("zookeeper://{}?session=20s&tick=200ms", relay.address());
        let keeper = lockkeeper::connect(&url).await.expect("connected");
        keeper.mutex("stock").lock().await.expect("locked").release().await.expect("released");
        keeper.close().await;
        // Sessions that were asked for before this are counted by then.
        drop(Client::connect(&relay.address().to_string()).await.expect("connected"));
        assert_eq!(relay.sessions_of(session), 1);
    }
}

/// A session that ended is replaced: old guards stay lost, waiters go on, locks can be taken again.
#[tokio::test(flavor = "multi_thread")]
async fn a_keeper_goes_on_in_a_new_session() {
    let stage = Stage::single(SESSION);
    let (proxy, keeper) = stage.proxied().await;
    let (client, other) = (stage.client().await, stage.keeper().await);
    let guard = keeper.mutex("mine").lock().await.expect("locked");
    let theirs = other.mutex("theirs").lock().await.expect("locked");
    let waiter = {
        let keeper = keeper.clone();
        tokio::spawn(async move { keeper.mutex("theirs").lock().await })
    };
    until_nodes(&client, "theirs", 2).await;
    proxy.refuse(true);
    proxy.cut_all();
    assert_eq!(soon(guard.lost()).await, Lost::Expired);
    until_nodes(&client, "mine", 0).await;
    proxy.refuse(false);
    // The waiter is in the queue again, behind the same holder.
    until_nodes(&client, "theirs", 2).await;
    assert!(!guard.is_held() && !waiter.is_finished());
    let again = soon(keeper.mutex("mine").lock()).await.expect("locked");
    assert!(again.token() > guard.token() && !guard.is_held());
    theirs.release().await.expect("released");
    soon(waiter).await.expect("no panic").expect("served").release().await.expect("released");
    drop(guard);
    again.release().await.expect("released");
    until_nodes(&client, "mine", 0).await;
    keeper.close().await;
    other.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_detached_lease_longer_than_the_servers_allow_names_the_longest() {
    let stage = Stage::single(SESSION);
    let keeper = stage.keeper().await;
    let long = Duration::from_secs(3600);
    let error = keeper.mutex("stock").lease(long).detachable().lock().await.expect_err("too long");
    assert!(error.to_string().contains("60s") && error.to_string().contains("maxSessionTimeout"), "{error}");
    let lockkeeper::AcquireError::Store(error) = error else { panic!("{error}") };
    assert_eq!(error.kind(), StoreErrorKind::Unsupported);
    // A lease that ends with its process may be of any length.
    keeper.mutex("stock").lease(long).lock().await.expect("locked").release().await.expect("released");
    keeper.close().await;
}

/// A take-over replaces the node of a lease, so its watcher hears that it was removed. The waiter lists the queue, finds
/// the new node, and goes on waiting.
#[tokio::test(flavor = "multi_thread")]
async fn i2_a_take_over_lets_nobody_in() {
    let stage = Stage::single(Duration::from_secs(20));
    let (owner, adopter, other) = (stage.patient().await, stage.patient().await, stage.patient().await);
    let client = stage.client().await;
    let mutex = owner.mutex("stock").lease(Duration::from_secs(40)).detachable();
    let mut lease = mutex.lock().await.expect("locked").into_lease().await.expect("detached");
    let node = nodes(&client, "stock").await.pop().expect("one");
    let waiting = tokio::spawn(async move { other.mutex("stock").lock().await });
    let watched = async || {
        let watches = || stage.servers.nodes()[0].ask("wchp").expect("asked");
        while !watches().contains(&format!("/stock/{node}")) {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    soon(watched()).await;
    for _ in 0..5 {
        // When this is answered, the servers have notified all watchers and removed their watches.
        let guard = adopter.adopt(&lease).await.expect("adopted");
        soon(watched()).await;
        assert!(!waiting.is_finished() && guard.is_held());
        lease = guard.into_lease().await.expect("detached");
        soon(watched()).await;
    }
    let guard = adopter.adopt(&lease).await.expect("adopted");
    guard.release().await.expect("released");
    soon(waiting).await.expect("no panic").expect("locked").release().await.expect("released");
    adopter.close().await;
    owner.close().await;
}

/// A keeper closes before the minimum hold is over. The servers end the hold by themselves, and in time.
#[tokio::test(flavor = "multi_thread")]
async fn a_minimum_hold_ends_in_time_without_its_process() {
    let stage = Stage::single(SESSION);
    let (keeper, client) = (stage.keeper().await, stage.client().await);
    let least = Duration::from_secs(5);
    let guard =
        keeper.mutex("stock").lease(Duration::from_secs(40)).min_hold(least).lock().await.expect("locked");
    let locked = tokio::time::Instant::now();
    guard.release().await.expect("released");
    keeper.close().await;
    until_nodes(&client, "stock", 0).await;
    let kept = locked.elapsed();
    // Not 40 seconds, for which its first session would have lasted.
    assert!(kept >= least && kept < least + Duration::from_secs(5), "kept for {kept:?}");
}

/// However many locks a keeper holds and waits for, a cut connection costs it nothing: it holds them as before, and all
/// waiters are served, also those beyond the watch budget.
#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_holds_and_waits_outlive_a_cut() {
    const MANY: usize = 1200;
    let stage = Stage::single(Duration::from_secs(10));
    let ((proxy, holder), (other_proxy, waiter)) = (stage.proxied().await, stage.proxied().await);
    let client = stage.client().await;
    let name = |nth: usize| format!("a-lock-with-a-name-that-is-long-but-not-as-long-as-it-may-be-{nth}");
    let mut locks = tokio::task::JoinSet::new();
    for mutex in (0..MANY).map(|nth| holder.mutex(&name(nth))) {
        locks.spawn(async move { mutex.lock().await.expect("locked") });
    }
    let held = locks.join_all().await;
    let mut waits = tokio::task::JoinSet::new();
    for mutex in (0..MANY).map(|nth| waiter.mutex(&name(nth))) {
        waits.spawn(async move { mutex.lock().await.expect("served").token() });
    }
    for nth in 0..MANY {
        until_nodes(&client, &name(nth), 2).await;
    }
    let mut numbers = Vec::new();
    for nth in 0..MANY {
        let mut made = Vec::new();
        for node in nodes(&client, &name(nth)).await {
            let stat = client.check_stat(&format!("/lockkeeper/locks/{}/{node}", name(nth))).await;
            made.push(stat.expect("asked").expect("there").czxid);
        }
        numbers.extend(made.into_iter().max());
    }
    let connected = other_proxy.accepted();
    proxy.cut_all();
    other_proxy.cut_all();
    until_renewed(&held[0]).await;
    assert_eq!(held.iter().filter(|guard| guard.is_held()).count(), MANY);
    holder.close().await;
    let mut served: Vec<i64> =
        soon(waits.join_all()).await.iter().map(|token| token.as_i64() / 1024).collect();
    served.sort_unstable();
    numbers.sort_unstable();
    assert!(served == numbers, "somebody lost its position");
    // After each cut, two to four more connections ask for the server's limits.
    let again = other_proxy.accepted() - connected;
    assert!(
        (1..6).contains(&again),
        "connected again once, and for good, but there were {again} connections"
    );
    waiter.close().await;
}

/// A server stands still for longer than a latch operation may take. The copies of the operation, which all arrive at once
/// when it goes on, and the operation that replaces them, count once.
#[tokio::test(flavor = "multi_thread")]
async fn i13_a_latch_counts_once_across_a_stall() {
    let stage = Stage::single(Duration::from_secs(60));
    let keeper = stage.keeper().await;
    let latch = keeper.latch("gate");
    latch.create(10).await.expect("created");
    let server = &stage.servers.nodes()[0];
    for done in 1..=2 {
        server.process().pause();
        let counting = {
            let latch = latch.clone();
            tokio::spawn(async move { latch.count_down().await })
        };
        // Longer than the engine sends copies of one operation.
        tokio::time::sleep(Duration::from_secs(8)).await;
        server.process().resume();
        soon(counting).await.expect("no panic").expect("counted");
        // All requests in flight have arrived by then.
        tokio::time::sleep(Duration::from_secs(1)).await;
        let state = latch.state().await.expect("read").expect("there");
        assert_eq!(state.remaining, 10 - done);
    }
    keeper.close().await;
}

/// One lease has a session of its own, whose server falls silent. The locks of the keeper's session are renewed all the
/// same, in every group.
#[tokio::test(flavor = "multi_thread")]
async fn i3_a_silent_session_costs_no_other_lock() {
    let stage = Stage::ensemble(Duration::from_secs(10));
    let servers = stage.servers.nodes();
    let (proxy, keeper) = stage.proxied().await;
    let other = servers[1..].iter().find(|server| server.mode().as_deref() == Some("follower")).expect("one");
    proxy.lead_to(other.address());
    let lonely =
        keeper.mutex("lonely").lease(Duration::from_secs(30)).detachable().lock().await.expect("free");
    proxy.lead_to(servers[0].address());
    let mut guards = Vec::new();
    for nth in 0..60 {
        guards.push(keeper.mutex(&format!("held/{nth}")).lock().await.expect("free"));
        // Spreads them, so that some of them are due at any time.
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    // It is renewed for the first time after ten seconds; its client takes twelve to give the connection up.
    tokio::time::sleep(Duration::from_secs(5)).await;
    other.process().pause();
    let (paused, mut least) = (std::time::Instant::now(), Duration::MAX);
    while paused.elapsed() < Duration::from_secs(12) {
        least = guards.iter().map(|guard| guard.remaining()).fold(least, Duration::min);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    other.process().resume();
    // They are renewed when two thirds of the session's time are left. After one failed renewal it would be less.
    assert!(least > Duration::from_secs(3), "{least:?}");
    drop(lonely);
    keeper.close().await;
}

/// A waiter has a session of its own, for a long lease, and its server falls silent. It turns to another server as soon as
/// any other session would, and hears of its grant.
#[tokio::test(flavor = "multi_thread")]
async fn a_long_lease_does_not_wait_long_on_a_silent_server() {
    let stage = Stage::ensemble(Duration::from_secs(10));
    let servers = stage.servers.nodes();
    let (proxy, keeper) = stage.patiently_proxied().await;
    let (holder_proxy, holder) = stage.patiently_proxied().await;
    let client = stage.client().await;
    let held = holder.mutex("stock").lock().await.expect("locked");
    let other = servers[1..].iter().find(|server| server.mode().as_deref() == Some("follower")).expect("one");
    proxy.lead_to(other.address());
    let mutex = keeper.mutex("stock").lease(Duration::from_secs(55)).detachable();
    let waiting = tokio::spawn(async move { mutex.lock().await.expect("locked") });
    until_nodes(&client, "stock", 2).await;
    proxy.lead_to(servers[0].address());
    other.process().pause();
    held.release().await.expect("released");
    // Without a limit of its own the client takes 22 seconds.
    let guard = tokio::time::timeout(Duration::from_secs(15), waiting).await;
    other.process().resume();
    guard.expect("in time").expect("no panic").release().await.expect("released");
    keeper.close().await;
    holder.close().await;
    drop(holder_proxy);
}
