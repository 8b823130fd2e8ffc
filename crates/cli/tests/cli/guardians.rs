//! The command on stores with servers. When a `lockkeeper run` is killed, its guardian releases the lock on every
//! store, after the end of CMD's processes. One that is evicted is told why.

use std::process::Command;

use nix::sys::signal::Signal;

use crate::{
    server::{Link, Server},
    world::{Running, World, eventually},
};

/// A script that ignores TERM, has a child that does too, and writes their group.
const STUBBORN: &str = "trap '' TERM; sleep 600 & echo $$ > group; sleep 600";

/// Starts `lockkeeper run x --lease 5m` on a store that only the environment names.
fn start(world: &World, url: &str, options: &[&str], script: &str) -> Running {
    let args = [&["run", "x", "--lease", "5m"], options, &["--", "sh", "-c", script]].concat();
    let mut command = world.lockkeeper(&args);
    command.env("LOCKKEEPER_STORE", url);
    Running::spawn(command)
}

fn next(world: &World, url: &str, wait: &str, script: &str) -> Option<i32> {
    let mut command = world.lockkeeper(&["run", "x", "--lease", "5m", "-w", wait, "--", "sh", "-c", script]);
    command.env("LOCKKEEPER_STORE", url);
    Running::spawn(command).done().code
}

/// Checks that the next holder comes long before the end of the lease, and sees no process of CMD's group.
fn a_killed_one_frees_its_lock(url: &str) {
    let world = World::new();
    let run = start(&world, url, &[], STUBBORN);
    let group = world.line("group");
    run.signal(Signal::SIGKILL);
    assert_eq!(next(&world, url, "40s", "ps -eo pgid=,stat= > after"), Some(0));
    let after = world.read("after");
    let alive = |line: &&str| {
        let mut fields = line.split_whitespace();
        fields.next() == Some(&*group) && !fields.next().unwrap_or("Z").starts_with('Z')
    };
    assert!(after.lines().count() > 3, "{after}");
    assert_eq!(after.lines().filter(alive).collect::<Vec<_>>(), [""; 0]);
}

#[test]
fn a_killed_one_frees_its_lock_on_sqlite() {
    let world = World::new();
    a_killed_one_frees_its_lock(&format!("sqlite:{}", world.path("other.db").display()));
}

#[test]
fn a_killed_one_frees_its_lock_on_redis() {
    let server = Server::start("redis");
    a_killed_one_frees_its_lock(&server.url);
}

#[test]
fn a_killed_one_frees_its_lock_on_postgresql() {
    let server = Server::start("postgres");
    a_killed_one_frees_its_lock(&server.url);
}

#[test]
fn a_killed_one_frees_its_lock_on_mariadb() {
    let server = Server::start("mariadb");
    a_killed_one_frees_its_lock(&server.url);
}

/// Founds a quorum of these members, which allows the lease of these tests.
fn quorum_of(world: &World, members: &[String]) -> String {
    let url = format!("quorum:max_lease=10m,{}", members.join(","));
    let founded = world.run(&["--store", &url, "quorum", "found", "--fresh"]);
    assert_eq!(founded.code, Some(0), "{founded:?}");
    url
}

/// Its members have to be told, unlike files.
#[test]
fn a_killed_one_frees_its_lock_on_a_quorum_of_servers() {
    let (world, servers) = (World::new(), [(); 3].map(|()| Server::start("redis")));
    let members = servers.each_ref().map(|server| server.url.clone());
    a_killed_one_frees_its_lock(&quorum_of(&world, &members));
}

/// Each of these members frees the lock with the process, unless the guardian keeps a life line to all of them.
#[test]
fn a_killed_one_frees_its_lock_on_a_quorum_of_files() {
    let world = World::new();
    let members =
        ["a", "b", "c"].map(|name| format!("sqlite:{}", world.path(&format!("{name}.db")).display()));
    a_killed_one_frees_its_lock(&quorum_of(&world, &members));
}

/// Its session would keep the lock for a minute.
#[test]
fn a_killed_one_frees_its_lock_on_zookeeper() {
    let server = Server::start("zookeeper");
    a_killed_one_frees_its_lock(&format!("{}?session=60s", server.url));
}

/// `timeout` and shells with job control make process groups of their own, within the session.
const IN_ANOTHER_GROUP: [&str; 2] = [
    "timeout 600 sh -c 'echo $$ > work; exec sleep 600'; echo ok",
    "set -m; sh -c 'echo $$ > work; exec sleep 600' & wait",
];

/// Whether the process of this id lives, in the list that `ps -eo pid=,stat=` printed.
fn is_in(list: &str, id: &str) -> bool {
    assert!(list.lines().count() > 3, "{list}");
    list.lines().any(|line| {
        let mut fields = line.split_whitespace();
        fields.next() == Some(id) && !fields.next().unwrap_or("Z").starts_with('Z')
    })
}

fn nothing_works_in_another_group(url: &str) {
    for script in IN_ANOTHER_GROUP {
        let world = World::new();
        let run = start(&world, url, &[], script);
        let work = world.line("work");
        run.signal(Signal::SIGKILL);
        assert_eq!(next(&world, url, "40s", "ps -eo pid=,stat= > after"), Some(0));
        assert!(!is_in(&world.read("after"), &work), "{script}");
    }
}

#[test]
fn nothing_of_a_killed_one_works_in_another_group_on_sqlite() {
    let world = World::new();
    nothing_works_in_another_group(&format!("sqlite:{}", world.path("other.db").display()));
}

#[test]
fn nothing_of_a_killed_one_works_in_another_group_on_redis() {
    let server = Server::start("redis");
    nothing_works_in_another_group(&server.url);
}

/// CMD dies of the signal at once; its child does not.
#[test]
fn nothing_works_in_another_group_after_a_signal() {
    let script =
        "timeout 600 sh -c 'trap \"sleep 0.3; exit\" TERM; echo $$ > work; while :; do sleep 0.01; done'; :";
    let world = World::new();
    let run = world.start_run(&["x"], script);
    let work = world.line("work");
    run.signal(Signal::SIGTERM);
    assert_eq!(
        world.run(&["run", "x", "-w", "40s", "--", "sh", "-c", "ps -eo pid=,stat= > after"]).code,
        Some(0)
    );
    assert!(!is_in(&world.read("after"), &work));
    assert_eq!(run.done().code, Some(143));
}

/// Checks that a process that began a session of its own is not ended, and that the lock of a killed run is left to its
/// lease while that process lives.
fn what_left_keeps_the_lock(url: &str) {
    let world = World::new();
    let script = "setsid sh -c 'echo $$ > work; exec sleep 600' & echo $$ > group; wait";
    let run = start(&world, url, &[], script);
    let (group, work) = (world.line("group"), world.line("work"));
    run.signal(Signal::SIGKILL);
    eventually("the end of the group", || (!crate::world::group_lives(&group)).then_some(()));
    assert_eq!(next(&world, url, "1s", "true"), Some(75), "it may still work");
    assert!(crate::world::group_lives(&work), "it left on purpose");
    let work = nix::unistd::Pid::from_raw(work.parse().expect("a pid"));
    nix::sys::signal::kill(work, Signal::SIGKILL).expect("ended by the test");
    assert_eq!(next(&world, url, "40s", "true"), Some(0));
}

#[test]
fn what_left_the_session_of_a_killed_one_keeps_its_lock_on_sqlite() {
    let world = World::new();
    what_left_keeps_the_lock(&format!("sqlite:{}", world.path("other.db").display()));
}

#[test]
fn what_left_the_session_of_a_killed_one_keeps_its_lock_on_redis() {
    let server = Server::start("redis");
    what_left_keeps_the_lock(&server.url);
}

/// A guardian that needs long to start finds another parent than the one that started it.
#[test]
fn a_run_that_dies_before_its_guardian_has_started_frees_its_lock() {
    let (world, server) = (World::new(), Server::start("redis"));
    let mut acquire = world.lockkeeper(&["acquire", "x", "--lease", "5m"]);
    acquire.env("LOCKKEEPER_STORE", &server.url);
    let lease = Running::spawn(acquire).done().out;
    let mut gone = Command::new("true").spawn().expect("starts");
    gone.wait().expect("ends");
    let (ours, theirs) = std::os::unix::net::UnixStream::pair().expect("a pair");
    let mut guardian = world.lockkeeper(&["__guard", "100", "100", &gone.id().to_string()]);
    guardian.stdin(std::os::fd::OwnedFd::from(theirs));
    let guardian = Running::spawn(guardian);
    let orders =
        format!("until {}\nheld 300000 {} {}\ncrew {} none\n", i64::MAX, lease.trim(), server.url, gone.id());
    std::io::Write::write_all(&mut &ours, orders.as_bytes()).expect("told");
    drop(ours);
    assert_eq!(guardian.done().code, Some(0));
    assert_eq!(next(&world, &server.url, "0", "true"), Some(0));
}

/// The guardian has a warning to print, and its stderr is a pipe that is full.
#[test]
fn a_full_pipe_does_not_keep_the_lock() {
    let server = Server::start("redis");
    let other = World::new();
    for url in [server.url.clone(), format!("sqlite:{}", other.path("other.db").display())] {
        let world = World::new();
        // The first part of the script ends when the pipe has been full for a while.
        let script = "timeout 1 head -c 4000000 /dev/zero >&2; echo $$ > group; exec sleep 600";
        let run = start(&world, &url, &[], script);
        world.line("group");
        run.signal(Signal::SIGKILL);
        assert_eq!(next(&world, &url, "40s", "true"), Some(0));
    }
}

/// A service manager would wait for the guardian.
#[test]
fn a_guardian_without_a_store_ends_when_it_is_told_to() {
    let (world, server) = (World::new(), Server::start("redis"));
    let run = start(&world, &server.url, &[], "echo $$ > group; exec sleep 600");
    let group = world.line("group");
    let guardian = eventually("the guardian", || run.children("__guard").first().copied());
    drop(server);
    run.signal(Signal::SIGKILL);
    drop(run);
    eventually("the end of the group", || (!crate::world::group_lives(&group)).then_some(()));
    nix::sys::signal::kill(guardian, Signal::SIGTERM).expect("it lives");
    eventually("its end", || (!crate::world::group_lives(&guardian.to_string())).then_some(()));
}

/// A minimum hold outlives its holder, also one that was killed.
#[test]
fn a_minimum_hold_is_kept_for_a_killed_one() {
    let server = Server::start("redis");
    for (command, options) in
        [("run", &[][..]), ("run", &["-s"]), ("run", &["--permits", "2/2"]), ("elect", &[])]
    {
        let world = World::new();
        let name = [&[command], options].concat().join("-").replace('/', "-");
        let script = "echo $$ > group; exec sleep 600";
        let args =
            [&[command, &name, "--lease", "5m", "--min-hold", "4m"], options, &["--", "sh", "-c", script]]
                .concat();
        let mut command = world.lockkeeper(&args);
        command.env("LOCKKEEPER_STORE", &server.url);
        let run = Running::spawn(command);
        let group = world.line("group");
        let guardian = eventually("the guardian", || run.children("__guard").first().copied()).to_string();
        run.signal(Signal::SIGKILL);
        drop(run);
        eventually("the end of the group", || (!crate::world::group_lives(&group)).then_some(()));
        eventually("the end of the guardian", || (!crate::world::group_lives(&guardian)).then_some(()));
        let mut show = world.lockkeeper(&["show", &name]);
        show.env("LOCKKEEPER_STORE", &server.url);
        assert_eq!(Running::spawn(show).done().code, Some(0), "{name} is held");
    }
}

/// The leave of `lockkeeper run` is lost, and then `lockkeeper run` is killed.
#[test]
fn one_that_is_killed_before_its_release_frees_its_lock() {
    let (world, server) = (World::new(), Server::start("redis"));
    let link = Link::to(&server);
    let run = start(&world, &link.url, &[], "echo $$ > group; until test -e go; do sleep 0.01; done");
    world.line("group");
    link.swallow();
    std::fs::write(world.path("go"), "").expect("written");
    link.swallowed();
    run.signal(Signal::SIGKILL);
    link.pass();
    assert_eq!(next(&world, &server.url, "40s", "true"), Some(0));
}

#[test]
fn an_evicted_one_is_told_why() {
    let (redis, zookeeper, folder) = (Server::start("redis"), Server::start("zookeeper"), World::new());
    let sqlite = format!("sqlite:{}", folder.path("other.db").display());
    for url in [&sqlite, &redis.url, &zookeeper.url] {
        let world = World::new();
        let script = "echo $$ > group; exec sleep 600";
        // The run hears of the eviction within a third of its lease.
        let mut run = world.lockkeeper(&["run", "x", "--lease", "12s", "--", "sh", "-c", script]);
        run.env("LOCKKEEPER_STORE", url);
        let run = Running::spawn(run);
        world.line("group");
        let mut evict = world.lockkeeper(&["evict", "x", "--yes", "--reason", "moving to the new rack"]);
        evict.env("LOCKKEEPER_STORE", url);
        assert_eq!(Running::spawn(evict).done().code, Some(0));
        let told = run.done();
        assert_eq!(told.code, Some(79), "{told:?}");
        assert!(told.err.contains("evicted by an operator (moving to the new rack); ask"), "{told:?}");
    }
}

#[test]
fn no_secret_is_in_sight_of_others() {
    let (world, server) = (World::new(), Server::start("redis"));
    let url = format!("{}?namespace=hidden-word", server.url.trim_end_matches('/'));
    let run = start(&world, &url, &[], "echo $$ > group; exec sleep 600");
    world.line("group");
    let guardian = eventually("the guardian", || run.children("__guard").first().copied());
    for file in ["cmdline", "environ"] {
        let content = std::fs::read(format!("/proc/{guardian}/{file}")).expect("it lives");
        let content = String::from_utf8_lossy(&content).into_owned();
        assert!(!content.is_empty() && !content.contains("hidden-word"), "{file}: {content}");
    }
    run.signal(Signal::SIGTERM);
    assert_eq!(run.done().code, Some(143));
}
