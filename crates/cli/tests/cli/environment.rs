//! The sources of the store's URL, and starts from places with little around them: cron, services.

use std::process::Stdio;

use crate::world::{Done, Running, World, eventually};

#[test]
fn the_default_store_is_a_file_of_the_user() {
    let world = World::new();
    let run = |name: &str, value: &std::path::Path| -> Done {
        let mut command = world.lockkeeper(&["run", "x", "--", "true"]);
        command.env_remove("LOCKKEEPER_STORE").env(name, value).output().expect("starts").into()
    };
    assert_eq!(run("XDG_STATE_HOME", &world.path("state")).code, Some(0));
    assert!(world.path("state/lockkeeper/locks.db").exists());
    assert_eq!(run("HOME", &world.path("home")).code, Some(0));
    assert!(world.path("home/.local/state/lockkeeper/locks.db").exists());
    let nowhere = run("HOME", std::path::Path::new("not/absolute"));
    assert_eq!(nowhere.code, Some(64), "{nowhere:?}");
    assert!(nowhere.err.contains("HOME"), "{nowhere:?}");
}

/// A script with a misspelt name of its own leaves an empty variable. And `-v` names the store.
#[test]
fn no_wrong_store_is_picked_in_silence() {
    let world = World::new();
    let with = |url: &str, args: &[&str]| -> Done {
        world.lockkeeper(args).env("LOCKKEEPER_STORE", url).output().expect("starts").into()
    };
    for url in ["", " "] {
        let empty = with(url, &["run", "x", "--", "touch", "ran"]);
        assert_eq!(empty.code, Some(64), "{empty:?}");
        assert!(empty.err.contains("LOCKKEEPER_STORE is set but empty; "), "{empty:?}");
    }
    for url in ["memory:", "memory:shared"] {
        let refused = with(url, &["run", "x", "--", "touch", "ran"]);
        assert_eq!(refused.code, Some(64), "{refused:?}");
        assert!(
            refused.err.contains("within one process") && refused.err.contains("sqlite:PATH"),
            "{refused:?}"
        );
    }
    let missing = with("sqlite:no/such/folder/locks.db", &["run", "x", "--", "touch", "ran"]);
    assert_eq!(missing.code, Some(64), "{missing:?}");
    assert!(missing.err.contains("does not exist; make it") && !world.path("no").exists(), "{missing:?}");
    std::fs::write(world.path("notes.txt"), "not a database\n").expect("written");
    let text = with("sqlite:notes.txt", &["run", "x", "--", "touch", "ran"]);
    assert_eq!(text.code, Some(64), "{text:?}");
    let left = std::fs::read_dir(world.path("")).expect("read").count();
    assert_eq!((world.read("notes.txt").as_str(), left), ("not a database\n", 1), "nothing beside it");
    let store = format!("the store is sqlite:{}\n", world.path("locks.db").display());
    for args in [&["-v", "list"][..], &["show", "x", "-v"], &["run", "x", "-v", "--", "true"]] {
        let told = world.run(args);
        assert!(told.code == Some(0) && told.err.contains(&store), "{told:?}");
    }
}

/// Also a subcommand that does not connect to it, and one that fails. Those without a store have none to name.
#[test]
fn every_subcommand_that_uses_a_store_names_it_once() {
    let world = World::new();
    let store = format!("the store is sqlite:{}\n", world.path("locks.db").display());
    let lease = world.run(&["acquire", "leased"]).out;
    for args in [
        &["run", "x", "--", "true"][..],
        &["elect", "x", "--", "true"],
        &["acquire", "y", "-n"],
        &["renew", lease.trim()],
        &["release", lease.trim()],
        &["latch", "x", "create", "1"],
        &["list"],
        &["show", "x"],
        &["watch"],
        &["evict", "x", "--yes", "--reason", "test"],
        &["doctor"],
        &["schema"],
        #[cfg(feature = "quorum")]
        &["quorum", "show"],
    ] {
        let told = world.run(&[&["-v"], args].concat());
        assert_eq!(told.err.matches(&store).count(), 1, "{args:?}: {told:?}");
        assert!(!world.run(args).err.contains("the store is"), "{args:?}");
    }
    for args in [&["-v", "man"][..], &["-v", "completions", "bash"]] {
        assert_eq!(world.run(args).err, "");
    }
    // In a wrong URL, a password may stand anywhere.
    std::fs::write(world.path("url"), "sqlite:locks.db?secret=canary").expect("written");
    let wrong = world.run(&["-v", "--store-file", "url", "list"]);
    assert!(wrong.code == Some(64) && !wrong.err.contains("canary"), "{wrong:?}");
}

#[test]
fn cron_has_no_home_and_no_terminal() {
    let world = World::new();
    let mut command = world.command("setsid");
    command
        .args([
            "--wait",
            env!("CARGO_BIN_EXE_lockkeeper"),
            "run",
            "nightly",
            "-n",
            "--",
            "/bin/sh",
            "-c",
            "echo $LOCKKEEPER_NAME",
        ])
        .env_clear()
        .env("LOCKKEEPER_STORE", format!("sqlite:{}", world.path("locks.db").display()))
        .stdin(Stdio::null());
    let done: Done = command.output().expect("setsid runs").into();
    assert_eq!((done.code, done.out.as_str(), done.err.as_str()), (Some(0), "nightly\n", ""));
}

#[test]
fn the_store_can_stand_in_a_file() {
    let world = World::new();
    let url = format!("sqlite:{}\n", world.path("other.db").display());
    std::fs::write(world.path("url"), url).expect("written");
    let done = world.run(&["--store-file", "url", "run", "x", "--", "true"]);
    assert_eq!(done.code, Some(0), "{done:?}");
    assert!(world.path("other.db").exists() && !world.path("locks.db").exists());
    std::fs::write(world.path("url"), "\n").expect("written");
    assert_eq!(world.run(&["run", "x", "--store-file", "url", "--", "true"]).code, Some(64));
}

#[test]
fn secrets_are_not_shown() {
    let world = World::new();
    let url = "nostore://user:hidden-word@host/";
    std::fs::write(world.path("url"), url).expect("written");
    let by_variable: Done =
        world.lockkeeper(&["list"]).env("LOCKKEEPER_STORE", url).output().expect("starts").into();
    for done in [
        by_variable,
        world.run(&["--store-file", "url", "list"]),
        world.run(&["--store", url, "list"]),
        world.run(&[url]),
        world.run(&["list", "--nonsense", url]),
        world.run(&[&format!("--stroe={url}"), "list"]),
    ] {
        assert_eq!(done.code, Some(64), "{done:?}");
        assert!(!done.err.contains("hidden-word"), "{done:?}");
    }
}

#[test]
fn no_process_of_ours_shows_the_store_in_its_command_line() {
    let world = World::new();
    let url = format!("sqlite:{}", world.path("hidden-word.db").display());
    let mut command = world.lockkeeper(&["run", "x", "--", "sh", "-c", "echo > ready; sleep 30"]);
    command.env("LOCKKEEPER_STORE", url);
    let run = Running::spawn(command);
    drop(world.line("ready"));
    let guardians =
        eventually("the guardian", || Some(run.children("__guard")).filter(|pids| !pids.is_empty()));
    assert_eq!(guardians.len(), 1);
    let list = std::process::Command::new("ps").args(["-eo", "args="]).output().expect("ps runs");
    assert!(!String::from_utf8_lossy(&list.stdout).contains("hidden-word"));
}
