//! A cluster whose slots and masters change while they are used, and whose lines are bad.

use lockkeeper_testkit::{
    dice::Dice,
    proxy::{Act, Fault, Way},
    servers::RedisCluster,
};
use tokio::time::{Instant, sleep, timeout};

use crate::{
    NAME, connect,
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

/// A reply of a node, or a part of it, never comes; in the end the node knows what the client believes: the grant while
/// it is held, nothing afterwards. The node is asked past the proxy.
#[tokio::test(flavor = "multi_thread")]
async fn i9_a_reply_swallowed_on_the_line_to_a_node_is_asked_for_again() {
    let cluster = RedisCluster::start().expect("started");
    let proxies = cluster.behind_proxies().expect("started");
    let slot = cluster.slot_of(&format!("{{{NAME}}}")).expect("asked");
    let master = cluster.master_of(slot).expect("served");
    let (node, proxy) = (&cluster.servers()[master], &proxies[master]);
    // Who holds or waits; marks against late copies are left out, as they end by themselves.
    let kept = || {
        let key = format!("lockkeeper:{{{NAME}}}");
        let lines = match node.command(["TYPE", &key]).expect("asked").as_str() {
            "string" => node.command(["GET", &key]),
            "zset" => node.command(["ZRANGE", &key, "0", "-1"]),
            _ => Ok(String::new()),
        };
        // It may have become another kind in between.
        let lines = lines.unwrap_or_else(|error| format!("h {error}"));
        lines.lines().filter(|line| line.starts_with(['h', 'q'])).map(str::to_owned).collect::<Vec<_>>()
    };
    let builder = lockkeeper::builder(&cluster.url()).expect("a good URL").request_limit(millis(300));
    let keeper = builder.connect().await.expect("connected");
    let mut last = keeper.mutex(NAME).lock().await.expect("free").token();
    let (lease, rounds, mut dice) = (secs(5), times(4, 200), Dice::new(1));
    let mut faults = 0;
    for _ in 0..rounds {
        let act = if dice.chance(700) { Act::Swallow } else { Act::Cut };
        let way = if dice.chance(700) { Way::ToClient } else { Way::ToServer };
        let fault = Fault { way, after: dice.below(60), act };
        let before = proxy.struck();
        proxy.now(fault);
        let guard = timeout(secs(20), keeper.mutex(NAME).lease(lease).lock()).await;
        let guard = guard.expect("in time").expect("granted in the end");
        assert!(guard.token() > last, "{fault:?}: {} after {last}", guard.token());
        last = guard.token();
        let lines = kept();
        assert_eq!(lines.len(), 1, "{fault:?}: {lines:?}");
        assert!(lines[0].starts_with(&format!("h {:016} ", last.number())), "{fault:?}: {lines:?}");
        proxy.now(fault);
        let released = guard.release().await;
        let deadline = Instant::now() + lease + secs(1);
        while !kept().is_empty() {
            assert!(released.is_err(), "{fault:?}: said to be free, but {:?}", kept());
            assert!(Instant::now() < deadline, "{fault:?}: held without an owner: {:?}", kept());
            sleep(millis(5)).await;
        }
        faults += usize::from(proxy.struck() > before);
    }
    assert!(faults >= rounds / 2, "only {faults} of {rounds} rounds met a fault");
}
