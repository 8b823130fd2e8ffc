//! A replica takes over: what its clients keep, and what they are told of what was lost.

use std::{
    collections::HashMap,
    io,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant, SystemTime},
};

use lockkeeper::{Keeper, Lost};
use lockkeeper_core::{
    StoreErrorKind,
    store::{Verdict, Wake, WakeSink},
};
use lockkeeper_testkit::{
    asker::Asker,
    proxy::Proxy,
    servers::{MariaDb, MariaDbOptions},
};
use tokio::{sync::mpsc, time::timeout};

use crate::{millis, secs};

/// How a replica takes over without a loss. A primary that ends in an orderly way is none of these: it waits for no replica
/// any more, and answers some of the commits that did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Handover {
    /// Commits wait for the replica, and the primary is killed.
    Killed,
    /// The primary lives on, and takes no writes any more before its replica has all of them. Commits wait for nobody. Users
    /// who may write on a read-only server spoil it.
    Planned,
}

impl Handover {
    pub(crate) const ALL: [Self; 2] = [Self::Killed, Self::Planned];

    /// What has to be done before.
    pub(crate) fn prepare(self, old: &MariaDb, new: &MariaDb) -> io::Result<()> {
        if self != Self::Planned {
            old.wait_for_replicas()?;
        }
        // Commits before the server knew of that were not waited for.
        old.until_followed_by(new)
    }

    pub(crate) fn hand_over(self, old: &MariaDb, new: &MariaDb) -> io::Result<()> {
        match self {
            Self::Killed => old.process().kill(),
            Self::Planned => {
                old.sql("SET GLOBAL read_only = 1")?;
                old.until_followed_by(new)?;
            }
        }
        new.promote()
    }
}

/// A primary, its replica, and the proxy through which clients find the one that takes writes. The clients' user may write on
/// a read-only server, so only the store keeps them from it.
struct Pair {
    old: MariaDb,
    new: MariaDb,
    proxy: Proxy,
}

impl Pair {
    /// The tables are there, also on the replica.
    async fn start() -> Self {
        let old = MariaDbOptions::default().binary_log().start().expect("started");
        let proxy = Proxy::start(old.address()).expect("started");
        let keeper = lockkeeper::connect(&old.url()).await.expect("connected");
        keeper.close().await;
        old.sql("CREATE USER plain; GRANT ALL ON lockkeeper.* TO plain").expect("made");
        let new = old.replica().expect("follows");
        Self { old, new, proxy }
    }

    fn url(&self) -> String {
        self.url_as("lockkeeper")
    }

    fn url_as(&self, user: &str) -> String {
        format!("mysql://{user}@{}/lockkeeper?request_limit=1s", self.proxy.address())
    }

    async fn keeper(&self) -> Keeper {
        lockkeeper::connect(&self.url()).await.expect("connected")
    }

    /// The primary is killed, and its replica takes over.
    fn fail_over(&self) {
        self.old.process().kill();
        self.new.promote().expect("promoted");
        self.proxy.lead_to(self.new.address());
    }

    /// The clients lose their connections, and find this server from now on.
    fn lead_to(&self, server: &MariaDb) {
        self.proxy.lead_to(server.address());
        self.proxy.cut_all();
    }
}

/// When the holder in the row of this name will have ended, on the server's clock.
fn ends(server: &MariaDb, name: &str) -> u64 {
    let ends = format!("SELECT ends FROM lockkeeper_resource WHERE name = '{name}' AND holder IS NOT NULL");
    server.sql(&ends).expect("asked").parse().expect("it is held there")
}

fn holders(server: &MariaDb, name: &str) -> String {
    let held =
        format!("SELECT COUNT(*) FROM lockkeeper_resource WHERE name = '{name}' AND holder IS NOT NULL");
    server.sql(&held).expect("asked")
}

/// Asks for a lock of another name until it is told something that does not pass at once.
async fn told(keeper: &Keeper, word: &str) -> String {
    let started = Instant::now();
    loop {
        match keeper.mutex("probe").try_lock().await {
            Err(error) if error.to_string().contains(word) => return error.to_string(),
            Err(error) => assert!(started.elapsed() < secs(20), "{error}"),
            Ok(_) => panic!("it is served by a server that was replaced"),
        }
        tokio::time::sleep(millis(20)).await;
    }
}

/// Asks for a lock of another name until that is granted.
async fn until_served(keeper: &Keeper) {
    let started = Instant::now();
    while let Err(error) = keeper.mutex("probe").try_lock().await {
        assert!(started.elapsed() < secs(20), "{error}");
        tokio::time::sleep(millis(20)).await;
    }
}

/// Commits wait for the replica, so it knows the holder, the waiter and the fence, and goes on with larger tokens. The old
/// primary comes back, as a server that takes no writes: nobody is served there, and a holder that finds nothing else is told
/// that its lease ran out.
#[tokio::test(flavor = "multi_thread")]
async fn a_guard_outlives_its_primary_which_is_refused_when_it_comes_back() {
    let pair = Pair::start().await;
    pair.old.wait_for_replicas().expect("it has one");
    let (ours, theirs) = (pair.keeper().await, pair.keeper().await);
    let fence = theirs.fence("stock");
    let guard = ours.mutex("stock").lease(secs(10)).lock().await.expect("free");
    let token = guard.token();
    fence.admit(token).await.expect("the first");
    let waiter = {
        let mutex = theirs.mutex("stock").lease(secs(3));
        tokio::spawn(async move { mutex.lock().await })
    };
    pair.old.until_followed_by(&pair.new).expect("in step");
    pair.fail_over();
    // Renewals go on at the new one.
    let (before, started) = (ends(&pair.new, "stock"), Instant::now());
    while ends(&pair.new, "stock") == before {
        assert!(guard.is_held() && started.elapsed() < secs(20), "{:?}", guard.remaining());
        tokio::time::sleep(millis(20)).await;
    }
    assert!(guard.is_held() && !waiter.is_finished());
    guard.release().await.expect("held");
    let next = timeout(secs(20), waiter).await.expect("in time").expect("no panic").expect("granted");
    assert!(next.token() > token, "{} after {token}", next.token());
    fence.admit(next.token()).await.expect("larger");
    fence.admit(token).await.expect_err("a write of the first holder comes too late");
    pair.old.start_again().expect("started");
    pair.old.sql("SET GLOBAL read_only = 1").expect("set");
    let lost = {
        let next = next;
        tokio::spawn(async move { (next.lost().await, SystemTime::now(), next.token(), next.is_held()) })
    };
    pair.lead_to(&pair.old);
    let error = told(&ours, "takes no writes").await;
    assert!(error.contains("replica") && error.contains("name the primary"), "{error}");
    let late = Asker::connect_with(&pair.old.url(), WakeSink::new(|_| {})).await.expect_err("refused");
    assert!(late.is_passing() && late.kind() == StoreErrorKind::Unreachable, "{late}");
    let (why, when, last, is_held) =
        timeout(secs(20), lost).await.expect("its lease is over").expect("no panic");
    let when = when.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    assert!(why == Lost::Expired && !is_held, "{why}");
    let end = Duration::from_micros(ends(&pair.new, "stock"));
    println!("told {:?} before the lease ended", end.checked_sub(when));
    assert_eq!((holders(&pair.old, "probe"), holders(&pair.old, "stock")), ("0".into(), "1".into()));
    pair.lead_to(&pair.new);
    let next = timeout(secs(20), ours.mutex("stock").lock()).await.expect("in time").expect("granted");
    assert!(next.token() > last, "{} after {last}", next.token());
    fence.admit(next.token()).await.expect("larger");
    fence.admit(last).await.expect_err("a write of the second holder comes too late");
    ours.close().await;
    theirs.close().await;
}

/// The replica has no grant of the last moment. Its holder is told as soon as its keeper finds the new server, although the
/// lease is long. Meanwhile somebody else may hold the lock, with a larger token.
#[tokio::test(flavor = "multi_thread")]
async fn a_grant_that_no_replica_had_is_told_to_be_gone() {
    let pair = Pair::start().await;
    let (ours, theirs, fence) = (pair.keeper().await, pair.keeper().await, lockkeeper::Fence::new());
    let kept = ours.mutex("kept").lease(secs(120)).lock().await.expect("free");
    pair.old.until_followed_by(&pair.new).expect("in step");
    pair.new.sql("STOP SLAVE IO_THREAD").expect("stopped");
    let lost = ours.mutex("stock").lease(secs(120)).lock().await.expect("free");
    fence.admit(lost.token()).expect("the first");
    pair.fail_over();
    let next =
        timeout(secs(20), theirs.mutex("stock").lock()).await.expect("in time").expect("not known there");
    assert!(next.token() > lost.token(), "{} after {}", next.token(), lost.token());
    fence.admit(next.token()).expect("larger");
    fence.admit(lost.token()).expect_err("a write of the first holder comes too late");
    until_served(&ours).await;
    assert_eq!(timeout(secs(20), lost.lost()).await.expect("told at once"), Lost::Gone);
    assert!(kept.is_held() && kept.remaining() > secs(60), "{:?}", kept.remaining());
    assert!(next.is_held());
    kept.release().await.expect("held");
    next.release().await.expect("held");
    ours.close().await;
    theirs.close().await;
}

/// One connection of a keeper finds the new primary, while the old one lives on and takes writes. The others go along: every
/// lock that the old one grants from now on, the new one may grant as well.
#[tokio::test(flavor = "multi_thread")]
async fn all_connections_follow_the_first_one_to_a_new_primary() {
    let pair = Pair::start().await;
    let (sender, mut renew) = mpsc::unbounded_channel();
    let wakes = WakeSink::new(move |wake| {
        if matches!(wake, Wake::Reconfirm) {
            let _ = sender.send(());
        }
    });
    let asker = Asker::connect_with(&pair.url(), wakes).await.expect("connected");
    assert!(matches!(asker.ask_once("a", 1).await, Verdict::Granted(_)));
    pair.old.until_followed_by(&pair.new).expect("in step");
    pair.new.promote().expect("promoted");
    pair.proxy.lead_to(pair.new.address());
    // Renewals have a connection of their own, which is opened now.
    asker.store.renew(&[asker.renewal("a", 1)]).await.expect("answered");
    timeout(secs(10), renew.recv()).await.expect("told to renew everything");
    assert!(matches!(asker.ask_once("b", 2).await, Verdict::Granted(_)));
    assert_eq!((holders(&pair.old, "b"), holders(&pair.new, "b")), ("0".into(), "1".into()));
}

/// Keepers take one lock after the other until the primary is gone. The replica that takes over knows all of them.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_granted_before_a_handover_is_held_after_it() {
    for how in Handover::ALL {
        let pair = Pair::start().await;
        how.prepare(&pair.old, &pair.new).expect("in step");
        let (granted, mut taking) = (Arc::new(AtomicUsize::new(0)), Vec::new());
        for taker in 0..4 {
            let keeper = lockkeeper::connect(&pair.url_as("plain")).await.expect("connected");
            let granted = granted.clone();
            taking.push(tokio::spawn(async move {
                let mut guards = HashMap::new();
                loop {
                    let name = format!("taken/{taker}/{}", guards.len());
                    match keeper.mutex(&name).lease(secs(60)).try_lock().await {
                        Ok(guard) => drop(guards.insert(name, guard.expect("its own"))),
                        Err(error) => return (keeper, guards, error),
                    }
                    granted.fetch_add(1, Ordering::Relaxed);
                }
            }));
        }
        while granted.load(Ordering::Relaxed) < 100 {
            tokio::time::sleep(millis(1)).await;
        }
        if how != Handover::Planned {
            // The replica hears nothing of the last moment, so nothing is granted any more.
            pair.new.sql("STOP SLAVE IO_THREAD").expect("stopped");
            tokio::time::sleep(millis(200)).await;
        }
        how.hand_over(&pair.old, &pair.new).expect("replaced");
        let mut taken = Vec::new();
        for task in taking {
            taken.push(timeout(secs(20), task).await.expect("in time").expect("no panic"));
        }
        let known = "SELECT name, high_water FROM lockkeeper_resource WHERE holder IS NOT NULL";
        let known = pair.new.sql(known).expect("asked");
        let known: HashMap<&str, &str> = known.lines().filter_map(|line| line.split_once('\t')).collect();
        for (name, guard) in taken.iter().flat_map(|(_, guards, _)| guards) {
            let number = (i64::from(guard.token()) / 1024).to_string();
            assert_eq!(known.get(name.as_str()).copied(), Some(number.as_str()), "{how:?}: {name}");
        }
        let answered = granted.load(Ordering::Relaxed);
        println!("{how:?}: {answered} grants were answered, {} are known", known.len());
        pair.lead_to(&pair.new);
        for (keeper, guards, _) in taken {
            until_served(&keeper).await;
            assert!(guards.values().all(lockkeeper::Guard::is_held), "{how:?}");
            keeper.close().await;
        }
    }
}
