//! Each exit code, and the one line with a remedy that every failure prints.

use crate::world::{Blocked, Done, World};

fn code(world: &World, args: &[&str]) -> Option<i32> {
    world.run(args).code
}

/// Returns the line on stderr, after checking that it is one, from us, with nothing on stdout.
fn one_line(done: &Done) -> &str {
    assert!(done.err.starts_with("lockkeeper: ") && done.err.matches('\n').count() == 1, "{done:?}");
    assert!(done.out.is_empty(), "{done:?}");
    &done.err
}

#[test]
fn the_commands_own_code_is_passed_on() {
    let world = World::new();
    for expected in [0, 1, 2, 75, 79, 255] {
        let script = format!("exit {expected}");
        assert_eq!(code(&world, &["run", "x", "--", "sh", "-c", &script]), Some(expected));
    }
}

#[test]
fn an_end_by_signal_is_128_and_the_signal() {
    let world = World::new();
    for (signal, expected) in [("TERM", 143), ("KILL", 137), ("INT", 130), ("SEGV", 139)] {
        let script = format!("kill -{signal} $$");
        assert_eq!(code(&world, &["run", "x", "--", "sh", "-c", &script]), Some(expected), "{signal}");
    }
}

#[test]
fn a_command_that_cannot_run_is_126_or_127() {
    let world = World::new();
    let done = world.run(&["run", "x", "--", "no-such-command-here"]);
    assert_eq!(done.code, Some(127));
    assert!(one_line(&done).contains("no-such-command-here"));
    std::fs::write(world.path("plain"), "text").expect("written");
    let done = world.run(&["run", "x", "--", "./plain"]);
    assert_eq!(done.code, Some(126));
    assert!(one_line(&done).contains("./plain"));
    assert_eq!(world.holders("x"), 0, "the lock is free again");
}

#[test]
fn busy_is_75_or_what_the_caller_says() {
    let world = World::new();
    let lease = world.run(&["acquire", "x"]);
    assert_eq!(lease.code, Some(0), "{lease:?}");
    let started = std::time::Instant::now();
    let done = world.run(&["run", "-n", "x", "--", "touch", "ran"]);
    assert_eq!(done.code, Some(75));
    assert!(one_line(&done).contains("\"x\" is held by lockkeeper["), "{done:?}");
    let done = world.run(&["run", "x", "-w", "2s", "--", "touch", "ran"]);
    assert_eq!(done.code, Some(75));
    assert!(one_line(&done).contains("not acquired within"));
    assert!(started.elapsed() >= std::time::Duration::from_millis(200));
    assert_eq!(code(&world, &["run", "x", "-w", "0", "--", "touch", "ran"]), Some(75));
    assert_eq!(code(&world, &["run", "x", "-n", "-E", "9", "--", "touch", "ran"]), Some(9));
    // A cron would mail every word.
    for wait in [&["-n"][..], &["-w", "2s"]] {
        let skipped = world.run(&[&["run", "x", "--skip-ok"][..], wait, &["--", "touch", "ran"]].concat());
        assert_eq!((skipped.code, &*skipped.out, &*skipped.err), (Some(0), "", ""));
        let told = world.run(&[&["run", "x", "--skip-ok", "-v"][..], wait, &["--", "touch", "ran"]].concat());
        assert_eq!(told.code, Some(0), "{told:?}");
        assert!(told.err.contains("skipped: \"x\" is held by lockkeeper["), "{told:?}");
    }
    assert_eq!(code(&world, &["acquire", "x", "-n", "--skip-ok"]), Some(64), "there would be no lease");
    let quiet = world.run(&["run", "x", "-n", "-q", "--", "touch", "ran"]);
    assert_eq!((quiet.code, quiet.err.as_str()), (Some(75), ""));
    assert!(!world.path("ran").exists());
    // The wait is over, and the queue is empty.
    assert_eq!(world.waiters("x"), 0);
}

#[test]
fn wrong_usage_is_64() {
    let world = World::new();
    let cases: &[&[&str]] = &[
        &[],
        &["dance"],
        &["run"],
        &["run", "x"],
        &["run", "x", "true"],
        &["run", "x", "--nonsense", "--", "true"],
        &["run", "x", "-w", "soon", "--", "true"],
        &["run", "x", "--lease", "0", "--", "true"],
        &["run", "x", "--lease", "1ms", "--", "true"],
        &["run", "x", "--max-hold", "0", "--", "true"],
        &["run", "x", "--max-hold", "1s", "--min-hold", "2s", "--", "true"],
        &["run", "x", "-s", "--permits", "1/2", "--", "true"],
        &["run", "", "--", "true"],
        &["run", "a\u{1b}b", "--", "true"],
        &["show", "two\nlines"],
        &["renew", "nonsense"],
        &["release", "nonsense"],
        &["latch", "x", "show"],
        &["latch", "x", "down"],
        &["evict", "held", "--reason", "test"],
        &["watch"],
        &["--store", "nothing://here", "list"],
        &["--store", "plain", "list"],
        &["--store", "sqlite:", "list"],
        &["--store-file", "missing", "list"],
    ];
    assert_eq!(world.run(&["acquire", "held"]).code, Some(0));
    for args in cases {
        let done = world.run(args);
        assert_eq!(done.code, Some(64), "{args:?}: {done:?}");
        assert!(!one_line(&done).contains('\u{1b}'));
        assert!(done.err.contains(';'), "a remedy: {}", done.err);
    }
}

#[test]
fn another_capacity_is_64() {
    let world = World::new();
    assert_eq!(code(&world, &["acquire", "x", "--permits", "1/2"]), Some(0));
    let done = world.run(&["run", "x", "--permits", "1/3", "--", "true"]);
    assert_eq!(done.code, Some(64));
    one_line(&done);
}

#[test]
fn an_unreachable_store_is_69() {
    let world = World::new();
    assert_eq!(code(&world, &["list"]), Some(0));
    let blocked = Blocked::new(&world);
    let (tried, waited) =
        (world.start(&["run", "x", "-n", "--", "true"]), world.start(&["run", "x", "--", "true"]));
    let (tried, waited) = (tried.done(), waited.done());
    drop(blocked);
    assert_eq!(tried.code, Some(69), "{tried:?}");
    one_line(&tried);
    assert_eq!(waited.code, Some(69), "{waited:?}");
    let lines: Vec<_> = waited.err.lines().collect();
    assert!(lines.len() == 2 && lines.iter().all(|line| line.starts_with("lockkeeper: ")), "{waited:?}");
    assert!(lines[0].contains("waiting goes on") && waited.out.is_empty(), "{waited:?}");
}

#[test]
fn help_version_completions_and_manual_are_0() {
    let world = World::new();
    for (args, word) in [
        (vec!["--help"], "Exit codes"),
        (vec!["run", "--help"], "--max-hold"),
        (vec!["--version"], "lockkeeper 0."),
        (vec!["completions", "bash"], "complete -F"),
        (vec!["completions", "zsh"], "#compdef lockkeeper"),
        (vec!["completions", "fish"], "complete -c lockkeeper"),
        (vec!["man"], ".TH lockkeeper"),
    ] {
        let done = world.run(&args);
        assert_eq!(done.code, Some(0), "{args:?}");
        assert!(done.out.contains(word) && done.err.is_empty(), "{args:?}: {done:?}");
    }
    for part in ["max\\-hold", "lockkeeper\\-acquire", "lockkeeper\\-latch"] {
        assert!(world.run(&["man"]).out.contains(part), "{part}");
    }
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let world = World::new();
    let done: Done = world
        .command("sh")
        .args(["-c", "\"$L\" man | head -n 1; \"$L\" list | true"])
        .output()
        .expect("sh runs")
        .into();
    assert_eq!((done.code, done.err.as_str()), (Some(0), ""), "{done:?}");
}
