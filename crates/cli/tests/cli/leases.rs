//! `acquire`, `renew`, `release`, `--min-hold`, elections and latches.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::world::{World, eventually};

#[test]
fn a_lease_outlives_the_commands_that_work_on_it() {
    let world = World::new();
    let done = world.run(&["acquire", "a b/ü"]);
    assert_eq!(done.code, Some(0), "{done:?}");
    let lease = done.out.strip_suffix('\n').expect("one line");
    assert!(!lease.contains(char::is_whitespace) && lease.is_ascii(), "{lease}");
    assert_eq!(world.holders("a b/ü"), 1);
    assert_eq!(world.run(&["renew", lease]).code, Some(0));
    assert_eq!(world.run_with(&["renew", "-"], &done.out).code, Some(0));
    assert_eq!(world.run(&["acquire", "a b/ü", "-n"]).code, Some(75));
    assert_eq!(world.run(&["release", lease]).code, Some(0));
    for late in ["release", "renew"] {
        let done = world.run(&[late, lease]);
        assert_eq!(done.code, Some(79), "{late}: {done:?}");
        assert!(done.err.contains(&format!("lockkeeper: {late} of ")), "{done:?}");
    }
    for nonsense in [&["release", "nonsense"][..], &["renew", "nonsense"]] {
        let done = world.run(nonsense);
        assert!(done.code == Some(64) && done.err.contains("`lockkeeper acquire` printed"), "{done:?}");
    }
}

#[test]
fn a_lease_is_not_renewed_by_itself_but_by_renew() {
    let world = World::new();
    let remaining = || world.show("x")["holders"][0]["remaining_ms"].as_u64();
    let lease = world.run(&["acquire", "x", "--lease", "1s"]).out;
    assert_eq!(world.run(&["renew", lease.trim(), "--lease", "1h"]).code, Some(0));
    assert!(remaining() > Some(3_500_000));
    assert_eq!(world.run(&["renew", lease.trim(), "--lease", "1s"]).code, Some(0));
    assert!(remaining() > Some(3_500_000), "a renewal never shortens");
    let short = world.run(&["acquire", "y", "--lease", "300ms"]).out;
    let start = Instant::now();
    assert_eq!(world.run(&["run", "y", "--", "true"]).code, Some(0));
    assert!(start.elapsed() < Duration::from_secs(20), "free after its lease");
    assert_eq!(world.run(&["release", short.trim()]).code, Some(79));
}

/// The length is that of `--lease`, else of the store's URL, else 30 s.
#[test]
fn the_stores_url_may_set_the_lease() {
    let world = World::new();
    let plain = format!("sqlite:{}", world.path("locks.db").display());
    let left = |url: &str, options: &[&str]| {
        let args = [&["--store", url, "acquire", "x", "--json"], options].concat();
        let done = world.run(&args);
        let told: Value = serde_json::from_str(&done.out).unwrap_or_else(|error| panic!("{error}: {done:?}"));
        assert_eq!(world.run(&["release", told["lease"].as_str().expect("text")]).code, Some(0));
        Duration::from_millis(told["expires_in_ms"].as_u64().expect("a number"))
    };
    let near = |left: Duration, seconds: u64| {
        let lease = Duration::from_secs(seconds);
        assert!(left <= lease && left > lease * 3 / 4, "{left:?} of {seconds} s");
    };
    near(left(&plain, &[]), 30);
    near(left(&format!("{plain}?lease=10m"), &[]), 600);
    near(left(&format!("{plain}?lease=10m"), &["--lease", "1h"]), 3600);
    for wrong in ["?lease=soon", "?lease=1ms", "?lease=20y", "?colour=red"] {
        let done = world.run(&["--store", &format!("{plain}{wrong}"), "list"]);
        assert!(done.code == Some(64) && done.err.contains("lease"), "{wrong}: {done:?}");
    }
}

#[test]
fn acquire_tells_all_in_json() {
    let world = World::new();
    let done = world.run(&["acquire", "x", "--json", "--lease", "10m"]);
    let told: Value = serde_json::from_str(&done.out).expect("JSON");
    let mut keys: Vec<&String> = told.as_object().expect("an object").keys().collect();
    keys.sort();
    assert_eq!(keys, ["expires_in_ms", "lease", "name", "token"]);
    assert_eq!(told["name"], "x");
    let token = told["token"].as_str().expect("text").to_owned();
    assert_eq!(world.show("x")["holders"][0]["token"], Value::from(token));
    let left = told["expires_in_ms"].as_u64().expect("a number");
    assert!((500_000..=600_000).contains(&left), "{left}");
    assert_eq!(world.run(&["release", told["lease"].as_str().expect("text")]).code, Some(0));
}

#[test]
fn min_hold_keeps_it_after_the_command() {
    let world = World::new();
    for (command, options) in
        [("run", &[][..]), ("run", &["-s"]), ("run", &["--permits", "2/2"]), ("elect", &[])]
    {
        let name = [&[command], options].concat().join("-").replace('/', "-");
        let start = Instant::now();
        let args = [&[command, &name, "--min-hold", "1s"], options, &["--", "true"]].concat();
        assert_eq!(world.run(&args).code, Some(0));
        assert!(
            world.holders(&name) == 1 || start.elapsed() >= Duration::from_secs(1),
            "the store keeps it: {name}"
        );
        // Another kind of lock only has to wait for it where all of it is held.
        let next = if options == ["--permits", "2/2"] { options } else { &[] };
        assert_eq!(world.run(&[&["run", &name], next, &["--", "true"]].concat()).code, Some(0));
        assert!(start.elapsed() >= Duration::from_secs(1), "{name}");
    }
}

#[test]
fn one_leads_and_all_can_see_who() {
    let world = World::new();
    let observer = {
        let mut observer = world.command("sh");
        observer.args(["-c", "exec \"$L\" elect --observe boss > seen"]);
        crate::world::Running::spawn(observer)
    };
    let seen = |lines: usize| {
        let text = eventually("changes", || {
            Some(world.read("seen")).filter(|text| text.matches('\n').count() >= lines)
        });
        let last = text.lines().nth(lines - 1).expect("a line").to_owned();
        serde_json::from_str::<Value>(&last).expect("JSON")
    };
    assert_eq!(seen(1)["leader"], Value::Null);
    let args =
        ["elect", "boss", "--value", "10.0.0.7:80", "--", "sh", "-c", "echo $LOCKKEEPER_TOKEN > led; read x"];
    let mut leader = world.lockkeeper(&args);
    leader.stdin(std::process::Stdio::piped());
    let mut leader = leader.spawn().expect("starts");
    let change = seen(2);
    assert_eq!(change["name"], "boss");
    assert_eq!(change["leader"]["value"], "10.0.0.7:80");
    assert_eq!(change["leader"]["token"], Value::from(world.line("led")));
    assert_eq!(world.run(&["elect", "boss", "-n", "--", "true"]).code, Some(75));
    drop(leader.stdin.take());
    assert_eq!(leader.wait().expect("ends").code(), Some(1), "read's own code at the end of its input");
    assert_eq!(seen(3)["leader"], Value::Null);
    observer.signal(Signal::SIGTERM);
    assert_eq!(observer.done().code, Some(143));
}

#[test]
fn an_observer_ends_with_its_reader() {
    let world = World::new();
    let mut shell = world.command("sh");
    shell.args(["-c", "\"$L\" elect --observe boss | head -n 1"]);
    let done = crate::world::Running::spawn(shell).done();
    assert_eq!(done.out, "{\"leader\":null,\"name\":\"boss\"}\n");
}

#[test]
fn a_latch_counts_down_to_zero() {
    let world = World::new();
    let out = |args: &[&str]| {
        let done = world.run(args);
        assert_eq!(done.code, Some(0), "{args:?}: {done:?}");
        done.out.trim().to_owned()
    };
    out(&["latch", "import", "create", "3"]);
    assert_eq!(world.run(&["latch", "import", "create", "3"]).code, Some(64));
    assert_eq!(out(&["latch", "import", "down"]), "2");
    assert_eq!(out(&["latch", "import", "show"]), "2 of 3");
    assert_eq!(world.run(&["latch", "import", "wait", "-w", "2s"]).code, Some(75));
    let waiter = world.start(&["latch", "import", "wait"]);
    assert_eq!(out(&["latch", "import", "down", "2"]), "0");
    assert_eq!(waiter.done().code, Some(0));
    out(&["latch", "import", "reset"]);
    assert_eq!(out(&["latch", "import", "show"]), "3 of 3");
    let waiter = world.start(&["latch", "import", "wait"]);
    // There is no list of a latch's waiters. A signal that comes too early would end the waiter just the same.
    waiter.signal(Signal::SIGINT);
    assert!(matches!(waiter.done().code, Some(130) | None));
    out(&["latch", "import", "delete"]);
    assert_eq!(world.run(&["latch", "import", "wait"]).code, Some(64));
}
