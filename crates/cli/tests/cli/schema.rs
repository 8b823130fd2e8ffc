//! `lockkeeper schema`: SQL for the tools that administrators have. `psql` and `mariadb` run it in the tests of these
//! stores.

use std::process::Stdio;

use crate::world::{Running, World};

#[test]
fn sqlite3_makes_a_file_that_works() {
    let world = World::new();
    let printed = world.run(&["--store", "sqlite:made.db", "schema"]);
    assert_eq!(printed.code, Some(0), "{printed:?}");
    assert!(!world.path("made.db").exists(), "it only prints");
    std::fs::write(world.path("schema.sql"), &printed.out).expect("written");
    let mut sqlite = world.command("sqlite3");
    let text = std::fs::File::open(world.path("schema.sql")).expect("opened");
    sqlite.args(["-bail", "made.db"]).stdin(Stdio::from(text));
    let made = Running::spawn(sqlite).done();
    assert_eq!((made.code, made.err.as_str()), (Some(0), ""), "{made:?}");
    for _ in 0..2 {
        let done = world.run(&["--store", "sqlite:made.db", "run", "nightly", "--", "echo", "hello"]);
        assert_eq!((done.code, done.out.as_str()), (Some(0), "hello\n"), "{done:?}");
    }
    let doctor = world.run(&["--store", "sqlite:made.db", "doctor", "--json"]);
    assert!(doctor.out.contains("\"kind\":\"sqlite\""), "{doctor:?}");
}

#[test]
fn stores_without_tables_say_so() {
    let world = World::new();
    let done = world.run(&["--store", "memory:", "schema"]);
    assert!(done.code == Some(64) && done.err.contains("no tables"), "{done:?}");
    assert_eq!(done.out, "");
}

#[cfg(feature = "full")]
#[test]
fn servers_are_not_asked_and_passwords_are_not_shown() {
    let world = World::new();
    for (url, words) in [
        (
            "postgres://ada:canary@127.0.0.1:1/shop?schema=locks",
            ["CREATE TABLE \"locks\".resource", "TO \"ada\";"],
        ),
        ("mysql://ada:canary@127.0.0.1:1/shop?prefix=locks_", ["locks_resource (", "TO `ada`@`%`;"]),
    ] {
        std::fs::write(world.path("url"), url).expect("written");
        let done = world.run(&["--store-file", "url", "schema"]);
        assert!(done.code == Some(0) && words.iter().all(|word| done.out.contains(word)), "{done:?}");
        assert!(!done.out.contains("canary"), "{done:?}");
    }
    for url in ["postgres://127.0.0.1:1/shop", "mysql://127.0.0.1:1/shop"] {
        let done = world.run(&["--store", url, "schema"]);
        assert!(done.code == Some(64) && done.err.contains("names no user"), "{done:?}");
    }
    let redis = world.run(&["--store", "redis://127.0.0.1:1/", "schema"]);
    assert!(redis.code == Some(64) && redis.err.contains("redis: stores have no tables"), "{redis:?}");
}
