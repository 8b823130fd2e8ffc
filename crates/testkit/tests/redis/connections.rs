//! The connection between client and server is cut, goes silent, or is slow.

use lockkeeper_core::{
    ContenderId, KeeperId, Name,
    clock::Clock,
    store::{Context, Leave, Renew, Request, WakeSink},
};
use lockkeeper_testkit::{
    bad_connection::{BadConnection, impatient},
    dice::Dice,
    proxy::{Action, Direction, Fault, Proxy, RandomFaults},
    servers::Redis,
};
use tokio::{
    task::JoinSet,
    time::{Instant, sleep, timeout},
};

use crate::{NAME, WORKER, load::Load, millis, percent, secs, times};

/// A server, and keepers on bad and good connections to it.
async fn world(options: &str) -> (Redis, BadConnection) {
    let redis = Redis::start().expect("started");
    let url = |address| format!("redis://{address}/?{options}");
    let world = BadConnection::new(redis.address(), NAME, url).await;
    (redis, world)
}

/// Requests and replies are shorter than this.
const LONGEST: u64 = 600;

#[tokio::test(flavor = "multi_thread")]
async fn i5_a_connection_cut_at_any_byte_leaves_nothing() {
    let step = if percent().is_some() { 1 } else { 23 };
    let mut worlds = JoinSet::new();
    for options in ["protocol=resp3", "protocol=resp2"] {
        for way in [Direction::ToServer, Direction::ToClient] {
            let (redis, world) = world(options).await;
            worlds.spawn(async move {
                let mut last = world.first_token().await;
                for after in (0..LONGEST).step_by(step) {
                    last = world
                        .acquire_and_release(Fault { direction: way, after, action: Action::Cut }, last)
                        .await;
                }
                drop(redis);
                world.proxy.struck() as usize
            });
        }
    }
    let struck: usize = worlds.join_all().await.into_iter().sum();
    println!("{struck} connections were cut");
    assert!(struck > LONGEST as usize / step, "{struck}");
}

/// Each connection goes silent for good; only the client's own limit ends the wait.
#[tokio::test(flavor = "multi_thread")]
async fn i9_a_swallowed_reply_is_asked_for_again() {
    let (count, mut servers, mut pairs) = (times(8, 1000), Vec::new(), Vec::new());
    for _ in 0..4 {
        let (redis, pair) = world("").await;
        servers.push(redis);
        pairs.push(pair);
    }
    let struck = BadConnection::swallow_replies(pairs, count, 60).await;
    println!("{struck} connections went silent");
    assert!(struck >= count, "{struck}");
}

/// A reply of a server behind sentinels or in a cluster, or a part of it, never comes. In the end the server and the
/// client agree: there is a grant while the lock is held, and none afterwards. The server is asked past its proxy.
pub(crate) async fn replies_get_lost(url: &str, node: &Redis, proxy: &Proxy, rounds: usize) {
    // Holders and waiters. Tombstones are left out, since they end by themselves.
    let kept = || {
        let key = format!("lockkeeper:{{{NAME}}}");
        let rows = match node.command(["TYPE", &key]).expect("asked").as_str() {
            "string" => node.command(["GET", &key]),
            "list" => node.command(["LRANGE", &key, "0", "-1"]),
            _ => Ok(String::new()),
        };
        // The key may have changed its type in between.
        let rows = rows.unwrap_or_else(|error| format!("0 0 0 h {error}"));
        // The first row comes after three words of the head; there are no waiters here.
        let first = rows.lines().take(1).filter_map(|head| head.splitn(4, ' ').nth(3));
        let rows = first.chain(rows.lines().skip(1)).filter(|row| !row.starts_with('x'));
        rows.map(str::to_owned).collect::<Vec<_>>()
    };
    // The connections of sentinels and replicas get no faults, or they would take the master for dead.
    let others = proxy.accepted();
    let keeper = impatient(url).await;
    let mut last = keeper.mutex(NAME).lock().await.expect("free").token();
    // Long enough for a busy machine.
    let (lease, mut dice) = (secs(20), Dice::new(1));
    let mut faults = 0;
    for _ in 0..rounds {
        let act = if dice.chance(700) { Action::Swallow } else { Action::Cut };
        let way = if dice.chance(700) { Direction::ToClient } else { Direction::ToServer };
        let fault = Fault { direction: way, after: dice.below(60), action: act };
        let before = proxy.struck();
        proxy.now_after(others, fault);
        let guard = timeout(secs(20), keeper.mutex(NAME).lease(lease).lock()).await;
        let guard = guard.expect("in time").expect("granted in the end");
        assert!(guard.token() > last, "{fault:?}: {} after {last}", guard.token());
        last = guard.token();
        let rows = kept();
        assert_eq!(
            rows.len(),
            1,
            "{fault:?}: {rows:?}, with {guard:?} and a {:?}",
            node.info("replication", "role")
        );
        assert!(rows[0].starts_with(&format!("h {:016} ", last.number())), "{fault:?}: {rows:?}");
        proxy.now_after(others, fault);
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

/// A waiter whose connections died in silence hears nothing of the release, and asks.
#[tokio::test(flavor = "multi_thread")]
async fn a_lost_wake_costs_a_bounded_wait() {
    let (_redis, world) = world("").await;
    for round in 0..times(2, 50) {
        let held = world.theirs.mutex(NAME).lock().await.expect("free");
        let mutex = world.ours.mutex(NAME);
        let waiting = tokio::spawn(async move { mutex.lock().await });
        timeout(secs(10), async {
            while world
                .theirs
                .inspect(NAME)
                .await
                .expect("reachable")
                .is_none_or(|view| view.waiters.is_empty())
            {
                sleep(millis(5)).await;
            }
        })
        .await
        .expect("it waits in the queue");
        world.proxy.now(Fault::SILENCE);
        held.release().await.expect("held");
        let released = Instant::now();
        let guard = timeout(secs(10), waiting).await.expect("it asks").expect("no panic").expect("granted");
        println!("round {round}: {:?}", released.elapsed());
        assert!(released.elapsed() < secs(4), "{:?}", released.elapsed());
        guard.release().await.expect("held");
    }
}

/// A connection that is slower than a third of the lease, and one that is silent for longer than the lease.
#[tokio::test(flavor = "multi_thread")]
async fn i3_a_silent_connection_is_noticed_before_the_lease_ends() {
    let (redis, world) = world("").await;
    world.proxy.delay(millis(40));
    // Long enough for a busy machine.
    let guard = world.ours.mutex(NAME).lease(secs(4)).lock().await.expect("free");
    sleep(secs(6)).await;
    assert!(guard.is_held(), "renewed over a slow connection");
    world.proxy.pause(true);
    timeout(secs(8), guard.lost()).await.expect("told in time");
    let view = world.theirs.inspect(NAME).await.expect("reachable");
    assert!(view.is_some_and(|view| !view.holders.is_empty()), "told before the lease ended at the store");
    world.proxy.pause(false);
    world.proxy.delay(millis(0));
    drop(guard);
    let again = timeout(secs(10), world.ours.mutex(NAME).lock()).await.expect("in time").expect("free");
    again.release().await.expect("held");
    assert!(redis.process().id().is_some());
}

/// Renewals failed for so long that the next try to connect is up to a second away. A program that ends cannot wait for
/// it.
#[tokio::test(flavor = "multi_thread")]
async fn i16_the_last_leave_connects_at_once() {
    let redis = Redis::start().expect("started");
    let proxy = Proxy::start(redis.address()).expect("started");
    let context = Context {
        keeper: KeeperId::random(),
        wakes: WakeSink::new(|_| {}),
        background: tokio::runtime::Handle::current(),
        clock: Clock::boot(),
        request_limit: secs(5),
    };
    let (name, contender) =
        (Name::new(NAME).expect("a name"), ContenderId { keeper: context.keeper, seq: 1 });
    let connector = lockkeeper::url::connector(&format!("redis://{}", proxy.address())).expect("a good URL");
    let store = connector.connect(context).await.expect("connected");
    let renew =
        [Renew { name: name.clone(), contender, lease: secs(5), lower_to: None, detach: false, at_least: 0 }];
    let leave = [Request::Leave(Leave { name, contender, tombstone_until: None, hold_at_least: millis(0) })];
    proxy.refuse(true);
    proxy.cut_all();
    let refused = Instant::now();
    while refused.elapsed() < secs(3) {
        store.renew(&renew).await.expect_err("refused");
        sleep(millis(5)).await;
    }
    store.leave_caller();
    proxy.refuse(false);
    let back = Instant::now();
    while store.apply(&leave).await.is_err() {
        assert!(back.elapsed() < millis(250), "it pauses for {:?}", back.elapsed());
        sleep(millis(5)).await;
    }
    store.close().await;
}

#[test]
fn a_crew_on_bad_connections_is_safe() {
    let redis = Redis::start().expect("started");
    let proxy = Proxy::start(redis.address()).expect("started");
    let mut load = Load::on(WORKER, &format!("redis://{}/?request_limit=300ms", proxy.address()));
    proxy.random_faults(Some(RandomFaults { dice: Dice::new(7), per_mille: 700, most: 5_000 }));
    proxy.cut_all();
    let (struck, started) = (times(20, 1000) as u64, std::time::Instant::now());
    while proxy.struck() < struck {
        load.go_on(20);
        // Connections that met no fault so far are ended, so they try again.
        proxy.cut_all();
        assert!(
            started.elapsed() < secs(60) + secs(2) * u32::try_from(struck).expect("few"),
            "{}",
            proxy.struck()
        );
    }
    proxy.refuse(true);
    proxy.cut_all();
    load.listen(millis(1500));
    load.through(|| {
        proxy.random_faults(None);
        proxy.refuse(false);
        proxy.cut_all();
        Ok(())
    });
    load.must_be_safe();
}

/// Connections belong to the runtime in which the keeper was connected. If that stands still, requests of other runtimes are
/// delayed for a moment, and not until they run out of time.
#[test]
fn a_runtime_that_stands_still_delays_others_for_a_moment() {
    let build = || tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let (still, other) = (build(), build());
    let redis = Redis::start().expect("started");
    let url = format!("redis://{}/?request_limit=40s", redis.address());
    let builder = lockkeeper::builder(&url).expect("a good URL").request_limit(secs(40));
    let keeper = still.block_on(builder.connect()).expect("connected");
    // Nobody drives that runtime any more.
    other.block_on(async {
        let locked = timeout(secs(20), keeper.mutex(NAME).lock()).await.expect("not held up");
        locked.expect("granted").release().await.expect("released");
        keeper.close().await;
    });
}
