//! How many requests locks and waiters cost, as the server counts them.

use std::time::Duration;

use lockkeeper_testkit::servers::ZooKeeperNode;
use zookeeper_client::{Acl, AuthId, Permission};

use crate::stage::{Stage, soon, until_nodes};

const SESSION: Duration = Duration::from_secs(8);

/// How many requests the server has had so far.
fn received(server: &ZooKeeperNode) -> u64 {
    let answer = server.ask("srvr").expect("asked");
    let count = answer.lines().find_map(|line| line.strip_prefix("Received: "));
    count.and_then(|count| count.trim().parse().ok()).expect("counted")
}

/// How many watches the server has.
fn watches(server: &ZooKeeperNode) -> u64 {
    let answer = server.ask("mntr").expect("asked");
    let count = answer.lines().find_map(|line| line.strip_prefix("zk_watch_count"));
    count.and_then(|count| count.trim().parse().ok()).expect("counted")
}

/// How many signs of life and pings `keepers` send in `time`, at most: eight and seven per session timeout, and some when
/// they connect.
fn pings(keepers: u64, time: Duration) -> u64 {
    keepers * (10 + 20 * time.as_millis() as u64 / SESSION.as_millis() as u64)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_free_lock_costs_three_requests() {
    let stage = Stage::single(SESSION);
    let keeper = stage.keeper().await;
    let mutex = keeper.mutex("stock");
    mutex.lock().await.expect("locked").release().await.expect("released");
    let server = &stage.servers.nodes()[0];
    let (before, started) = (received(server), std::time::Instant::now());
    // Many, since the reaper runs all the while, and must not send requests for claims that are being released.
    for _ in 0..3000 {
        mutex.lock().await.expect("locked").release().await.expect("released");
    }
    let cost = received(server) - before;
    assert!(cost <= 3 * 3000 + pings(1, started.elapsed()), "{cost} requests for 3000 locks");
    keeper.close().await;
}

/// The release and the next claim are one transaction, whose answer says that no other claim arrived.
#[tokio::test]
async fn a_lock_that_is_dropped_and_taken_again_costs_one_request() {
    let stage = Stage::single(SESSION);
    let keeper = stage.keeper().await;
    let mutex = keeper.mutex("stock");
    let mut guard = mutex.lock().await.expect("locked");
    let server = &stage.servers.nodes()[0];
    let (before, started) = (received(server), std::time::Instant::now());
    for _ in 0..1000 {
        let token = guard.token();
        drop(guard);
        guard = mutex.lock().await.expect("locked");
        assert!(guard.token() > token);
    }
    let cost = received(server) - before;
    assert!(cost <= 1000 + pings(1, started.elapsed()), "{cost} requests for 1000 locks");
    keeper.close().await;
}

/// A claim that follows a release in the same transaction knows the queue from before. It has to watch one node, and to
/// list the queue when its turn comes.
#[tokio::test]
async fn a_lock_that_goes_round_costs_three_requests() {
    const KEEPERS: usize = 4;
    const TURNS: usize = 200;
    let stage = Stage::single(SESSION);
    let server = &stage.servers.nodes()[0];
    let (mut keepers, mut tasks) = (Vec::new(), tokio::task::JoinSet::new());
    for _ in 0..KEEPERS {
        keepers.push(stage.keeper().await);
    }
    let (before, started) = (received(server), std::time::Instant::now());
    for keeper in &keepers {
        let mutex = keeper.mutex("stock");
        tasks.spawn(async move {
            for _ in 0..TURNS {
                drop(mutex.lock().await.expect("locked"));
            }
        });
    }
    soon(tasks.join_all()).await;
    let cost = received(server) - before;
    let most = (3 * KEEPERS * TURNS + 100) as u64 + pings(KEEPERS as u64, started.elapsed());
    assert!(cost <= most, "{cost} requests for {} turns", KEEPERS * TURNS);
    for keeper in keepers {
        keeper.close().await;
    }
}

/// Waiting costs nothing but the signs of life of the session, however many wait. Then they are served in order, each at
/// the cost of its own turn.
#[tokio::test(flavor = "multi_thread")]
async fn a_hundred_waiters_cost_nothing_and_are_served_in_order() {
    let stage = Stage::single(SESSION);
    let (holder, keeper, client) = (stage.keeper().await, stage.keeper().await, stage.client().await);
    let guard = holder.mutex("stock").lock().await.expect("locked");
    let (order, mut served) = tokio::sync::mpsc::unbounded_channel();
    for position in 0..100_usize {
        let (mutex, order) = (keeper.mutex("stock").fifo(), order.clone());
        tokio::spawn(async move {
            let guard = mutex.lock().await.expect("locked");
            order.send(position).expect("heard");
            guard.release().await.expect("released");
        });
        until_nodes(&client, "stock", position + 2).await;
    }
    // Each waiter watches the one before it by now, or will within a moment, and itself after a second.
    let server = &stage.servers.nodes()[0];
    let (settling, mut before) = (Duration::from_millis(1500), received(server));
    loop {
        tokio::time::sleep(settling).await;
        let now = received(server);
        if now - before <= pings(3, settling) {
            break;
        }
        before = now;
    }
    let (before, started) = (received(server), std::time::Instant::now());
    tokio::time::sleep(Duration::from_secs(4)).await;
    let cost = received(server) - before;
    assert!(cost <= pings(3, started.elapsed()), "{cost} requests while 100 waited for 4 s");
    let (before, started) = (received(server), std::time::Instant::now());
    guard.release().await.expect("released");
    for position in 0..100 {
        assert_eq!(soon(served.recv()).await, Some(position));
    }
    let cost = received(server) - before;
    // Each lists the queue, ends the watch of its own node, and leaves; nobody else is woken.
    assert!(cost <= 100 * 3 + pings(3, started.elapsed()), "{cost} requests for 100 turns");
    keeper.close().await;
    holder.close().await;
}

/// Locks that are only held cost one request per renewal for some hundred of them, beside the signs of life.
#[tokio::test(flavor = "multi_thread")]
async fn hundreds_of_held_locks_cost_a_few_requests() {
    let stage = Stage::single(SESSION);
    let keeper = stage.keeper().await;
    let mut guards = Vec::new();
    for nth in 0..500 {
        guards.push(keeper.mutex(&format!("held/{nth}")).lock().await.expect("free"));
    }
    let server = &stage.servers.nodes()[0];
    let (before, started) = (received(server), std::time::Instant::now());
    tokio::time::sleep(SESSION).await;
    let (cost, most) = (received(server) - before, pings(1, started.elapsed()) + 100);
    assert!(cost <= most, "{cost} requests, at most {most}");
    assert!(guards.iter().all(|guard| guard.is_held()));
    // The same renewals notice a node that somebody has removed.
    let (client, lost) = (stage.client().await, guards.swap_remove(77));
    let path = format!("/lockkeeper/locks/{}", lost.name().as_str().replace('/', "%2F"));
    let node = client.list_children(&path).await.expect("listed").pop().expect("one");
    client.delete(&format!("{path}/{node}"), None).await.expect("deleted");
    soon(lost.lost()).await;
    assert!(guards.iter().all(|guard| guard.is_held()));
    keeper.close().await;
}

/// A request that fails again and again is repeated ever more rarely, and its success is noticed all the same.
#[tokio::test(flavor = "multi_thread")]
async fn an_error_that_stays_costs_few_requests() {
    let stage = Stage::single(SESSION);
    let (holder, waiter, client) = (stage.patient().await, stage.patient().await, stage.client().await);
    let guard = holder.mutex("stock").lock().await.expect("locked");
    let server = &stage.servers.nodes()[0];
    let watched = watches(server);
    let waiting =
        tokio::spawn(async move { waiter.mutex("stock").lock().await.expect("locked").release().await });
    until_nodes(&client, "stock", 2).await;
    // It has listed the queue by then. A first listing that is refused fails the claim.
    while watches(server) == watched {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let folder = "/lockkeeper/locks/stock";
    let for_all = |permission| [Acl::new(permission, AuthId::anyone())];
    let unreadable = for_all(Permission::WRITE | Permission::CREATE | Permission::DELETE | Permission::ADMIN);
    client.set_acl(folder, &unreadable, None).await.expect("set");
    guard.release().await.expect("released");
    let before = received(server);
    let time = Duration::from_secs(3);
    tokio::time::sleep(time).await;
    let cost = received(server) - before;
    // Without growing pauses there would be 150.
    assert!(cost <= 20 + pings(3, time), "{cost} requests");
    client.set_acl(folder, &for_all(Permission::ALL), None).await.expect("set");
    soon(waiting).await.expect("no panic").expect("released");
    holder.close().await;
}
