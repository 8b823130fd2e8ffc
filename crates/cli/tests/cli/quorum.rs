//! `lockkeeper quorum`, on SQLite files: founding, looking, having a member vote again that was removed, and replacing one.

use serde_json::Value;

use crate::world::{Done, World};

const URL: &str = "quorum:max_lease=1s,lease=1s,sqlite:a.db,sqlite:b.db,sqlite:c.db";

fn quorum(world: &World, words: &[&str]) -> Done {
    let all: Vec<&str> = ["--store", URL, "quorum"].iter().chain(words).copied().collect();
    world.run(&all)
}

fn votes(done: &Done) -> Vec<bool> {
    let shown: Value = serde_json::from_str(&done.out).unwrap_or_else(|error| panic!("{error}: {done:?}"));
    let members = shown.as_array().expect("an array");
    members.iter().map(|member| member["votes"].as_bool().expect("it says so")).collect()
}

#[test]
fn a_quorum_is_founded_and_its_members_come_back() {
    let world = World::new();
    let new = quorum(&world, &["show", "--json"]);
    assert_eq!((new.code, votes(&new)), (Some(1), vec![false; 3]), "{new:?}");
    let refused = world.run(&["--store", URL, "run", "-n", "nightly", "--", "true"]);
    assert_eq!(refused.code, Some(69), "{refused:?}");
    assert!(refused.err.contains("lockkeeper quorum rejoin"), "{refused:?}");
    let founded = quorum(&world, &["found"]);
    assert_eq!(founded.code, Some(0), "{founded:?}");
    assert!(
        founded.err.contains("it is watched for 1") && founded.err.contains("all members vote"),
        "{founded:?}"
    );
    assert_eq!(votes(&quorum(&world, &["show", "--json"])), [true; 3]);
    let again = quorum(&world, &["found", "--fresh"]);
    assert!(again.code == Some(64) && again.err.contains("already"), "{again:?}");

    for name in ["b.db", "b.db-wal", "b.db-shm"] {
        drop(std::fs::remove_file(world.path(name)));
    }
    let lost = quorum(&world, &["show"]);
    assert!(lost.code == Some(1) && lost.out.contains("may have lost its data"), "{lost:?}");
    assert!(
        lost.out.contains("does not vote for 1") && lost.out.contains("more while a client watches"),
        "{lost:?}"
    );
    let run = world.run(&["--store", URL, "run", "nightly", "--", "true"]);
    assert_eq!(run.code, Some(0), "two vote: {run:?}");
    let joined = quorum(&world, &["rejoin"]);
    assert_eq!(joined.code, Some(0), "{joined:?}");
    let shown = quorum(&world, &["show", "--json"]);
    assert_eq!((shown.code, votes(&shown)), (Some(0), vec![true; 3]), "{shown:?}");
}

#[test]
fn a_member_is_replaced() {
    let world = World::new();
    assert_eq!(quorum(&world, &["found", "--fresh"]).code, Some(0));
    let replaced = quorum(&world, &["replace", "2", "sqlite:d.db"]);
    assert_eq!(replaced.code, Some(0), "{replaced:?}");
    let old = world.run(&["--store", URL, "run", "nightly", "--", "true"]);
    assert!(old.code == Some(64) && old.err.contains("d.db by now"), "{old:?}");
    let run = world.run(&["--store", &URL.replace("b.db", "d.db"), "run", "nightly", "--", "true"]);
    assert_eq!(run.code, Some(0), "{run:?}");
    for (words, word) in [
        (["replace", "sqlite:x.db", "sqlite:y.db"], "not in the quorum's URL"),
        (["replace", "sqlite:b.db", "sqlite:c.db"], "already"),
    ] {
        let refused = quorum(&world, &words);
        assert!(refused.code == Some(64) && refused.err.contains(word), "{refused:?}");
    }
    let other = world.run(&["--store", "sqlite:a.db", "quorum", "show"]);
    assert!(other.code == Some(64) && other.err.contains("no quorum"), "{other:?}");
}

#[test]
fn a_dead_member_is_shown_and_replaced() {
    let world = World::new();
    std::fs::create_dir(world.path("disk")).expect("made");
    let url = URL.replace("b.db", "disk/b.db");
    let quorum = |url: &str, words: &[&str]| {
        let all: Vec<&str> = ["--store", url, "quorum"].iter().chain(words).copied().collect();
        world.run(&all)
    };
    assert_eq!(quorum(&url, &["found", "--fresh"]).code, Some(0));
    std::fs::remove_dir_all(world.path("disk")).expect("removed");
    let shown = quorum(&url, &["show"]);
    let rows: Vec<&str> = shown.out.lines().collect();
    assert!(shown.code == Some(1) && rows.len() == 3, "{shown:?}");
    assert!(rows[1].contains("does not answer"), "{shown:?}");
    assert!(rows[0].contains(" votes") && rows[2].contains(" votes"), "{shown:?}");
    let replaced = quorum(&url, &["replace", "2", "sqlite:d.db"]);
    assert!(replaced.code == Some(0) && replaced.err.contains("the new server votes"), "{replaced:?}");
    let new = url.replace("disk/b.db", "d.db");
    let shown = quorum(&new, &["show", "--json"]);
    assert_eq!((shown.code, votes(&shown)), (Some(0), vec![true; 3]), "{shown:?}");
    let run = world.run(&["--store", &new, "run", "nightly", "--", "true"]);
    assert_eq!(run.code, Some(0), "{run:?}");
}
