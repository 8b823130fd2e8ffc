//! The nodes of a cluster that a keeper believes, nodes that are gone, and subscriptions that come and go.

use std::sync::Arc;

use lockkeeper_core::{
    KeeperId, Name,
    clock::Clock,
    store::{Context, Store, Topic, Wake, WakeSink},
};
use lockkeeper_testkit::{
    proxy::Proxy,
    servers::{Redis, RedisCluster, StandIn},
};
use tokio::{
    sync::mpsc,
    time::{sleep, timeout},
};

use crate::{NAME, connect, millis, secs};

/// A node that was removed or cut off goes on with its old view of the slots.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_with_an_old_view_is_not_believed() {
    let cluster = RedisCluster::start().expect("started");
    let gone = Redis::start().expect("started").address();
    let removed = StandIn::start(cluster.servers()[0].address(), move |request| {
        let bulk = |text: &str| format!("${}\r\n{text}\r\n", text.len());
        match request.iter().map(String::as_str).collect::<Vec<_>>()[..] {
            ["CLUSTER", "SLOTS"] => {
                let node = format!("*3\r\n{}:{}\r\n{}", bulk("127.0.0.1"), gone.port(), bulk("id"));
                Some(format!("*1\r\n*3\r\n:0\r\n:16383\r\n{node}"))
            }
            ["CLUSTER", "INFO"] => Some(bulk("cluster_state:ok\r\ncluster_current_epoch:1\r\n")),
            _ => None,
        }
    });
    let removed = removed.expect("started");
    let url = cluster.url().replace("redis+cluster://", &format!("redis+cluster://{},", removed.address()));
    let keeper = connect(&url).await;
    for number in 0..10 {
        let name = format!("lock/{number}");
        keeper.mutex(&name).try_lock().await.expect("served").expect("free").release().await.expect("held");
    }
    keeper.close().await;
}

/// A master that became a replica keeps no slot: all connections to it end, with that of its listener.
#[tokio::test(flavor = "multi_thread")]
async fn connections_to_a_server_without_slots_end() {
    let cluster = RedisCluster::start().expect("started");
    let proxies = cluster.behind_proxies().expect("started");
    let slot = cluster.slot_of(&format!("{{{NAME}}}")).expect("asked");
    let old = cluster.master_of(slot).expect("served");
    let (ours, theirs) = (connect(&cluster.url()).await, connect(&cluster.url()).await);
    let held = theirs.mutex(NAME).lock().await.expect("free");
    let mutex = ours.mutex(NAME);
    let waiting = tokio::spawn(async move { mutex.lock().await });
    while theirs.inspect(NAME).await.expect("reachable").is_none_or(|view| view.waiters.is_empty()) {
        sleep(millis(5)).await;
    }
    cluster.promote(slot, false).expect("promoted");
    held.release().await.expect("held");
    let guard = timeout(secs(20), waiting).await.expect("in time").expect("no panic").expect("granted");
    guard.release().await.expect("held");
    for keeper in [&ours, &theirs] {
        keeper.mutex(NAME).lock().await.expect("free").release().await.expect("held");
    }
    let left = timeout(secs(20), async {
        while proxies[old].open() > 0 {
            sleep(millis(20)).await;
        }
    });
    left.await.unwrap_or_else(|_| panic!("{} connections stay", proxies[old].open()));
    // No client connects again.
    let accepted = proxies[old].accepted();
    sleep(secs(1)).await;
    assert_eq!(proxies[old].accepted(), accepted);
    ours.close().await;
    theirs.close().await;
}

/// A store as a keeper has it, and its wakes.
async fn store(url: &str) -> (Arc<dyn Store>, mpsc::UnboundedReceiver<Wake>) {
    let (sender, wakes) = mpsc::unbounded_channel();
    let context = Context {
        keeper: KeeperId::random(),
        wakes: WakeSink::new(move |wake| drop(sender.send(wake))),
        background: tokio::runtime::Handle::current(),
        clock: Clock::boot(),
        request_limit: secs(5),
    };
    let connector = lockkeeper::url::connector(url).expect("a good URL");
    (connector.connect(context).await.expect("connected"), wakes)
}

fn latch() -> Topic {
    Topic::Latch(Name::new(NAME).expect("a good name"))
}

/// A topic is subscribed to again: before the last subscription ends at the server, and while it does.
#[tokio::test(flavor = "multi_thread")]
async fn a_subscription_made_while_the_last_one_ends_stays() {
    let cluster = RedisCluster::start().expect("started");
    let proxies = cluster.behind_proxies().expect("started");
    let slot = cluster.slot_of(&format!("{{{NAME}}}")).expect("asked");
    let master = cluster.master_of(slot).expect("served");
    let proxy = &proxies[master];
    let (store, mut wakes) = store(&cluster.url()).await;
    let first = store.watch(&latch()).await.expect("up");
    // Opens all connections.
    store.inspect(&Name::new(NAME).expect("a good name")).await.expect("up");
    proxy.delay(millis(50));
    let connections = proxy.accepted();
    drop(first);
    // The request to unsubscribe was sent, and its answer is in flight.
    sleep(millis(60)).await;
    let second = store.watch(&latch()).await.expect("up");
    proxy.delay(millis(0));
    let third = store.watch(&latch()).await.expect("up");
    drop(second);
    // Long enough for the subscription to end by mistake.
    sleep(millis(300)).await;
    assert_eq!(proxy.accepted(), connections, "it was taken for lost, and connected anew");
    assert!(wakes.try_recv().is_err(), "nothing was missed");
    let channel = format!("lockkeeper:{{{NAME}}}:latch:changed");
    let count = cluster.servers()[master].command(["PUBSUB", "SHARDNUMSUB", &channel]).expect("asked");
    assert_eq!(count.lines().last(), Some("1"), "{count}");
    drop(third);
    store.close().await;
}

/// After a subscription that came late, a resync makes up for lost messages.
#[tokio::test(flavor = "multi_thread")]
async fn a_late_subscription_causes_a_resync() {
    let redis = Redis::start().expect("started");
    let proxy = Proxy::start(redis.address()).expect("started");
    let (store, mut wakes) = store(&format!("redis://{}/", proxy.address())).await;
    proxy.pause(true);
    let watch = store.watch(&latch()).await.expect("only late");
    assert!(wakes.try_recv().is_err(), "not yet");
    proxy.pause(false);
    let wake = timeout(secs(5), wakes.recv()).await.expect("told");
    assert!(matches!(wake, Some(Wake::Resync)), "{wake:?}");
    drop(watch);
    store.close().await;
}
