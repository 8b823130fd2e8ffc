//! The stores that a build has, and its error for the others.

use crate::world::World;

/// Stores with a password, at a port on which nobody listens.
const URLS: [&str; 6] = [
    "mysql://ada:canary@127.0.0.1:1/m",
    "postgres://ada:canary@127.0.0.1:1/m",
    "redis://ada:canary@127.0.0.1:1/",
    "rediss://ada:canary@127.0.0.1:1/",
    "rediss+cluster://ada:canary@127.0.0.1:1",
    "zookeeper://ada:canary@127.0.0.1:1/",
];

/// Checks the exit code and the words of the error for each URL. They come from a file, since they hold a password.
fn each(code: i32, words: &[&str]) {
    let world = World::new();
    for url in URLS {
        std::fs::write(world.path("url"), url).expect("written");
        for command in [&["list"][..], &["run", "nightly", "--", "true"]] {
            let done = world.run(&[&["--store-file", "url"], command].concat());
            assert_eq!(done.code, Some(code), "{url}: {done:?}");
            assert!(words.iter().all(|word| done.err.contains(word)), "{url}: {done:?}");
            assert!(!done.err.contains("canary"), "{done:?}");
        }
    }
}

#[test]
#[cfg(feature = "full")]
fn the_full_command_has_every_store() {
    each(69, &["could not connect to 127.0.0.1:1: Connection refused", "check that"]);
}

#[test]
#[cfg(not(feature = "full"))]
fn what_was_left_out_names_the_feature_and_how_to_build_it() {
    each(
        64,
        &[
            "without the feature `",
            "or with full",
            "cargo install --locked --path crates/cli --features full",
        ],
    );
}
