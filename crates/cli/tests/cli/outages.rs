//! Outages of a store that this test can stop: exit codes, and what is said of them.

use std::process::Command;

use lockkeeper_testkit::servers::Redis;

use crate::world::{Done, Running, World, eventually};

/// The command in the world's folder, on this Redis.
fn on(world: &World, redis: &Redis, args: &[&str]) -> Command {
    let mut command = world.lockkeeper(args);
    command.env("LOCKKEEPER_STORE", redis.url());
    command
}

fn run(world: &World, redis: &Redis, args: &[&str]) -> Done {
    Running::spawn(on(world, redis, args)).done()
}

fn waiters(world: &World, redis: &Redis) -> usize {
    let done = run(world, redis, &["show", "x", "--json"]);
    let view: serde_json::Value = serde_json::from_str(&done.out).unwrap_or_default();
    view["waiters"].as_array().map_or(0, Vec::len)
}

/// What the caller wants for a busy lock does not count for a store that is gone.
#[test]
fn a_store_that_is_gone_when_a_wait_ends_is_69() {
    let (world, redis) = (World::new(), Redis::start().expect("started"));
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
    redis.process().pause();
    for done in waiting.map(Running::done).into_iter().chain([latch.done()]) {
        assert_eq!(done.code, Some(69), "{done:?}");
        assert_eq!(done.err.matches("waiting goes on").count(), 1, "{done:?}");
        assert_eq!(done.err.matches("gave up after").count(), 1, "{done:?}");
        assert_eq!(done.err.lines().count(), 2, "{done:?}");
    }
    redis.process().resume();
    assert!(!world.path("ran").exists());
}

/// A Redis that saves nothing, which is what this one is.
#[test]
fn what_a_store_finds_risky_is_said_once_and_not_to_a_cron_job() {
    let (world, redis) = (World::new(), Redis::start().expect("started"));
    let risk = "nothing is saved";
    // Long enough for the check, which runs beside it.
    let told = run(&world, &redis, &["run", "x", "-v", "--", "sleep", "1"]);
    assert_eq!((told.code, told.err.matches(risk).count()), (Some(0), 1), "{told:?}");
    let cron = run(&world, &redis, &["run", "x", "--", "sleep", "1"]);
    assert_eq!((cron.code, cron.err.as_str()), (Some(0), ""), "{cron:?}");
}
