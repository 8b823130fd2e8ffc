//! The behaviour suite and refinement, on one server and on three.

use std::{path::Path, process::Command, time::Duration};

use crate::stage::Stage;

/// Long enough that a busy machine loses no session by itself.
const SESSION: Duration = Duration::from_secs(4);

fn passes(program: &str, arguments: &[&str]) {
    let output = Command::new(Path::new(program)).args(arguments).output().expect("started");
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{out}\n{err}");
}

#[test]
fn behaviour_on_one_server() {
    let stage = Stage::single(SESSION);
    passes(env!("CARGO_BIN_EXE_behaviour"), &[&stage.url()]);
}

#[test]
fn behaviour_on_three_servers() {
    // Three servers take more of a busy machine.
    let stage = Stage::ensemble(2 * SESSION);
    passes(env!("CARGO_BIN_EXE_behaviour"), &[&stage.url()]);
}

#[test]
fn refinement_on_one_server() {
    let stage = Stage::single(2 * SESSION);
    passes(env!("CARGO_BIN_EXE_refinement"), &[&stage.url(), "--seeds", "12", "--steps", "60"]);
}

#[test]
fn refinement_on_three_servers() {
    let stage = Stage::ensemble(2 * SESSION);
    passes(env!("CARGO_BIN_EXE_refinement"), &[&stage.url(), "--seeds", "6", "--steps", "60"]);
}
