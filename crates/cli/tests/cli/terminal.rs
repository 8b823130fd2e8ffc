//! Tests in a real pseudo-terminal: the line while waiting, Ctrl-C, Ctrl-Z, and the group that has the keyboard.

use std::process::Command;

use crate::{
    pty::Screen,
    world::{World, eventually},
};

fn run(world: &World, script: &str) -> Command {
    world.lockkeeper(&["run", "x", "--", "sh", "-c", script])
}

#[test]
fn the_command_has_the_keyboard() {
    let world = World::new();
    let mut screen = Screen::start(&run(&world, "echo ready; read word; echo \"got <$word>\""));
    screen.expect("ready");
    screen.keys("typed\n");
    screen.expect("got <typed>");
    assert_eq!(screen.code(), Some(0));
}

#[test]
fn control_c_reaches_the_command_once() {
    let world = World::new();
    let script = "trap 'echo INT >> got; exit 3' INT; echo ready; while :; do sleep 0.01; done";
    let mut screen = Screen::start(&run(&world, script));
    screen.expect("ready");
    screen.keys("\u{3}");
    assert_eq!(screen.code(), Some(3));
    assert_eq!(world.read("got"), "INT\n");
    assert_eq!(world.holders("x"), 0);
}

#[test]
fn who_waits_at_a_terminal_sees_for_whom() {
    let world = World::new();
    let label = "by \u{1b}[31mhand";
    let lease = world.run(&["acquire", "x", "--label", label]).out;
    let mut screen = Screen::start(&run(&world, "echo runs"));
    screen.expect("waiting for \"x\"");
    screen.expect("held by lockkeeper[");
    screen.expect("position 1 of 1 in the queue");
    assert!(!screen.text().contains("\u{1b}[31m") && screen.text().contains("hand"), "{:?}", screen.text());
    assert_eq!(world.run(&["release", lease.trim()]).code, Some(0));
    screen.expect("runs");
    assert_eq!(screen.code(), Some(0));
}

#[test]
fn who_waits_in_a_pipe_sees_nothing() {
    let world = World::new();
    let lease = world.run(&["acquire", "x"]).out;
    let run = world.start_run(&["x"], "true");
    eventually("a waiter", || (world.waiters("x") == 1).then_some(()));
    // Longer than a person at a terminal would have to wait for the first line.
    std::thread::sleep(std::time::Duration::from_millis(600));
    assert_eq!(world.run(&["release", lease.trim()]).code, Some(0));
    let done = run.done();
    assert_eq!((done.code, done.out.as_str(), done.err.as_str()), (Some(0), "", ""));
}

#[test]
fn control_c_while_waiting_leaves_the_line() {
    let world = World::new();
    assert_eq!(world.run(&["acquire", "x"]).code, Some(0));
    let mut screen = Screen::start(&run(&world, "touch ran"));
    eventually("a waiter", || (world.waiters("x") == 1).then_some(()));
    screen.keys("\u{3}");
    assert_eq!(screen.code(), Some(130));
    assert_eq!(world.waiters("x"), 0);
    assert!(!world.path("ran").exists());
}

#[test]
fn a_script_has_the_keyboard_back_afterwards() {
    let world = World::new();
    let script = "\"$L\" run x -- sh -c 'read a; echo \"inner <$a>\"'; read b; echo \"outer <$b>\"";
    let mut shell = world.command("sh");
    shell.args(["-c", script]);
    let mut screen = Screen::start(&shell);
    screen.keys("one\n");
    screen.expect("inner <one>");
    screen.keys("two\n");
    screen.expect("outer <two>");
    assert_eq!(screen.code(), Some(0));
}

#[test]
fn a_killed_command_leaves_a_usable_terminal() {
    let world = World::new();
    let script = "\"$L\" run x -- sh -c 'stty -echo; kill -9 $$'; echo \"code $?\"; stty -a";
    let mut shell = world.command("sh");
    shell.args(["-c", script]);
    let mut screen = Screen::start(&shell);
    screen.expect("code 137");
    assert_eq!(screen.code(), Some(0));
    eventually("the modes", || screen.text().contains("isig").then_some(()));
    assert!(!screen.text().contains("-echo "), "{}", screen.text());
}

#[test]
fn a_pager_behind_a_pipe_keeps_the_keyboard() {
    let world = World::new();
    let mut shell = world.command("sh");
    let script =
        "\"$L\" run x -- sh -c 'echo from-cmd; sleep 0.3' | { cat; read w < /dev/tty; echo \"pager <$w>\"; }";
    shell.args(["-c", script]);
    let mut screen = Screen::start(&shell);
    screen.expect("from-cmd");
    screen.keys("key\n");
    screen.expect("pager <key>");
    assert_eq!(screen.code(), Some(0));
}

#[test]
fn a_command_in_a_pipe_gets_the_keyboard_when_it_asks() {
    let world = World::new();
    let mut shell = world.command("sh");
    shell.args(["-c", "\"$L\" run x -- sh -c 'read w < /dev/tty; echo \"got <$w>\"' | cat; exit 5"]);
    let mut screen = Screen::start(&shell);
    screen.keys("key\n");
    screen.expect("got <key>");
    assert_eq!(screen.code(), Some(5));
}

#[test]
fn control_z_stops_the_job_and_fg_continues_it() {
    let world = World::new();
    let mut shell = world.command("bash");
    shell.args(["--norc", "--noprofile", "-i"]).env("PS1", "$ ");
    let mut screen = Screen::start(&shell);
    screen.keys("\"$L\" run x -- sh -c 'echo up; read w; echo \"got <$w>\"'\n");
    screen.expect("up\r\n");
    screen.keys("\u{1a}");
    screen.expect("lockkeeper: stopped; bring it to the foreground within");
    screen.expect("Stopped");
    assert_eq!(world.holders("x"), 1, "the lease goes on");
    screen.keys("fg\n");
    // The shell shows the job's line when it goes on.
    eventually("the job again", || (screen.text().matches("run x --").count() >= 3).then_some(()));
    screen.keys("later\n");
    screen.expect("got <later>");
    screen.keys("echo code $?; exit\n");
    screen.expect("code 0");
    assert_eq!(screen.code(), Some(0));
}

#[test]
fn a_stopped_job_does_not_outlive_its_lease() {
    let world = World::new();
    let mut shell = world.command("bash");
    shell.args(["--norc", "--noprofile", "-i"]).env("PS1", "$ ");
    let mut screen = Screen::start(&shell);
    screen.keys("\"$L\" run x --lease 1s -- sh -c 'echo $$ > group; echo up; read w'\n");
    screen.expect("up\r\n");
    let group = world.line("group");
    screen.keys("\u{1a}");
    screen.expect("Stopped");
    assert_eq!(world.run(&["run", "x", "--", "true"]).code, Some(0), "the next one gets it");
    assert!(!crate::world::group_lives(&group));
    // Without a command there is nothing to continue: it ends by itself, and the shell says so.
    screen.expect("lost \"x\" while CMD ran");
    screen.keys("wait %1; echo code $?; exit\n");
    screen.expect("code 79");
    assert_eq!(screen.code(), Some(0));
}

#[test]
fn evict_asks_at_a_terminal() {
    let world = World::new();
    assert_eq!(world.run(&["acquire", "x"]).code, Some(0));
    for (answer, holders) in [("n\n", 1), ("\n", 1), ("y\n", 0)] {
        let mut screen = Screen::start(&world.lockkeeper(&["evict", "x", "--now", "--reason", "test"]));
        screen.expect("safe only with fencing. Evict? [y/N]");
        screen.keys(answer);
        assert_eq!(screen.code(), Some(0));
        assert_eq!(world.holders("x"), holders, "{answer:?}");
    }
}

#[test]
fn watch_shows_the_list_and_ends_with_q() {
    let world = World::new();
    assert_eq!(world.run(&["acquire", "jobs/a", "--label", "odd\u{1b}]0;title\u{7}"]).code, Some(0));
    let mut screen = Screen::start(&world.lockkeeper(&["watch"]));
    screen.expect("jobs/a");
    screen.expect("mutex");
    screen.expect("odd");
    assert!(!screen.text().contains("\u{1b}]0;title"), "{:?}", screen.text());
    assert_eq!(world.run(&["acquire", "jobs/b"]).code, Some(0));
    screen.expect("jobs/b");
    screen.keys("q");
    assert_eq!(screen.code(), Some(0));
    assert!(screen.text().contains("\u{1b}[?1049l"), "the screen is as before");
}
