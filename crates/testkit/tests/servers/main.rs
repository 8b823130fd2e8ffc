//! The servers of the test kit obey, and leave nothing behind.
#![cfg(target_os = "linux")]

mod mariadb;
mod pgbouncer;
mod postgres;

use std::{
    io::{BufRead as _, BufReader},
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant, SystemTime},
};

use lockkeeper_testkit::servers::{Redis, RedisCluster, RedisOptions, RedisSentinel, ZooKeeper};

fn seconds() -> i64 {
    SystemTime::UNIX_EPOCH.elapsed().expect("after 1970").as_secs() as i64
}

fn runs(id: u32) -> bool {
    // A zombie has no command line.
    std::fs::read(format!("/proc/{id}/cmdline")).is_ok_and(|words| !words.is_empty())
}

fn gone_in_time(id: u32) -> bool {
    let deadline = Instant::now() + Duration::from_secs(10);
    while runs(id) && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(5));
    }
    !runs(id)
}

/// A process that has started a server, and the URL that it printed.
fn started_by_another_process(server: &str) -> (Child, String) {
    let mut process = Command::new(env!("CARGO_BIN_EXE_server"))
        .arg(server)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("started");
    let mut url = String::new();
    BufReader::new(process.stdout.as_mut().expect("piped")).read_line(&mut url).expect("read");
    (process, url.trim_end().to_owned())
}

fn kill(mut process: Child) {
    process.kill().expect("it runs");
    process.wait().expect("it ended");
}

/// Removes the files that a killed process could not. Processes of its servers may still end, and write.
fn remove(folder: &Path) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while std::fs::remove_dir_all(folder).is_err() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(!folder.exists());
}

/// The output of a database's program, or its error.
fn told(command: &mut Command) -> Result<String, String> {
    let done = command.output().expect("asked");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    if done.status.success() { Ok(text(&done.stdout)) } else { Err(text(&done.stderr)) }
}

fn folder(redis: &Redis) -> PathBuf {
    redis.socket().parent().expect("it is in a folder").to_owned()
}

#[test]
fn a_panic_ends_the_server_and_removes_its_folder() {
    let redis = Redis::start().expect("started");
    let (id, folder) = (redis.process().id().expect("it runs"), folder(&redis));
    assert!(runs(id) && folder.exists());
    catch_unwind(AssertUnwindSafe(move || {
        let _redis = redis;
        panic!("on purpose");
    }))
    .expect_err("it panics");
    assert!(!runs(id) && !folder.exists());
}

#[test]
fn a_killed_test_takes_its_servers_along() {
    let (test, url) = started_by_another_process("redis");
    let port = url.trim_end_matches('/').rsplit(':').next().expect("a port").to_owned();
    let info = Command::new("redis-cli").args(["-p", &port, "INFO", "server"]).output().expect("asked");
    let info = String::from_utf8(info.stdout).expect("text");
    let value = |name: &str| info.lines().find_map(|line| line.strip_prefix(name)).expect("there").to_owned();
    let id = value("process_id:").trim().parse().expect("a number");
    kill(test);
    assert!(gone_in_time(id), "{url}");
    let file = PathBuf::from(value("config_file:").trim());
    remove(file.parent().expect("a folder"));
}

#[test]
fn redis_with_password_and_users() {
    let redis = RedisOptions::default()
        .password("canary")
        .user("app", "other", "~app:* &app:* +@all -@dangerous")
        .start()
        .expect("started");
    assert_eq!(redis.command(["SET", "app:a", "1"]).expect("allowed"), "OK");
    assert!(redis.url().starts_with("redis://:canary@127.0.0.1:"));
    let port = redis.address().port().to_string();
    let ask = |words: &[&str]| {
        let mut command = Command::new("redis-cli");
        command.args(["-p", &port, "--user", "app"]).env("REDISCLI_AUTH", "other").args(words);
        String::from_utf8(command.output().expect("asked").stdout).expect("text")
    };
    assert_eq!(ask(&["GET", "app:a"]).trim(), "1");
    for words in [&["GET", "b"][..], &["FLUSHALL"], &["SUBSCRIBE", "b"]] {
        assert!(ask(words).contains("NOPERM"), "{words:?}");
    }
    let stranger = Command::new("redis-cli").args(["-p", &port, "PING"]).output().expect("asked");
    assert!(String::from_utf8_lossy(&stranger.stdout).contains("NOAUTH"));
}

#[test]
fn redis_with_tls() {
    let redis = RedisOptions::default().tls().start().expect("started");
    assert_eq!(redis.command(["SET", "a", "1"]).expect("allowed"), "OK");
    let port = redis.address().port().to_string();
    let plain = Command::new("redis-cli").args(["-p", &port, "PING"]).output().expect("asked");
    assert!(!String::from_utf8_lossy(&plain.stdout).contains("PONG"));
    let socket = Command::new("redis-cli").arg("-s").arg(redis.socket()).arg("PING").output().expect("asked");
    assert!(String::from_utf8_lossy(&socket.stdout).contains("PONG"));
}

#[test]
fn redis_restarts_with_and_without_its_data() {
    let lasting = RedisOptions::default().append_only().start().expect("started");
    let fleeting = Redis::start().expect("started");
    for redis in [&lasting, &fleeting] {
        redis.command(["SET", "a", "1"]).expect("allowed");
        redis.restart().expect("restarted");
    }
    assert_eq!(lasting.command(["GET", "a"]).expect("allowed"), "1");
    assert_eq!(fleeting.command(["GET", "a"]).expect("allowed"), "");
    lasting.restart_empty().expect("restarted");
    assert_eq!(lasting.command(["GET", "a"]).expect("allowed"), "");
}

#[test]
fn redis_stops_and_goes_on() {
    let redis = Redis::start().expect("started");
    redis.process().pause();
    let port = redis.address().port().to_string();
    let stopped =
        Command::new("timeout").args(["0.3", "redis-cli", "-p", &port, "PING"]).status().expect("asked");
    assert!(!stopped.success(), "a stopped server does not answer");
    redis.process().resume();
    assert_eq!(redis.command(["PING"]).expect("it goes on"), "PONG");
}

#[test]
fn redis_with_a_clock_that_moves() {
    let redis = RedisOptions::default().movable_clock().start().expect("started");
    let off = || {
        let time = redis.command(["EVAL", "return redis.call('TIME')[1]", "0"]).expect("asked");
        time.parse::<i64>().expect("seconds") - seconds()
    };
    for shift in [0, 3600, -3600, 0] {
        redis.shift_clock(shift).expect("moved");
        assert!((off() - shift).abs() <= 5, "{} instead of {shift}", off());
    }
}

#[test]
fn redis_sentinels_promote_a_replica() {
    let servers = RedisSentinel::start().expect("started");
    let first = servers.master().expect("known").address();
    servers.master().expect("known").command(["SET", "a", "1"]).expect("written");
    servers.promote().expect("promoted");
    let second = servers.master().expect("known");
    assert_ne!(second.address(), first);
    assert_eq!(second.command(["GET", "a"]).expect("asked"), "1");
    // Without an order, because it is dead.
    servers.until_settled().expect("settled");
    let second = servers.master().expect("known");
    second.process().kill();
    servers.until_master_is_not(second.address()).expect("promoted by themselves");
}

#[test]
fn a_redis_cluster_moves_a_slot_and_promotes_a_replica() {
    let cluster = RedisCluster::start().expect("started");
    let slot = cluster.slot_of("{a}").expect("asked");
    let old = cluster.master_of(slot).expect("served");
    for key in ["{a}1", "{a}2", "{a}3"] {
        cluster.servers()[old].command(["SET", key, "1"]).expect("written");
    }
    let new = (old + 1) % 3;
    cluster.begin_move(slot, new).expect("begun");
    assert_eq!(cluster.move_keys(slot, new, 2).expect("moved"), 2);
    let error =
        cluster.servers()[old].command(["MGET", "{a}1", "{a}2", "{a}3"]).expect_err("half of them are gone");
    assert!(error.to_string().contains("TRYAGAIN"), "{error}");
    assert_eq!(cluster.move_keys(slot, new, 10).expect("moved"), 1);
    cluster.end_move(slot, new).expect("ended");
    assert_eq!(cluster.master_of(slot).expect("served"), new);
    cluster.servers()[old].command(["GET", "{a}1"]).expect_err("moved");
    for force in [false, true] {
        let new = cluster.promote(slot, force).expect("promoted");
        assert_eq!(cluster.servers()[new].command(["GET", "{a}1"]).expect("served"), "1");
        cluster.until_settled().expect("settled");
    }
}

#[test]
fn zookeeper_alone_restarts() {
    let server = ZooKeeper::start().expect("started");
    let node = server.leader().expect("there is one");
    assert_eq!(node.mode().as_deref(), Some("standalone"));
    node.restart().expect("restarted");
    node.until_ready().expect("ready");
    node.restart_empty().expect("restarted");
    node.until_ready().expect("ready");
}

#[test]
fn a_zookeeper_ensemble_outlives_its_leader() {
    let servers = ZooKeeper::ensemble().expect("started");
    let old = servers.leader().expect("there is one");
    old.process().kill();
    for node in servers.nodes().iter().filter(|node| node.address() != old.address()) {
        let deadline = Instant::now() + Duration::from_secs(30);
        while servers.leader().is_err() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(10));
        }
        node.until_ready().expect("serves");
    }
    assert_ne!(servers.leader().expect("a new one").address(), old.address());
    old.start_again().expect("started");
    old.until_ready().expect("ready");
    assert_eq!(old.mode().as_deref(), Some("follower"));
}
