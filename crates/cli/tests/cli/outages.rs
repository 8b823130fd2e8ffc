//! Outages of a store that this test can stop, and servers with risky settings: the exit codes and the warnings.

use std::{
    io::{PipeWriter, Write as _},
    os::fd::AsFd as _,
    process::Command,
    thread::sleep,
    time::Duration,
};

use crate::{
    server::Redis,
    world::{Done, Running, World, eventually},
};

/// Returns the command in the world's folder, on this Redis.
fn on(world: &World, redis: &Redis, args: &[&str]) -> Command {
    let mut command = world.lockkeeper(args);
    command.env("LOCKKEEPER_STORE", redis.url());
    command
}

fn run(world: &World, redis: &Redis, args: &[&str]) -> Done {
    Running::spawn(on(world, redis, args)).done()
}

fn waiters(world: &World, redis: &Redis) -> usize {
    count(world, redis, "waiters")
}

fn holders(world: &World, redis: &Redis) -> usize {
    count(world, redis, "holders")
}

/// How many of these `show` lists.
fn count(world: &World, redis: &Redis, of: &str) -> usize {
    let done = run(world, redis, &["show", "x", "--json"]);
    let view: serde_json::Value = serde_json::from_str(&done.out).unwrap_or_default();
    view[of].as_array().map_or(0, Vec::len)
}

/// The exit code that the caller wants for a busy lock does not count for a store that is gone.
#[test]
fn a_store_that_is_gone_when_a_wait_ends_is_69() {
    let (world, redis) = (World::new(), Redis::start());
    assert_eq!(run(&world, &redis, &["acquire", "x", "--lease", "10m"]).code, Some(0));
    assert_eq!(run(&world, &redis, &["latch", "x", "create", "1"]).code, Some(0));
    let start = |args: &[&str]| Running::spawn(on(&world, &redis, args));
    let waiting = [
        start(&["run", "x", "-w", "10s", "-E", "9", "--", "touch", "ran"]),
        start(&["run", "x", "-w", "10s", "--skip-ok", "--", "touch", "ran"]),
        start(&["acquire", "x", "-w", "10s"]),
    ];
    let latch = start(&["latch", "x", "wait", "-w", "10s"]);
    eventually("three waiters", || (waiters(&world, &redis) == 3).then_some(()));
    redis.pause();
    for done in waiting.map(Running::done).into_iter().chain([latch.done()]) {
        assert_eq!(done.code, Some(69), "{done:?}");
        assert_eq!(done.err.matches("waiting goes on").count(), 1, "{done:?}");
        assert_eq!(done.err.matches("gave up after").count(), 1, "{done:?}");
        assert_eq!(done.err.lines().count(), 2, "{done:?}");
    }
    redis.resume();
    assert!(!world.path("ran").exists());
}

/// The last answers to these waits are from before the outage, and say that the lock is held.
#[test]
fn a_store_that_is_gone_since_the_last_answer_to_a_wait_is_69() {
    let (world, redis) = (World::new(), Redis::start());
    assert_eq!(run(&world, &redis, &["acquire", "x", "--lease", "10m"]).code, Some(0));
    let start = |args: &[&str]| Running::spawn(on(&world, &redis, args));
    let waiting = [
        start(&["run", "x", "-w", "5s", "-E", "9", "--", "touch", "ran"]),
        start(&["run", "x", "-w", "5s", "--skip-ok", "--", "touch", "ran"]),
        start(&["acquire", "x", "-w", "5s", "-q"]),
    ];
    eventually("three waiters", || (waiters(&world, &redis) == 3).then_some(()));
    sleep(Duration::from_secs(2));
    redis.pause();
    for done in waiting.map(Running::done) {
        assert_eq!(done.code, Some(69), "{done:?}");
    }
    redis.resume();
    assert!(!world.path("ran").exists());
}

/// CMD is ended before the lease is over, when the guard is not lost yet.
#[test]
fn the_line_about_a_lost_lock_names_the_error_of_the_renewals() {
    let (world, redis) = (World::new(), Redis::start());
    let holder =
        Running::spawn(on(&world, &redis, &["run", "x", "-q", "--lease", "10s", "--", "sleep", "100"]));
    eventually("the holder", || (holders(&world, &redis) == 1).then_some(()));
    redis.pause();
    let done = holder.done();
    redis.resume();
    let last = done.err.lines().last().unwrap_or_default();
    assert!(last.contains("the lease ran out (") && last.contains("no answer"), "{done:?}");
}

/// Waits and renewals fail and recover one after the other.
#[test]
fn each_outage_is_said_once_and_once_when_it_is_over() {
    let (world, redis) = (World::new(), Redis::start());
    let holder = Running::spawn(on(&world, &redis, &["run", "x", "--", "sleep", "100"]));
    eventually("the holder", || (holders(&world, &redis) == 1).then_some(()));
    let script = "until [ -e enough ]; do sleep 0.1; done";
    let waiter =
        Running::spawn(on(&world, &redis, &["run", "x", "--lease", "15s", "--", "sh", "-c", script]));
    eventually("a waiter", || (waiters(&world, &redis) == 1).then_some(()));
    let pause = || {
        redis.pause();
        sleep(Duration::from_secs(8));
        redis.resume();
        sleep(Duration::from_secs(5));
    };
    pause();
    holder.signal(nix::sys::signal::Signal::SIGTERM);
    holder.done();
    eventually("the next holder", || (waiters(&world, &redis) == 0).then_some(()));
    pause();
    std::fs::write(world.path("enough"), "").expect("written");
    let done = waiter.done();
    assert_eq!(done.code, Some(0), "{done:?}");
    for words in ["waiting goes on", "renewal failed"] {
        assert_eq!(done.err.matches(words).count(), 1, "{done:?}");
    }
    assert_eq!(done.err.matches("answers again").count(), 2, "{done:?}");
}

/// Nobody reads, as after Ctrl-S or in front of `less`. The keeper's thread must go on renewing.
#[test]
fn a_stderr_that_nobody_reads_costs_no_lock() {
    let (world, redis) = (World::new(), Redis::start());
    let (reader, writer) = full_pipe();
    let mut command =
        on(&world, &redis, &["run", "x", "--lease", "15s", "--", "sh", "-c", "sleep 25; touch ran"]);
    let mut child = command.stderr(writer).spawn().expect("started");
    eventually("the holder", || (holders(&world, &redis) == 1).then_some(()));
    redis.pause();
    sleep(Duration::from_secs(8));
    redis.resume();
    eventually("the end of CMD", || world.path("ran").exists().then_some(()));
    drop(reader);
    assert_eq!(child.wait().expect("ended").code(), Some(0));
}

/// Returns a pipe that takes nothing more.
fn full_pipe() -> (std::io::PipeReader, PipeWriter) {
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
    let (reader, mut writer) = std::io::pipe().expect("a pipe");
    // A pipe with room takes a page without blocking.
    let has_room = |writer: &PipeWriter| {
        let mut ends = [PollFd::new(writer.as_fd(), PollFlags::POLLOUT)];
        poll(&mut ends, PollTimeout::ZERO).expect("polled") == 1
    };
    while has_room(&writer) {
        writer.write_all(&[b'\n'; 4096]).expect("it has room");
    }
    (reader, writer)
}

/// This Redis saves nothing, which is a risk.
#[test]
fn what_a_store_finds_risky_is_said_once_and_not_to_a_cron_job() {
    let (world, redis) = (World::new(), Redis::start());
    let risk = "nothing is saved";
    // Long enough for the check, which runs beside it.
    let told = run(&world, &redis, &["run", "x", "-v", "--", "sleep", "1"]);
    assert_eq!((told.code, told.err.matches(risk).count()), (Some(0), 1), "{told:?}");
    let cron = run(&world, &redis, &["run", "x", "--", "sleep", "1"]);
    assert_eq!((cron.code, cron.err.as_str()), (Some(0), ""), "{cron:?}");
}

/// This PostgreSQL does not sync, which is a risk.
#[cfg(feature = "full")]
#[test]
fn what_postgresql_finds_risky_is_said_once_and_not_to_a_cron_job() {
    let (world, server) = (World::new(), crate::server::Server::start("postgres"));
    let mut psql = world.command("psql");
    // The statements go one by one, because the first allows no transaction around it.
    psql.args(["--quiet", "--dbname", &server.url, "-c", "ALTER SYSTEM SET fsync = off"]);
    psql.args(["-c", "SELECT pg_reload_conf()"]);
    let set = Running::spawn(psql).done();
    assert_eq!(set.code, Some(0), "{set:?}");
    let run = |options: &[&str], script: &str| {
        let mut command = world.lockkeeper(&[options, &["run", "x", "--", "sh", "-c", script]].concat());
        command.env("LOCKKEEPER_STORE", &server.url);
        Running::spawn(command).done()
    };
    let risk = "fsync is off";
    // The server reads its settings soon, and the check runs beside CMD.
    let told = eventually("the warning", || {
        Some(run(&["-v"], "sleep 1")).filter(|done| done.code != Some(0) || done.err.contains(risk))
    });
    assert_eq!((told.code, told.err.matches(risk).count()), (Some(0), 1), "{told:?}");
    let cron = run(&[], "sleep 1");
    assert_eq!((cron.code, cron.err.as_str()), (Some(0), ""), "{cron:?}");
}
