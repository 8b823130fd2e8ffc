//! Signals from outside, while waiting and while CMD runs, to one process and to the group.

use std::os::unix::process::CommandExt;

use nix::sys::signal::{Signal, killpg};

use crate::world::{Running, World, eventually};

/// A script that writes the signals it gets, in order, and ends with 3 at TERM.
const LISTENER: &str = "for s in INT HUP QUIT USR1 USR2; do trap \"echo $s >> got\" $s; done; \
    trap 'echo TERM >> got; exit 3' TERM; echo > ready; while :; do sleep 0.01; done";

#[test]
fn every_signal_reaches_the_command() {
    let world = World::new();
    let run = world.start_run(&["x"], LISTENER);
    world.line_or_empty("ready");
    for signal in [Signal::SIGINT, Signal::SIGHUP, Signal::SIGQUIT, Signal::SIGUSR1, Signal::SIGUSR2] {
        run.signal(signal);
        let word = signal.as_str().trim_start_matches("SIG").to_owned();
        eventually(&word, || world.read("got").lines().any(|line| line == word).then_some(()));
    }
    run.signal(Signal::SIGTERM);
    assert_eq!(run.done().code, Some(3));
    assert_eq!(world.holders("x"), 0);
}

#[test]
fn a_signal_to_the_whole_group_reaches_the_command_once() {
    let world = World::new();
    let run = world.start_run(&["x"], LISTENER);
    world.line_or_empty("ready");
    killpg(run.pid(), Signal::SIGTERM).expect("the group lives");
    assert_eq!(run.done().code, Some(3));
    assert_eq!(world.read("got"), "TERM\n");
}

#[test]
fn a_signal_while_waiting_leaves_the_line() {
    let world = World::new();
    let lease = world.run(&["acquire", "x"]).out;
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
        let run = world.start_run(&["x"], "touch ran");
        eventually("a waiter", || (world.waiters("x") == 1).then_some(()));
        run.signal(signal);
        assert_eq!(run.done().code, Some(128 + signal as i32));
        assert_eq!(world.waiters("x"), 0, "{signal}");
    }
    assert_eq!(world.run(&["release", lease.trim()]).code, Some(0));
    assert!(!world.path("ran").exists());
}

/// The signals that a job ignores because of `nohup`, or of a script that puts it into the background.
const SPARED: [Signal; 3] = [Signal::SIGHUP, Signal::SIGINT, Signal::SIGQUIT];

/// Starts `lockkeeper run x -- sh -c SCRIPT` with those signals ignored.
fn start_spared(world: &World, script: &str) -> Running {
    let mut shell = world.command("sh");
    shell.args(["-c", "trap '' HUP INT QUIT; exec \"$L\" run x -- sh -c \"$1\"", "sh", script]);
    Running::spawn(shell)
}

#[test]
fn what_was_ignored_stays_ignored() {
    let world = World::new();
    let run = start_spared(
        &world,
        "trap 'exit 3' TERM; kill -HUP $$; kill -INT $$; kill -QUIT $$; echo > ready; \
         while :; do sleep 0.01; done",
    );
    world.line_or_empty("ready");
    SPARED.iter().for_each(|signal| run.signal(*signal));
    run.signal(Signal::SIGTERM);
    assert_eq!(run.done().code, Some(3), "only TERM was for it");
}

#[test]
fn who_ignores_a_signal_waits_on() {
    let world = World::new();
    let lease = world.run(&["acquire", "x"]).out;
    let run = start_spared(&world, "exit 4");
    eventually("a waiter", || (world.waiters("x") == 1).then_some(()));
    SPARED.iter().for_each(|signal| run.signal(*signal));
    assert_eq!(world.run(&["release", lease.trim()]).code, Some(0));
    assert_eq!(run.done().code, Some(4));
}

#[test]
fn the_command_has_a_group_of_its_own_and_our_stdin() {
    let world = World::new();
    let mut cat =
        world.lockkeeper(&["run", "x", "--", "sh", "-c", "ps -o pgid= -p $$ > group; echo $$ > pid; cat"]);
    cat.process_group(0).stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::piped());
    let mut child = cat.spawn().expect("starts");
    std::io::Write::write_all(&mut child.stdin.take().expect("piped"), b"through\n").expect("written");
    let output = child.wait_with_output().expect("ends");
    assert_eq!(output.stdout, b"through\n");
    assert_eq!(world.line("group"), world.line("pid"));
}

impl World {
    /// Waits until the file is there with a line, which may be empty.
    fn line_or_empty(&self, name: &str) {
        drop(self.line(name));
    }
}
