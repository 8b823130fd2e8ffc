//! A cluster whose slots and masters change while they are used, and whose connections fail.

use lockkeeper_testkit::servers::RedisCluster;
use tokio::time::{Instant, sleep, timeout};

use crate::{
    NAME, WORKER, connect,
    connections::replies_get_lost,
    load::{Load, Rest},
    location, millis, neighbour, secs, times,
};

/// The keys of a resource in use move between nodes, and are on both for a moment.
#[test]
fn a_slot_that_moves_loses_nothing() {
    let cluster = RedisCluster::start().expect("started");
    let mut load = Load::on(WORKER, &cluster.url());
    for round in 0..times(4, 100) {
        let slot = cluster.slot_of(&format!("{{load/{}}}", round % 4)).expect("asked");
        let to = (cluster.master_of(slot).expect("served") + 1) % 3;
        cluster.begin_move(slot, to).expect("begun");
        // Long enough for many requests to meet a move that has begun: the node refuses to make new keys.
        load.listen(millis(300));
        // And long enough half-way: requests cannot be served until all keys are on one node.
        cluster.move_keys(slot, to, 1).expect("moved");
        load.listen(millis(300));
        load.through(|| {
            while cluster.move_keys(slot, to, 10)? > 0 {}
            cluster.end_move(slot, to)
        });
        assert_eq!(cluster.master_of(slot).expect("served"), to);
    }
    load.must_be_safe();
}

/// The old master takes part in the failover, so nothing is lost.
#[test]
fn a_failover_that_the_old_master_takes_part_in_loses_nothing() {
    let cluster = RedisCluster::start().expect("started");
    let mut load = Load::on(WORKER, &cluster.url());
    for round in 0..times(2, 20) {
        let slot = cluster.slot_of(&format!("{{load/{}}}", round % 4)).expect("asked");
        load.through(|| cluster.promote(slot, false).map(drop));
        cluster.until_settled().expect("settled");
    }
    load.must_be_safe();
}

#[test]
fn promotions_by_force_never_take_a_token_back() {
    let cluster = RedisCluster::start().expect("started");
    let mut load = Load::on(WORKER, &cluster.url());
    for round in 0..times(2, 50) {
        let slot = cluster.slot_of(&format!("{{load/{}}}", round % 4)).expect("asked");
        load.losing(Rest::OldCopy, || {
            cluster.promote(slot, true)?;
            cluster.until_settled()
        });
    }
    load.must_be_fenced();
}

/// The server of one lock does not answer; the renewals of the other do not wait for it.
#[tokio::test(flavor = "multi_thread")]
async fn a_dead_shard_delays_no_other() {
    let cluster = RedisCluster::start().expect("started");
    let keeper = connect(&cluster.url()).await;
    let shard = |name: &str| {
        let slot = cluster.slot_of(&format!("{{{name}}}")).expect("asked");
        cluster.master_of(slot).expect("served")
    };
    let names: Vec<String> = (0..100).map(|number| format!("lock/{number}")).collect();
    let (here, there): (Vec<_>, Vec<_>) = names.iter().partition(|name| shard(name) == 0);
    let mut guards = Vec::new();
    for name in there {
        guards.push(keeper.mutex(name).lease(secs(2)).lock().await.expect("free"));
    }
    let dead = keeper.mutex(here[0]).lease(secs(2)).lock().await.expect("free");
    cluster.servers()[0].process().pause();
    // Its replica must not take over: this is about a server that does not answer.
    cluster.servers()[3].process().pause();
    let until = Instant::now() + secs(6);
    while Instant::now() < until {
        assert!(guards.iter().all(lockkeeper::Guard::is_held), "a lock on a living server was lost");
        sleep(millis(10)).await;
    }
    assert!(!dead.is_held(), "nobody could renew it");
    cluster.servers()[3].process().resume();
    cluster.servers()[0].process().resume();
}

#[tokio::test(flavor = "multi_thread")]
async fn i9_a_lost_reply_of_a_node_is_asked_for_again() {
    let cluster = RedisCluster::start().expect("started");
    let proxies = cluster.behind_proxies().expect("started");
    let slot = cluster.slot_of(&format!("{{{NAME}}}")).expect("asked");
    let master = cluster.master_of(slot).expect("served");
    replies_get_lost(&cluster.url(), &cluster.servers()[master], &proxies[master], times(4, 200)).await;
}

/// A renewal that is refused because its slot moves costs no lock of another slot.
#[tokio::test(flavor = "multi_thread")]
async fn i3_a_moving_slot_costs_no_other_lock_of_its_node() {
    let cluster = RedisCluster::start().expect("started");
    let (slot, node) = location(&cluster, NAME);
    let other = neighbour(&cluster, NAME);
    let keeper = connect(&cluster.url()).await;
    let (moving, staying) = (keeper.mutex(NAME).lease(secs(3)), keeper.mutex(&other).lease(secs(3)));
    let (moving, staying) = tokio::join!(moving.lock(), staying.lock());
    let (moving, staying) = (moving.expect("free"), staying.expect("free"));
    let to = (node + 1) % 3;
    cluster.begin_move(slot, to).expect("begun");
    // One of the two keys of the lock goes ahead: until the move is over, no node has both.
    assert_eq!(cluster.move_keys(slot, to, 1).expect("moved"), 1);
    timeout(secs(20), moving.lost()).await.expect("nobody can renew it");
    assert!(staying.is_held(), "its own slot stays");
    staying.release().await.expect("held");
    while cluster.move_keys(slot, to, 10).expect("moved") > 0 {}
    cluster.end_move(slot, to).expect("ended");
    keeper.close().await;
}

/// Once a move has begun, the node makes no key of that slot any more, not even one that it has just removed. A new
/// waiter costs the holder nothing then.
#[tokio::test(flavor = "multi_thread")]
async fn i2_a_waiter_that_comes_while_a_slot_begins_to_move_takes_nothing_away() {
    let cluster = RedisCluster::start().expect("started");
    let (slot, to) = leaving(&cluster);
    let url = cluster.url();
    let (ours, theirs, third) = (connect(&url).await, connect(&url).await, connect(&url).await);
    for _ in 0..times(1, 10) {
        let held = ours.mutex(NAME).lease(secs(30)).lock().await.expect("free");
        cluster.begin_move(slot, to).expect("begun");
        let mutex = theirs.mutex(NAME);
        let mut waiting = tokio::spawn(async move { mutex.lock().await });
        let until = Instant::now() + secs(1);
        while Instant::now() < until {
            assert!(third.mutex(NAME).try_lock().await.expect("answered").is_none(), "it is held");
            assert!(timeout(millis(5), &mut waiting).await.is_err(), "it is held");
        }
        let view = third.inspect(NAME).await.expect("asked").expect("held");
        assert_eq!(view.holders.iter().map(|holder| holder.token).collect::<Vec<_>>(), [held.token()]);
        while cluster.move_keys(slot, to, 10).expect("moved") > 0 {}
        cluster.end_move(slot, to).expect("ended");
        assert!(held.is_held(), "it was moved with its slot");
        held.release().await.expect("held");
        let next = timeout(secs(20), waiting).await.expect("in time").expect("no panic").expect("granted");
        next.release().await.expect("held");
        cluster.move_slot(slot, (to + 2) % 3).expect("moved back");
    }
}

/// Nor does a renewal of a grant to a waiter, which is written in another way.
#[tokio::test(flavor = "multi_thread")]
async fn i2_a_renewal_while_a_slot_begins_to_move_takes_nothing_away() {
    let cluster = RedisCluster::start().expect("started");
    let (slot, to) = leaving(&cluster);
    let (ours, theirs) = (connect(&cluster.url()).await, connect(&cluster.url()).await);
    let held = ours.mutex(NAME).lock().await.expect("free");
    let mutex = theirs.mutex(NAME).lease(secs(2));
    let waiting = tokio::spawn(async move { mutex.lock().await });
    while ours.inspect(NAME).await.expect("asked").is_none_or(|view| view.waiters.is_empty()) {
        sleep(millis(2)).await;
    }
    held.release().await.expect("held");
    let next = timeout(secs(20), waiting).await.expect("in time").expect("no panic").expect("granted");
    cluster.begin_move(slot, to).expect("begun");
    let until = Instant::now() + secs(3);
    while Instant::now() < until {
        assert!(ours.mutex(NAME).try_lock().await.expect("answered").is_none(), "it is held");
        assert!(next.is_held(), "it is renewed");
        sleep(millis(5)).await;
    }
    while cluster.move_keys(slot, to, 10).expect("moved") > 0 {}
    cluster.end_move(slot, to).expect("ended");
    next.release().await.expect("held");
}

/// The slot of the lock, and a node that does not keep it.
fn leaving(cluster: &RedisCluster) -> (u16, usize) {
    let (slot, node) = location(cluster, NAME);
    (slot, (node + 1) % 3)
}

/// Two names `lock/…` whose slots are the same.
const SAME_SLOT: (usize, usize) = (87, 320);

/// The only key that remains after the last use of a name belongs to its slot, not to the name.
#[tokio::test(flavor = "multi_thread")]
async fn i12_many_names_of_a_slot_leave_one_mark() {
    let cluster = RedisCluster::start().expect("started");
    let keeper = connect(&cluster.url()).await;
    let slot = |nth: usize| cluster.slot_of(&format!("{{lock/{nth}}}")).expect("asked");
    let mut tokens = Vec::new();
    // Two names of one slot, and two of others.
    for nth in [SAME_SLOT.0, SAME_SLOT.1, 1, 2] {
        let guard = keeper.mutex(&format!("lock/{nth}")).lock().await.expect("free");
        tokens.push(guard.token());
        guard.release().await.expect("held");
    }
    assert!(tokens.is_sorted(), "{tokens:?}");
    assert_eq!(slot(SAME_SLOT.0), slot(SAME_SLOT.1));
    let node = &cluster.servers()[cluster.master_of(slot(SAME_SLOT.0)).expect("served")];
    let keys =
        node.command(["CLUSTER", "GETKEYSINSLOT", &slot(SAME_SLOT.0).to_string(), "10"]).expect("asked");
    assert_eq!(keys.lines().count(), 1, "{keys}");
    assert_eq!(node.command(["TTL", &keys]).expect("asked"), "-1", "it lasts");
    keeper.close().await;
}
