//! Lost locks: no matter what happens to the store, to `lockkeeper run` or to its guardian, CMD's whole group is gone
//! before the next holder starts, and before the lease can end.

use std::{
    sync::atomic::{AtomicUsize, Ordering},
    time::{Duration, Instant},
};

use nix::sys::signal::{Signal, kill};

use crate::world::{Blocked, Running, World, eventually, group_lives};

/// A script that ignores TERM, has children that do too, and writes their group.
const STUBBORN: &str = "trap '' TERM; sleep 600 & sleep 600 & echo $$ > group; wait; wait; sleep 600";

/// How many rounds to do: 100, or as the variable says.
fn rounds() -> usize {
    std::env::var("LOCKKEEPER_ROUNDS").ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(100)
}

/// Does all rounds, some side by side, each with its number.
fn in_rounds(round: impl Fn(usize) + Sync) {
    let begun = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..10 {
            scope.spawn(|| {
                loop {
                    let number = begun.fetch_add(1, Ordering::Relaxed);
                    if number >= rounds() {
                        return;
                    }
                    round(number);
                }
            });
        }
    });
}

/// Checks many times that a stubborn CMD leaves nothing: it has the lock, the next holder waits, `trouble` happens,
/// and the next holder looks for processes of its group.
fn nothing_is_left(trouble: impl Fn(&World, &Running) + Sync, code: Option<i32>) {
    in_rounds(|_| one_round(&trouble, code));
}

fn one_round(trouble: &impl Fn(&World, &Running), code: Option<i32>) {
    let world = World::new();
    // Long enough that the guardian's reserve, a tenth of it, is more than a busy machine delays it.
    let first = world.start_run(&["x", "--lease", "4s"], STUBBORN);
    let group = world.line("group");
    let next = world.start_run(&["x"], "ps -eo pgid=,stat=,args= > after");
    eventually("the next one waits", || (world.waiters("x") == 1).then_some(()));
    trouble(&world, &first);
    let done = next.done();
    assert_eq!(done.code, Some(0), "{done:?}");
    let after = world.read("after");
    let left: Vec<&str> = after
        .lines()
        .filter(|line| {
            let mut fields = line.split_whitespace();
            fields.next() == Some(&*group) && !fields.next().unwrap_or("Z").starts_with('Z')
        })
        .collect();
    assert!(after.lines().count() > 3 && left.is_empty(), "{left:?}");
    // One that was stopped is continued by its guardian, and does not believe that it still holds.
    let done = first.done();
    assert_eq!(done.code, code, "{done:?}");
    assert_eq!(world.holders("x"), 0);
}

#[test]
fn nothing_is_left_of_a_killed_one() {
    nothing_is_left(|_, first| first.signal(Signal::SIGKILL), None);
}

/// The kill also comes in moments in which CMD is not there yet, or its guardian is not.
#[test]
fn nothing_is_left_of_one_killed_while_it_starts() {
    in_rounds(|number| {
        let world = World::new();
        // The name is unique, and stands in the command lines of all processes that are started for it.
        let mark = format!("mark-{}", world.path("x").display());
        let script = format!("trap '' TERM; sleep 600 & sleep 600 # {mark}");
        let run = world.start_run(&["x", "--lease", "2s"], &script);
        std::thread::sleep(Duration::from_micros(500) * u32::try_from(number).expect("small"));
        run.signal(Signal::SIGKILL);
        drop(run);
        assert_eq!(world.run(&["run", "x", "-w", "30s", "--", "true"]).code, Some(0));
        let list = std::process::Command::new("ps").args(["-eo", "stat=,args="]).output().expect("ps runs");
        let list = String::from_utf8_lossy(&list.stdout);
        let left: Vec<&str> =
            list.lines().filter(|line| line.contains(&mark) && !line.starts_with('Z')).collect();
        assert!(left.is_empty(), "{left:?}");
    });
}

#[test]
fn nothing_is_left_of_a_stopped_one() {
    nothing_is_left(|_, first| first.signal(Signal::SIGSTOP), Some(79));
}

#[test]
fn nothing_is_left_of_an_evicted_one() {
    let evict = |world: &World, _: &Running| {
        let done = world.run(&["evict", "x", "--yes", "--reason", "test"]);
        assert!(done.code == Some(0) && done.out.contains("evicted"), "{done:?}");
    };
    nothing_is_left(evict, Some(79));
}

#[test]
fn nothing_is_left_when_the_store_stops() {
    let stop = |world: &World, _: &Running| {
        let group = world.line("group");
        let blocked = Blocked::new(world);
        eventually("the end of the group", || (!group_lives(&group)).then_some(()));
        drop(blocked);
    };
    nothing_is_left(stop, Some(79));
}

#[test]
fn the_end_comes_before_the_lease_can_end() {
    let world = World::new();
    let run = world.start_run(&["x", "--lease", "4s"], STUBBORN);
    let group = world.line("group");
    // The last renewal comes before the store stops, so the lease ends at most 4 s from now.
    let blocked = Blocked::new(&world);
    let start = Instant::now();
    eventually("the end of the group", || (!group_lives(&group)).then_some(()));
    assert!(start.elapsed() < Duration::from_secs(4), "{:?}", start.elapsed());
    drop(blocked);
    assert_eq!(run.done().code, Some(79));
}

#[test]
fn term_comes_first_and_the_grace_is_a_sixth_of_the_lease() {
    let world = World::new();
    let polite = "trap 'echo asked >> got; sleep 0.05; echo done >> got; exit 0' TERM; echo > ready; \
        while :; do sleep 0.01; done";
    let run = world.start_run(&["x", "--lease", "2s"], polite);
    drop(world.line("ready"));
    assert_eq!(world.run(&["evict", "x", "--yes", "--reason", "test"]).code, Some(0));
    let done = run.done();
    assert_eq!(done.code, Some(79), "although CMD ended with 0: {done:?}");
    assert!(done.err.contains("evicted by an operator"), "{done:?}");
    assert_eq!(world.read("got"), "asked\ndone\n");
    // From before the start, so that the sum cannot be too short. A busy machine may take a while to start CMD, which
    // must ignore TERM by the time that it comes; and the limit comes long before the lease can end.
    let start = Instant::now();
    let done = world.start_run(&["y", "--lease", "6s", "--max-hold", "2s"], STUBBORN).done();
    assert_eq!(done.code, Some(79), "{done:?}");
    assert!(done.err.contains("max_hold") && done.err.contains("--max-hold"), "{done:?}");
    assert!(start.elapsed() > Duration::from_millis(2950), "2 s and a grace of 1: {:?}", start.elapsed());
    assert!(start.elapsed() < Duration::from_secs(6), "{:?}", start.elapsed());
    assert!(!group_lives(&world.line("group")));
}

/// The lease is long, and CMD has the lock for a moment: that is no late renewal.
#[test]
fn a_short_max_hold_is_no_sign_of_a_slow_store() {
    let world = World::new();
    let done = world.run(&["run", "x", "--max-hold", "1s", "--", "sleep", "5"]);
    assert!(done.code == Some(79) && done.err.contains("max_hold"), "{done:?}");
    assert_eq!(done.err.lines().count(), 1, "{done:?}");
}

#[test]
fn renewals_keep_it_for_longer_than_a_lease() {
    let world = World::new();
    let done = world.start_run(&["x", "--lease", "2s"], "sleep 5; exit 6").done();
    assert_eq!(done.code, Some(6), "{done:?}");
}

#[test]
fn what_forks_is_waited_for_and_what_leaves_the_group_is_not() {
    let world = World::new();
    let start = Instant::now();
    let done = world.run(&["run", "x", "--", "sh", "-c", "sleep 0.7 & exit 4"]);
    assert_eq!(done.code, Some(4));
    assert!(start.elapsed() >= Duration::from_millis(700), "the rest of its group still worked");
    let daemon = "setsid sh -c 'echo $$ > daemon; sleep 600' < /dev/null > /dev/null 2>&1 & \
        until [ -s daemon ]; do sleep 0.01; done";
    assert_eq!(world.run(&["run", "x", "--", "sh", "-c", daemon]).code, Some(0));
    assert_eq!(world.holders("x"), 0);
    let daemon = world.line("daemon");
    assert!(group_lives(&daemon), "it left the group, so it is not ours to end");
    let daemon = nix::unistd::Pid::from_raw(daemon.parse().expect("a pid"));
    nix::sys::signal::killpg(daemon, Signal::SIGKILL).expect("ended by the test");
}

#[test]
fn a_killed_guardian_is_replaced() {
    let world = World::new();
    let run = world.start_run(&["x", "--lease", "1s"], STUBBORN);
    let group = world.line("group");
    let guardian = || run.children("__guard").first().copied();
    let first = eventually("the guardian", guardian);
    kill(first, Signal::SIGKILL).expect("killed");
    let second = eventually("another guardian", || guardian().filter(|second| *second != first));
    // The guardian does not end when a service manager tells every process to.
    kill(second, Signal::SIGTERM).expect("told");
    kill(second, Signal::SIGHUP).expect("told");
    run.signal(Signal::SIGKILL);
    assert_eq!(world.run(&["run", "x", "-w", "30s", "--", "true"]).code, Some(0));
    assert!(!group_lives(&group));
    eventually("the guardian's end", || (!group_lives(&second.to_string())).then_some(()));
}

#[test]
fn a_stopped_command_keeps_its_lock() {
    let world = World::new();
    let run = world.start_run(&["x", "--lease", "2s"], "echo $$ > group; sleep 1; exit 8");
    let group = nix::unistd::Pid::from_raw(world.line("group").parse().expect("a pid"));
    nix::sys::signal::killpg(group, Signal::SIGSTOP).expect("stopped");
    assert_eq!(world.run(&["run", "x", "-w", "3s", "--", "true"]).code, Some(75), "longer than its lease");
    nix::sys::signal::killpg(group, Signal::SIGCONT).expect("continued");
    assert_eq!(run.done().code, Some(8));
}

#[test]
fn leadership_that_is_lost_is_79_too() {
    let world = World::new();
    let run = world.start(&["elect", "boss", "--lease", "1s", "--", "sh", "-c", STUBBORN]);
    let group = world.line("group");
    assert_eq!(world.run(&["evict", "boss", "--yes", "--reason", "test"]).code, Some(0));
    let done = run.done();
    assert_eq!(done.code, Some(79), "{done:?}");
    assert!(!group_lives(&group));
}
