//! A cluster whose slots and masters change while they are used, and whose lines are bad.

use lockkeeper_testkit::servers::RedisCluster;
use tokio::time::{Instant, sleep, timeout};

use crate::{
    NAME, connect,
    line::replies_get_lost,
    load::{Load, Rest},
    millis, secs, times,
};

/// Keys of a resource that workers use are now here, now there, and for a moment on both.
#[test]
fn a_slot_that_moves_loses_nothing() {
    let cluster = RedisCluster::start().expect("started");
    let mut load = Load::on(&cluster.url());
    for round in 0..times(4, 100) {
        let slot = cluster.slot_of(&format!("{{load/{}}}", round % 4)).expect("asked");
        let to = (cluster.master_of(slot).expect("served") + 1) % 3;
        cluster.begin_move(slot, to).expect("begun");
        // Half-way for long enough that many requests meet it: they cannot be served until all keys are together.
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

/// The old master hands over in good order, so nothing is lost.
#[test]
fn a_new_master_in_good_order_loses_nothing() {
    let cluster = RedisCluster::start().expect("started");
    let mut load = Load::on(&cluster.url());
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
    let mut load = Load::on(&cluster.url());
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
async fn i9_a_reply_swallowed_on_the_line_to_a_node_is_asked_for_again() {
    let cluster = RedisCluster::start().expect("started");
    let proxies = cluster.behind_proxies().expect("started");
    let slot = cluster.slot_of(&format!("{{{NAME}}}")).expect("asked");
    let master = cluster.master_of(slot).expect("served");
    replies_get_lost(&cluster.url(), &cluster.servers()[master], &proxies[master], times(4, 200)).await;
}

/// A renewal that a slot on the move refuses costs no lock whose slot stays where it is.
#[tokio::test(flavor = "multi_thread")]
async fn i3_a_slot_on_the_move_costs_no_other_lock_of_its_node() {
    let cluster = RedisCluster::start().expect("started");
    let place = |name: &str| {
        let slot = cluster.slot_of(&format!("{{{name}}}")).expect("asked");
        (slot, cluster.master_of(slot).expect("served"))
    };
    let (slot, node) = place(NAME);
    let mut others = (0..).map(|nth| format!("other/{nth}"));
    let other = others.find(|name| place(name).1 == node && place(name).0 != slot).expect("there is one");
    let keeper = connect(&cluster.url()).await;
    let (moving, staying) = (keeper.mutex(NAME).lease(secs(3)), keeper.mutex(&other).lease(secs(3)));
    let (moving, staying) = tokio::join!(moving.lock(), staying.lock());
    let (moving, staying) = (moving.expect("free"), staying.expect("free"));
    let to = (node + 1) % 3;
    cluster.begin_move(slot, to).expect("begun");
    // Of the lock and its mark one goes ahead: until the move is over, no place has both.
    assert_eq!(cluster.move_keys(slot, to, 1).expect("moved"), 1);
    timeout(secs(20), moving.lost()).await.expect("nobody can renew it");
    assert!(staying.is_held(), "its own slot stays");
    staying.release().await.expect("held");
    while cluster.move_keys(slot, to, 10).expect("moved") > 0 {}
    cluster.end_move(slot, to).expect("ended");
    keeper.close().await;
}
