//! Programs that end without `close`: their holds are free when they are gone (I16), and no end takes long (I17).
//!
//! The programs are those of `src/bin/exits.rs`.
#![cfg(target_os = "linux")]

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    process::{Child, ChildStdout, Command, Stdio},
    time::{Duration, Instant},
};

use lockkeeper::Keeper;
use lockkeeper_testkit::{
    proxy::Proxy,
    servers::{MariaDb, Postgres, Redis, RedisCluster, RedisSentinel, ZooKeeper},
};
use rustix::process::{Pid, Signal, kill_process};

const PROGRAM: &str = env!("CARGO_BIN_EXE_exits");

/// No program takes longer to end, even on a busy machine. It is far below the leases that would end by themselves.
const SOON: Duration = Duration::from_secs(8);

/// How long an end waits at most.
const WAIT: Duration = Duration::from_millis(500);

/// A program that holds its locks.
struct Ending {
    child: Child,
    out: BufReader<ChildStdout>,
    since: Instant,
}

impl Ending {
    /// Starts the program and waits until it holds.
    fn start(way: &str, url: &str, name: &str) -> Self {
        let mut this = Self::begin(way, url, name);
        this.until_held();
        this
    }

    fn until_held(&mut self) {
        let mut line = String::new();
        self.out.read_line(&mut line).expect("it says something");
        assert_eq!(line, "held\n");
        self.since = Instant::now();
    }

    /// Reads its output up to a line with these words.
    fn until_said(&mut self, words: &str) {
        let mut line = String::new();
        while !line.contains(words) {
            line.clear();
            assert_ne!(self.out.read_line(&mut line).expect("it says something"), 0, "it ended");
        }
    }

    fn begin(way: &str, url: &str, name: &str) -> Self {
        let mut command = Command::new(PROGRAM);
        command.args([way, url, name]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("it starts");
        let out = BufReader::new(child.stdout.take().expect("piped"));
        Self { child, out, since: Instant::now() }
    }

    /// Tells the program to end.
    fn tell(&mut self) {
        self.since = Instant::now();
        self.child.stdin.take().expect("piped").write_all(b"\n").expect("it listens");
    }

    fn signal(&mut self, signal: Signal) {
        self.since = Instant::now();
        let id = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw).expect("a process");
        kill_process(id, signal).expect("it lives");
    }

    /// Waits until it has ended, and says how long that took.
    fn end(self) -> Duration {
        self.last_words().1
    }

    /// The same, with its output until then.
    fn last_words(mut self) -> (String, Duration) {
        let mut words = String::new();
        self.out.read_to_string(&mut words).expect("it ends");
        let took = self.since.elapsed();
        let status = self.child.wait().expect("it ended");
        assert!(status.code().is_some(), "{status}");
        (words, took)
    }
}

impl Drop for Ending {
    fn drop(&mut self) {
        // It has ended, unless the test failed.
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// The ways that have tests of their own.
const SPECIAL: [&str; 7] = [
    "told",
    "told_before_renewals",
    "refused",
    "partly_refused",
    "min_hold",
    "min_hold_released",
    "signalled",
];

fn ways() -> Vec<String> {
    let ways = Command::new(PROGRAM).arg("ways").output().expect("it runs").stdout;
    let ways = String::from_utf8(ways).expect("text");
    ways.lines().filter(|way| !SPECIAL.contains(way)).map(str::to_owned).collect()
}

/// Lists the names with this `prefix` that are held or waited for.
async fn held(keeper: &Keeper, prefix: &str) -> Vec<String> {
    let page = keeper.list(prefix, None, 1000).await.expect("asked");
    page.resources.iter().map(|view| view.name.to_string()).collect()
}

/// Runs all ways against a store, and lists those that left something behind, or whose end waited for no answer.
async fn nothing_is_left_by_any_way(url: &str) {
    // The disk of a shared machine can stand still for seconds.
    let builder = lockkeeper::builder(url).expect("a good URL").request_limit(Duration::from_secs(20));
    let keeper = builder.connect().await.expect("connected");
    let mut left = Vec::new();
    for way in ways() {
        for attempt in 1.. {
            let prefix = format!("{way}/{attempt}");
            let took = Ending::start(&way, url, &prefix).end();
            let count = held(&keeper, &prefix).await.len();
            println!("{way}: {took:?}");
            assert!(took < SOON, "{way}: {took:?}");
            if count == 0 && took < WAIT {
                break;
            }
            // On a busy machine the answer may come later than anybody waits, but not every time.
            if took < WAIT || attempt == 5 {
                left.push(format!("{way} left {count} locks after {took:?}"));
                break;
            }
        }
    }
    assert!(left.is_empty(), "{left:#?}");
}

#[tokio::test]
async fn i16_nothing_stays_held_on_redis() {
    let redis = Redis::start().expect("started");
    nothing_is_left_by_any_way(&redis.url()).await;
}

#[tokio::test]
async fn i16_nothing_stays_held_on_a_cluster() {
    let cluster = RedisCluster::start().expect("started");
    nothing_is_left_by_any_way(&cluster.url()).await;
}

#[tokio::test]
async fn i16_nothing_stays_held_behind_sentinels() {
    let sentinel = RedisSentinel::start().expect("started");
    nothing_is_left_by_any_way(&sentinel.url()).await;
}

#[tokio::test]
async fn i16_nothing_stays_held_on_postgresql() {
    let postgres = Postgres::start().expect("started");
    nothing_is_left_by_any_way(&postgres.url()).await;
}

#[tokio::test]
async fn i16_nothing_stays_held_on_mariadb() {
    let mariadb = MariaDb::start().expect("started");
    nothing_is_left_by_any_way(&mariadb.url()).await;
}

/// Opening a connection may take longer than anybody waits.
#[tokio::test]
async fn i16_the_last_leave_takes_the_connection_for_renewals() {
    let redis = Redis::start().expect("started");
    let proxy = Proxy::start(redis.address()).expect("started");
    let keeper = lockkeeper::connect(&redis.url()).await.expect("connected");
    let mut program = Ending::start("told", &format!("redis://{}", proxy.address()), "stock");
    // Requests, messages, and after a second renewals.
    while proxy.accepted() < 3 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    program.tell();
    program.end();
    assert_eq!(held(&keeper, "stock").await, [""; 0]);
    assert_eq!(proxy.accepted(), 3);
}

/// No request of the program is answered in time, but the leave is written at once.
#[tokio::test]
async fn i16_the_last_leave_reaches_a_far_server() {
    let redis = Redis::start().expect("started");
    let proxy = Proxy::start(redis.address()).expect("started");
    let keeper = lockkeeper::connect(&redis.url()).await.expect("connected");
    let url = format!("redis://{}", proxy.address());
    let mut program = Ending::start("told_before_renewals", &url, "stock");
    let since = Instant::now();
    // Requests, messages, and soon renewals.
    while proxy.accepted() < 3 && since.elapsed() < Duration::from_secs(3) {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    // The server greets it.
    tokio::time::sleep(Duration::from_millis(300)).await;
    proxy.delay(Duration::from_millis(260));
    program.tell();
    let took = program.end();
    assert_eq!(held(&keeper, "stock").await, [""; 0], "{took:?}");
}

#[tokio::test]
async fn i16_nothing_stays_held_on_zookeeper() {
    let zookeeper = ZooKeeper::start().expect("started");
    nothing_is_left_by_any_way(&zookeeper.url()).await;
}

/// The session of such a hold lasts as long as its lease of 30 s, unless the keeper replaces it before the end.
#[tokio::test]
async fn i16_a_minimum_hold_ends_in_time_on_zookeeper() {
    let zookeeper = ZooKeeper::start().expect("started");
    let keeper = lockkeeper::connect(&zookeeper.url()).await.expect("connected");
    for way in ["min_hold", "min_hold_released"] {
        let took = Ending::start(way, &zookeeper.url(), way).end();
        assert!(!held(&keeper, way).await.is_empty(), "{way}: it is free before the minimum hold");
        let ended = Instant::now();
        while !held(&keeper, way).await.is_empty() {
            assert!(
                ended.elapsed() < Duration::from_secs(10),
                "{way}: held for too long; the end took {took:?}"
            );
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        println!("{way}: {took:?}, free after {:?}", ended.elapsed());
    }
}

/// Here the end of a process frees its holds, so this shows only that every end comes soon.
#[tokio::test]
async fn i17_every_end_comes_soon_on_sqlite() {
    let folder = tempfile::tempdir().expect("a folder");
    nothing_is_left_by_any_way(&format!("sqlite:{}", folder.path().join("locks.db").display())).await;
}

/// The server went silent after the last request: half a second and no more.
#[test]
fn i17_a_silent_store_delays_the_end_by_half_a_second() {
    let redis = Redis::start().expect("started");
    let proxy = Proxy::start(redis.address()).expect("started");
    let mut program = Ending::start("told", &format!("redis://{}", proxy.address()), "stock");
    proxy.pause(true);
    program.tell();
    let took = program.end();
    proxy.pause(false);
    assert!(took > Duration::from_millis(450) && took < Duration::from_secs(3), "{took:?}");
}

/// A connection broke before the end, and the store is well.
#[tokio::test]
async fn i16_a_broken_connection_leaves_nothing_held() {
    let redis = Redis::start().expect("started");
    let proxy = Proxy::start(redis.address()).expect("started");
    let keeper = lockkeeper::connect(&redis.url()).await.expect("connected");
    let mut program = Ending::start("refused", &format!("redis://{}", proxy.address()), "stock");
    proxy.cut_all();
    program.tell();
    program.until_held();
    let took = program.end();
    assert_eq!(held(&keeper, "stock").await, [""; 0], "{took:?}");
}

/// One node of a cluster does not answer. Holds on another one are freed.
#[tokio::test]
async fn i16_a_silent_node_leaves_nothing_held_on_another() {
    let cluster = RedisCluster::start().expect("started");
    let is_silent = |name: &str| {
        let slot = cluster.slot_of(&format!("{{{name}}}")).expect("asked");
        cluster.master_of(slot).expect("served") == 0
    };
    let names: Vec<String> = (0..100).map(|number| format!("stock/{number}")).collect();
    let (silent, other): (Vec<_>, Vec<_>) = names.iter().partition(|name| is_silent(name));
    let keeper = lockkeeper::connect(&cluster.url()).await.expect("connected");
    let mut program = Ending::start("partly_refused", &cluster.url(), &format!("{} {}", other[0], silent[0]));
    cluster.servers()[0].process().pause();
    // Its replica must not take over.
    cluster.servers()[3].process().pause();
    program.tell();
    program.until_held();
    let took = program.end();
    let left = keeper.inspect(other[0]).await.expect("asked");
    cluster.servers()[3].process().resume();
    cluster.servers()[0].process().resume();
    assert!(took < SOON && left.is_none(), "{took:?} {left:?}");
}

/// A request has failed before the end, so the store is hardly waited for.
#[test]
fn i17_a_store_that_was_silent_before_the_end_delays_nothing() {
    let redis = Redis::start().expect("started");
    let proxy = Proxy::start(redis.address()).expect("started");
    let mut program = Ending::start("refused", &format!("redis://{}", proxy.address()), "stock");
    proxy.refuse(true);
    proxy.cut_all();
    program.tell();
    program.until_held();
    let took = program.end();
    assert!(took < Duration::from_millis(400), "{took:?}");
}

/// The server refuses writes for a while, as in a failover. It answers, so it is waited for as long as any other.
#[test]
fn i17_a_server_that_refuses_for_now_is_not_silent() {
    let (redis, other) = (Redis::start().expect("started"), Redis::start().expect("started"));
    let mut program = Ending::start("partly_refused", &redis.url(), "stock other");
    redis.follow(&other).expect("in step");
    program.tell();
    program.until_held();
    let took = program.end();
    assert!(took > Duration::from_millis(450) && took < Duration::from_secs(3), "{took:?}");
}

/// The example hands its office over when it is asked to end: its leader stops its work first, and nobody else begins.
#[tokio::test]
async fn the_election_ends_well_on_a_signal() {
    let redis = Redis::start().expect("started");
    let keeper = lockkeeper::connect(&redis.url()).await.expect("connected");
    for signal in [Signal::TERM, Signal::INT] {
        let mut program = Ending::begin("signalled", &redis.url(), "office");
        program.until_said("I lead");
        while keeper.inspect("office").await.expect("asked").is_none_or(|view| view.waiters.len() < 2) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        program.signal(signal);
        let (words, took) = program.last_words();
        assert!(took < SOON, "{took:?}");
        assert_eq!(held(&keeper, "office").await, [""; 0], "{signal:?}");
        let own = |line: &&str| line.starts_with("10.");
        let said: Vec<&str> =
            words.lines().filter(own).filter_map(|line| Some(line.split_once(": ")?.1)).collect();
        assert_eq!(said, ["my work has stopped", "I have resigned"], "{words}");
    }
}
