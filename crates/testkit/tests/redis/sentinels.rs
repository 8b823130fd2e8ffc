//! A holder behind sentinels hears that its master is no longer the master, although that one answers as before.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use lockkeeper::Keeper;
use lockkeeper_testkit::{
    proxy::Proxy,
    servers::{Redis, RedisSentinel, StandIn},
};
use tokio::time::{Instant, sleep, timeout};

use crate::{NAME, connect, millis, secs};

/// Servers behind proxies, and a keeper that is connected to the master.
struct World {
    servers: RedisSentinel,
    proxies: Vec<Proxy>,
    keeper: Keeper,
}

impl World {
    async fn new() -> Self {
        Self::with_url(RedisSentinel::url).await
    }

    /// The same with a keeper that connects by this URL.
    async fn with_url(url: impl FnOnce(&RedisSentinel) -> String) -> Self {
        let mut servers = RedisSentinel::start().expect("started");
        let proxies = servers.behind_proxies().expect("started");
        let keeper = connect(&url(&servers)).await;
        // Opens all connections that a holder needs, since new ones will be refused: a renewed lock has them.
        let guard = keeper.mutex("first").lease(secs(6)).lock().await.expect("free");
        let mut left = guard.remaining();
        while guard.remaining() <= left {
            assert!(guard.is_held(), "not renewed");
            left = guard.remaining();
            sleep(millis(20)).await;
        }
        guard.release().await.expect("held");
        Self { servers, proxies, keeper }
    }

    /// Cuts the master off from all but the keeper.
    fn cut_off(&self) -> &Redis {
        let master = self.servers.master().expect("known");
        let place = self.servers.servers().iter().position(|server| std::ptr::eq(server, master));
        self.servers.cut_off(master, &self.proxies[place.expect("one of them")]).expect("cut off");
        master
    }

    fn fail_over(&self, old: &Redis) {
        self.servers.until_master_is_not(old.address()).expect("there is a new master");
    }
}

/// A grant that no replica has, on a master that does not know that another one has taken over.
#[tokio::test(flavor = "multi_thread")]
async fn a_holder_on_a_master_that_was_cut_off_is_told() {
    let world = World::new().await;
    let old = world.cut_off();
    let guard = world.keeper.mutex(NAME).lease(secs(60)).lock().await.expect("the old master grants");
    // A lock that the watchdog does not renew.
    let fixed =
        world.keeper.mutex("fixed").expires_after(secs(60)).lock().await.expect("the old master grants");
    assert_eq!(
        old.command(["EXISTS", "lockkeeper:{stock/42}"]).expect("asked"),
        "1",
        "granted by the old one"
    );
    world.fail_over(old);
    let replaced = Instant::now();
    timeout(secs(2), guard.lost()).await.expect("told in time");
    timeout(secs(2), fixed.lost()).await.expect("told in time");
    println!("told {:?} after all sentinels named another", replaced.elapsed());
    assert_eq!(old.info("replication", "role").expect("it answers"), "master", "it does not know");
    let again = timeout(secs(10), world.keeper.mutex(NAME).lock()).await.expect("in time").expect("free");
    assert_eq!(
        world.servers.master().expect("known").command(["EXISTS", "lockkeeper:{stock/42}"]).expect("asked"),
        "1"
    );
    again.release().await.expect("held");
    world.keeper.close().await;
}

fn bulk(text: &str) -> String {
    format!("${}\r\n{text}\r\n", text.len())
}

/// The URL of `servers` with these stand-ins in the places of the first sentinels.
fn url_with(servers: &RedisSentinel, stand_ins: &[StandIn]) -> String {
    servers.sentinels().iter().zip(stand_ins).fold(servers.url(), |url, (sentinel, stand_in)| {
        url.replace(&sentinel.address().to_string(), &stand_in.address().to_string())
    })
}

/// The messages of a change get lost, all of them. The sentinels are asked from time to time all the same.
#[tokio::test(flavor = "multi_thread")]
async fn a_change_that_no_message_tells_of_is_noticed() {
    let mut stand_ins = Vec::new();
    let world = World::with_url(|servers| {
        for sentinel in servers.sentinels() {
            // It confirms the subscription, which the sentinel never hears of.
            let stand_in = StandIn::start(sentinel.address(), |request| {
                let [command, channel] = request else { return None };
                let subscribes = command.eq_ignore_ascii_case("SUBSCRIBE");
                subscribes.then(|| format!(">3\r\n{}{}:1\r\n", bulk("subscribe"), bulk(channel)))
            });
            stand_ins.push(stand_in.expect("started"));
        }
        url_with(servers, &stand_ins)
    })
    .await;
    let old = world.cut_off();
    let guard = world.keeper.mutex(NAME).lease(secs(60)).lock().await.expect("the old master grants");
    world.fail_over(old);
    let replaced = Instant::now();
    // They are asked every five seconds.
    timeout(secs(15), guard.lost()).await.expect("told in time");
    println!("told {:?} after all sentinels named another", replaced.elapsed());
    for sentinel in world.servers.sentinels() {
        let clients = sentinel.command(["CLIENT", "LIST"]).expect("asked");
        assert!(
            clients.lines().all(|client| client.contains(" sub=0 ")),
            "nobody is sent messages: {clients}"
        );
    }
    world.keeper.close().await;
}

/// The sentinels name a server that is not a master, as they do for a moment in a failover.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_says_it_is_a_replica_is_not_used() {
    let servers = RedisSentinel::start().expect("started");
    connect(&servers.url()).await.close().await;
    let master = servers.master().expect("known").address();
    let replicas = servers.servers().iter().map(Redis::address).filter(|address| *address != master);
    let replica = replicas.collect::<Vec<_>>()[0];
    let wrong = Arc::new(AtomicBool::new(true));
    let mislead = |sentinel: &Redis| {
        let wrong = wrong.clone();
        let stand_in = StandIn::start(sentinel.address(), move |request| {
            let words: Vec<&str> = request.iter().map(String::as_str).collect();
            match words[..] {
                ["SENTINEL", "GET-MASTER-ADDR-BY-NAME", _] if wrong.load(Ordering::Relaxed) => Some(format!(
                    "*2\r\n{}{}",
                    bulk(&replica.ip().to_string()),
                    bulk(&replica.port().to_string())
                )),
                _ => None,
            }
        });
        stand_in.expect("started")
    };
    let stand_ins: Vec<StandIn> = servers.sentinels().iter().map(mislead).collect();
    let url = url_with(&servers, &stand_ins);
    // Reading would work there, also the first question of a keeper.
    let error = lockkeeper::connect(&url).await.map(drop).expect_err("it is a replica").to_string();
    assert!(
        error.contains(&replica.to_string()) && error.contains("is a replica, but the sentinels"),
        "{error}"
    );
    wrong.store(false, Ordering::Relaxed);
    let keeper = connect(&url).await;
    keeper.mutex(NAME).lock().await.expect("granted by the master").release().await.expect("held");
    keeper.close().await;
}

/// A grant that the new master knows is renewed there, and stays.
#[tokio::test(flavor = "multi_thread")]
async fn a_grant_that_the_new_master_knows_is_renewed_there() {
    let world = World::new().await;
    // Long enough for the new master to know it still when it becomes the master.
    let lease = secs(20);
    let guard = world.keeper.mutex(NAME).lease(lease).lock().await.expect("free");
    let master = world.servers.master().expect("known");
    assert_eq!(master.command(["WAIT", "2", "5000"]).expect("asked"), "2", "both replicas have it");
    let old = world.cut_off();
    world.fail_over(old);
    let new = connect(&world.servers.url()).await;
    let until = Instant::now() + lease + secs(1);
    while Instant::now() < until {
        assert!(guard.is_held(), "the new master has it");
        assert!(new.mutex(NAME).try_lock().await.expect("it answers").is_none(), "it is held");
        sleep(millis(100)).await;
    }
    guard.release().await.expect("held");
    let taken = new.mutex(NAME).try_lock().await.expect("it answers");
    assert!(taken.is_some(), "released at the new master");
    world.keeper.close().await;
}

/// Sentinels that name an old master: one when a keeper connects, and then most of them, as if they had been restarted
/// with old files.
#[tokio::test(flavor = "multi_thread")]
async fn sentinels_that_lag_behind_are_not_believed() {
    let servers = RedisSentinel::start().expect("started");
    let old = servers.master().expect("known").address();
    servers.promote().expect("promoted");
    servers.until_settled().expect("settled");
    let most = Arc::new(AtomicBool::new(false));
    let behind = |sentinel: &Redis, always: bool| {
        let most = most.clone();
        let stand_in = StandIn::start(sentinel.address(), move |request| {
            let words: Vec<&str> = request.iter().map(String::as_str).collect();
            match words[..] {
                _ if !always && !most.load(Ordering::Relaxed) => None,
                ["SENTINEL", "GET-MASTER-ADDR-BY-NAME", _] => {
                    Some(format!("*2\r\n{}{}", bulk(&old.ip().to_string()), bulk(&old.port().to_string())))
                }
                ["SENTINEL", "MASTER", _] => Some(format!("*2\r\n{}{}", bulk("config-epoch"), bulk("0"))),
                _ => None,
            }
        });
        stand_in.expect("started")
    };
    let sentinels = servers.sentinels();
    let stand_ins = [behind(&sentinels[0], true), behind(&sentinels[1], false)];
    let keeper = connect(&url_with(&servers, &stand_ins)).await;
    let guard = keeper.mutex(NAME).lock().await.expect("granted by the new master");
    let master = servers.master().expect("known");
    let there = || master.command(["EXISTS", "lockkeeper:{stock/42}"]).expect("asked") == "1";
    assert!(master.address() != old && there());

    most.store(true, Ordering::Relaxed);
    // A new keeper asks them.
    master.command(["CLIENT", "KILL", "TYPE", "normal"]).expect("killed");
    timeout(secs(10), async {
        while keeper.mutex("other").try_lock().await.is_err() {
            sleep(millis(20)).await;
        }
    })
    .await
    .expect("it finds the master");
    // Longer than the time between two questions to the sentinels.
    sleep(secs(6)).await;
    assert!(guard.is_held() && there());
    guard.release().await.expect("held");
    keeper.close().await;
}

/// While nothing is held, no sentinel is asked.
#[tokio::test(flavor = "multi_thread")]
async fn sentinels_are_left_alone_while_nothing_is_held() {
    let servers = RedisSentinel::start().expect("started");
    let ours = |sentinel: &Redis| {
        let clients = sentinel.command(["CLIENT", "LIST"]).expect("asked");
        // Connections of other sentinels have names, and this question's own connection is the last.
        clients.lines().filter(|line| !line.contains(" name=sentinel-")).count() - 1
    };
    let count = || servers.sentinels().iter().map(ours).sum::<usize>();
    let keeper = connect(&servers.url()).await;
    let guard = keeper.mutex(NAME).lock().await.expect("free");
    timeout(secs(10), async {
        while count() < 3 {
            sleep(millis(50)).await;
        }
    })
    .await
    .expect("listened to while something is held");
    guard.release().await.expect("held");
    timeout(secs(40), async {
        while count() > 0 {
            sleep(millis(50)).await;
        }
    })
    .await
    .expect("left alone in the end");
    keeper.close().await;
}

/// The sentinels do not answer; a message of a grant is read at once meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn a_listener_goes_on_reading_while_sentinels_are_asked() {
    let servers = RedisSentinel::start().expect("started");
    let master = servers.master().expect("known");
    let theirs = connect(&servers.url()).await;
    let held = theirs.mutex(NAME).lock().await.expect("free");
    let clients = || {
        let list = master.command(["CLIENT", "LIST"]).expect("asked");
        let plain = |line: &str| {
            let id = line.strip_prefix("id=").and_then(|line| line.split(' ').next()).map(str::to_owned);
            id.filter(|_| line.contains(" sub=0 "))
        };
        list.lines().filter_map(plain).collect::<Vec<_>>()
    };
    let before = clients();
    let ours = connect(&servers.url()).await;
    // Each keeper has a channel. On a busy machine its subscription may come late.
    while master.command(["PUBSUB", "CHANNELS", "lockkeeper:k:*"]).expect("asked").lines().count() < 2 {
        sleep(millis(5)).await;
    }
    let mutex = ours.mutex(NAME);
    let waiting = tokio::spawn(async move { mutex.lock().await });
    while theirs.inspect(NAME).await.expect("reachable").is_none_or(|view| view.waiters.is_empty()) {
        sleep(millis(5)).await;
    }
    for sentinel in servers.sentinels() {
        sentinel.process().pause();
    }
    // From now on our requests fail, since no sentinel says where the master is; the listener's connection works.
    for id in clients().into_iter().filter(|id| !before.contains(id)) {
        master.command(["CLIENT", "KILL", "ID", &id]).ok();
    }
    ours.inspect(NAME).await.expect_err("the sentinels do not answer");
    held.release().await.expect("held");
    let released = Instant::now();
    let guard = timeout(secs(10), waiting).await.expect("in time").expect("no panic").expect("granted");
    println!("{:?}", released.elapsed());
    assert!(released.elapsed() < secs(1), "{:?}", released.elapsed());
    for sentinel in servers.sentinels() {
        sentinel.process().resume();
    }
    drop(guard);
    ours.close().await;
}

/// With `wait=1`, a renewal that no replica has does not count: the holder is told when the lease that replicas know
/// ends.
#[tokio::test(flavor = "multi_thread")]
async fn a_renewal_that_too_few_replicas_have_does_not_count() {
    let (master, replica) = (Redis::start().expect("started"), Redis::start().expect("started"));
    replica.follow(&master).expect("in step");
    let keeper = connect(&format!("{}?wait=1&wait_limit=300ms", master.url())).await;
    let lease = secs(3);
    let guard = keeper.mutex(NAME).lease(lease).lock().await.expect("one replica has it");
    sleep(lease + secs(1)).await;
    assert!(guard.is_held(), "renewed while the replica is there");
    replica.process().pause();
    timeout(lease + millis(500), guard.lost())
        .await
        .expect("told when the lease that the replica knows ends");
    replica.process().resume();
    keeper.close().await;
}

/// Renewals that come at the same time wait for the replicas together.
#[tokio::test(flavor = "multi_thread")]
async fn renewals_wait_for_replicas_together() {
    let (master, replica) = (Redis::start().expect("started"), Redis::start().expect("started"));
    replica.follow(&master).expect("in step");
    let keeper = connect(&format!("{}?wait=1&wait_limit=1s", master.url())).await;
    let take = |number| {
        let mutex = keeper.mutex(&format!("lock/{number}")).lease(secs(30));
        tokio::spawn(async move { mutex.lock().await })
    };
    let taking: Vec<_> = (0..2000).map(take).collect();
    let mut held = Vec::new();
    for taken in taking {
        held.push(taken.await.expect("no panic").expect("free"));
    }
    master.command(["CONFIG", "RESETSTAT"]).expect("reset");
    let calls = |name: &str| {
        let line = master.info("commandstats", &format!("cmdstat_{name}")).unwrap_or_default();
        let calls = line.strip_prefix("calls=").and_then(|rest| rest.split(',').next());
        calls.map_or(0, |calls| calls.parse::<u32>().expect("a number"))
    };
    timeout(secs(30), async {
        while calls("evalsha") < 7 {
            sleep(millis(20)).await;
        }
        sleep(secs(1)).await;
    })
    .await
    .expect("renewed");
    assert!(held.iter().all(lockkeeper::Guard::is_held));
    let (renewals, waits) = (calls("evalsha"), calls("wait"));
    println!("{renewals} batches of renewals, {waits} waits");
    assert!(waits > 0 && waits < renewals, "{waits} waits for {renewals} batches");
    drop(held);
    keeper.close().await;
}
