//! Errors of a real server. Each must say what to do; a waiter waits until the trouble is over; and a lock that is held
//! meanwhile is kept if its lease lasts.

use std::{fs, io, sync::Arc, thread};

use lockkeeper::{AcquireError, Guard, Keeper};
use lockkeeper_testkit::servers::{Redis, RedisCluster, RedisOptions};
use tokio::{
    task::JoinHandle,
    time::{Instant, sleep, timeout},
};

use crate::{NAME, connect, millis, secs};

/// A keeper that holds one lock for long enough, and asks for another.
struct Client {
    keeper: Keeper,
    held: Guard,
}

impl Client {
    async fn new(url: &str) -> Self {
        let builder = lockkeeper::builder(url).expect("a good URL").request_limit(secs(3));
        let keeper = builder.connect().await.expect("connected");
        let held = keeper.mutex("held").lease(secs(30)).lock().await.expect("free");
        Self { keeper, held }
    }

    /// Checks the error that a try gets; the trouble may need a moment to show.
    async fn is_told(&self, code: &str, remedy: &str) {
        let started = Instant::now();
        loop {
            match self.keeper.mutex(NAME).try_lock().await {
                Err(error) if error.to_string().contains(code) => {
                    println!("{error}");
                    return assert!(error.to_string().contains(remedy), "{code} without a remedy: {error}");
                }
                other => {
                    assert!(started.elapsed() < secs(20), "no {code}, but {other:?}");
                    // The servers do not say when it shows.
                    sleep(millis(10)).await;
                }
            }
        }
    }

    /// Starts two waiters while the trouble lasts, which ask as one group.
    async fn waits(&self) -> [JoinHandle<Result<(), AcquireError>>; 2] {
        let waiting = [(); 2].map(|()| {
            let mutex = self.keeper.mutex(NAME).fifo();
            tokio::spawn(async move { mutex.lock().await.map(drop) })
        });
        // Long enough for several tries.
        sleep(millis(400)).await;
        for one in &waiting {
            assert!(!one.is_finished(), "{waiting:?}");
        }
        waiting
    }

    /// The trouble is over: the waiters are served, and the hold is still there.
    async fn goes_on(self, waiting: [JoinHandle<Result<(), AcquireError>>; 2]) {
        let over = Instant::now();
        for one in waiting {
            timeout(secs(20), one).await.expect("in time").expect("no panic").expect("granted");
        }
        println!("served {:?} after it was over", over.elapsed());
        assert!(self.held.is_held(), "the lease outlasted the trouble");
        self.held.release().await.expect("held");
        self.keeper.close().await;
    }
}

/// A trouble that begins at once and ends at once.
async fn outwaits(
    url: &str,
    (code, remedy): (&str, &str),
    begin: impl FnOnce() -> io::Result<()>,
    end: impl FnOnce() -> io::Result<()>,
) {
    let client = Client::new(url).await;
    begin().expect("in trouble");
    client.is_told(code, remedy).await;
    let waiting = client.waits().await;
    end().expect("out of trouble");
    client.goes_on(waiting).await;
}

fn set(redis: &Redis, name: &str, value: &str) -> io::Result<()> {
    redis.command(["CONFIG", "SET", name, value]).map(drop)
}

/// Makes a replica the master once it has all data of the old one.
fn promote_in_step(replica: &Redis) -> io::Result<()> {
    while replica.command(["EXISTS", "lockkeeper:{held}"])? != "1" {
        thread::sleep(millis(5));
    }
    replica.promote()
}

/// A server that restarts with much data answers no client until it has read all of it.
#[tokio::test(flavor = "multi_thread")]
async fn loading_is_outwaited() {
    // It reads twenty keys a second, and looks for clients after each.
    let slow = RedisOptions::default().setting("key-load-delay 50000").setting("rdbcompression no");
    let slow = slow.setting("loading-process-events-interval-bytes 1024");
    let slow = slow.setting("enable-debug-command local");
    let redis = Arc::new(slow.start().expect("started"));
    let client = Client::new(&redis.url()).await;
    redis.command(["DEBUG", "POPULATE", "1000", "data", "2000"]).expect("filled");
    redis.command(["SAVE"]).expect("saved");
    redis.process().kill();
    let loading = thread::spawn({
        let redis = redis.clone();
        move || redis.start_again()
    });
    client.is_told("LOADING", "it answers when that is done").await;
    let newcomer = lockkeeper::connect(&redis.url()).await.expect_err("not yet");
    assert!(newcomer.to_string().contains("LOADING"), "{newcomer}");
    let waiting = client.waits().await;
    set(&redis, "key-load-delay", "0").expect("faster");
    loading.join().expect("no panic").expect("started");
    client.goes_on(waiting).await;
    connect(&redis.url()).await.close().await;
}

/// The master becomes a replica and, after a while, the master again: a failover behind a single address.
#[tokio::test(flavor = "multi_thread")]
async fn readonly_is_outwaited() {
    let (redis, other) = (Redis::start().expect("started"), Redis::start().expect("started"));
    other.follow(&redis).expect("in step");
    let turn = || {
        promote_in_step(&other)?;
        redis.follow(&other)
    };
    outwaits(&redis.url(), ("READONLY", "name the master"), turn, || redis.promote()).await;
}

/// A wait with a limit lasts to its limit, and then says why it came to nothing.
#[tokio::test(flavor = "multi_thread")]
async fn readonly_is_outwaited_to_the_limit() {
    let (redis, other) = (Redis::start().expect("started"), Redis::start().expect("started"));
    let keeper = connect(&redis.url()).await;
    redis.follow(&other).expect("in step");
    let (started, limit) = (Instant::now(), millis(1500));
    let error = keeper.mutex(NAME).lock_within(limit).await.expect_err("a replica");
    assert!(started.elapsed() >= limit, "{:?}: {error}", started.elapsed());
    assert!(matches!(error, AcquireError::Store(_)) && error.to_string().contains("READONLY"), "{error}");
    redis.promote().expect("the master again");
    keeper.mutex(NAME).lock_within(secs(20)).await.expect("free").release().await.expect("held");
    keeper.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn masterdown_is_outwaited() {
    let (redis, other) = (Redis::start().expect("started"), Redis::start().expect("started"));
    other.follow(&redis).expect("in step");
    let lose = || {
        promote_in_step(&other)?;
        redis.follow(&other)?;
        set(&redis, "replica-serve-stale-data", "no")?;
        other.process().kill();
        Ok(())
    };
    outwaits(&redis.url(), ("MASTERDOWN", "wait for the failover"), lose, || redis.promote()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn too_few_replicas_are_outwaited() {
    let redis = Redis::start().expect("started");
    let need = |count: &str| set(&redis, "min-replicas-to-write", count);
    outwaits(&redis.url(), ("NOREPLICAS", "min-replicas-to-write"), || need("1"), || need("0")).await;
}

/// It cannot save its data, since there is a folder where the file should be.
#[tokio::test(flavor = "multi_thread")]
async fn misconf_is_outwaited() {
    let redis = Redis::start().expect("started");
    let answer = redis.command(["CONFIG", "GET", "dir"]).expect("asked");
    let in_the_way = std::path::Path::new(answer.lines().nth(1).expect("a folder")).join("dump.rdb");
    let fail = || {
        fs::create_dir(&in_the_way)?;
        set(&redis, "save", "3600 1")?;
        redis.command(["BGSAVE"]).map(drop)
    };
    let mend = || {
        fs::remove_dir(&in_the_way)?;
        redis.command(["SAVE"]).map(drop)
    };
    outwaits(&redis.url(), ("MISCONF", "free disk space"), fail, mend).await;
}

/// The script of another client does not end.
#[tokio::test(flavor = "multi_thread")]
async fn busy_is_outwaited() {
    let redis = RedisOptions::default().setting("busy-reply-threshold 20").start().expect("started");
    let client = Client::new(&redis.url()).await;
    thread::scope(|scope| {
        let stuck = scope.spawn(|| redis.command(["EVAL", "while true do end", "0"]));
        let runtime = tokio::runtime::Handle::current();
        let waiting = tokio::task::block_in_place(|| {
            runtime.block_on(client.is_told("BUSY", "SCRIPT KILL"));
            let waiting = runtime.block_on(client.waits());
            redis.command(["SCRIPT", "KILL"]).expect("killed");
            waiting
        });
        stuck.join().expect("no panic").expect_err("killed");
        tokio::task::block_in_place(|| runtime.block_on(client.goes_on(waiting)));
    });
}

/// How often the servers of a cluster have answered with this error.
fn answered(cluster: &RedisCluster, code: &str) -> u64 {
    let name = format!("errorstat_{code}");
    let count =
        |server: &Redis| server.info("errorstats", &name).ok()?.strip_prefix("count=")?.parse::<u64>().ok();
    cluster.servers().iter().filter_map(count).sum::<u64>()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slot_that_nobody_serves_is_outwaited() {
    let cluster = RedisCluster::start().expect("started");
    let slot = cluster.slot_of(&format!("{{{NAME}}}")).expect("asked");
    let master = &cluster.servers()[cluster.master_of(slot).expect("served")];
    let order = |order: &str| master.command(["CLUSTER", order, &slot.to_string()]).map(drop);
    let (drop_it, serve_it) = (|| order("DELSLOTS"), || order("ADDSLOTS"));
    outwaits(&cluster.url(), ("CLUSTERDOWN", "cluster info"), drop_it, serve_it).await;
}

/// Every error that a moving slot causes, one after the other.
#[tokio::test(flavor = "multi_thread")]
async fn every_step_of_a_move_is_followed() {
    let cluster = RedisCluster::start().expect("started");
    let builder = lockkeeper::builder(&cluster.url()).expect("a good URL").request_limit(secs(60));
    let keeper = builder.connect().await.expect("connected");
    let slot = cluster.slot_of(&format!("{{{NAME}}}")).expect("asked");
    let to = (cluster.master_of(slot).expect("served") + 1) % 3;
    let guard = keeper.mutex(NAME).lock().await.expect("free");
    cluster.begin_move(slot, to).expect("begun");
    // The old node does not have the key, so the new one is asked for it.
    keeper.fence(NAME).admit(guard.token()).await.expect("followed");
    assert_eq!(answered(&cluster, "ASK"), 1);

    // One of the two keys of the lock goes ahead: until the move is over, no node has both.
    assert_eq!(cluster.move_keys(slot, to, 1).expect("moved"), 1);
    let mutex = keeper.mutex(NAME);
    let waiting = tokio::spawn(async move { mutex.try_lock().await });
    timeout(secs(40), async {
        while answered(&cluster, "TRYAGAIN") < 100 {
            sleep(millis(5)).await;
        }
    })
    .await
    .expect("it tries again and again");
    assert!(!waiting.is_finished(), "{:?}", waiting.await);
    while cluster.move_keys(slot, to, 10).expect("moved") > 0 {}
    cluster.end_move(slot, to).expect("ended");
    let taken = waiting.await.expect("no panic").expect("outwaited");
    assert!(taken.is_none(), "it is held");

    // The client was redirected so far, but not told that the slot has another node. Now it is.
    let taken = keeper.mutex(NAME).try_lock().await.expect("followed");
    assert!(taken.is_none() && answered(&cluster, "MOVED") > 0, "{taken:?}");
    assert!(guard.is_held());
    guard.release().await.expect("held");
    keeper.close().await;
}
