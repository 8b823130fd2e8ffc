//! The harness runs: every workload once, for a moment. Nothing here depends on how fast.

use std::process::{Command, Output};

fn bench(words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_lockkeeper-bench")).args(words).output().expect("the harness starts")
}

/// The figure in the row of the table that has these words.
fn figure(table: &str, load: &str, who: &str, what: &str) -> f64 {
    let cells = |line: &str| line.split('|').map(|cell| cell.trim().to_owned()).collect::<Vec<_>>();
    table
        .lines()
        .map(cells)
        .find(|row| row.get(1..4).is_some_and(|words| words == [load, who, what]))
        .and_then(|row| row.get(4)?.replace(',', "").parse().ok())
        .unwrap_or_else(|| panic!("no figure for {load} {who} {what} in\n{table}"))
}

#[test]
fn a_quick_run_fills_the_table_and_judges_nothing() {
    let output = bench(&["--quick"]);
    let table = String::from_utf8(output.stdout).expect("text");
    assert!(output.status.success(), "{table}{}", String::from_utf8_lossy(&output.stderr));
    assert!(!table.contains('≥') && !table.contains('≤'), "{table}");

    for load in ["w1", "w2", "w3"] {
        assert!(figure(&table, load, "lockkeeper", "lock+release/s") > 0.0);
        assert!(figure(&table, load, "tokio Mutex", "lock+release/s") > 0.0);
        assert!(figure(&table, load, "lockkeeper", "rate / tokio Mutex") > 0.0);
    }
    assert!(figure(&table, "w4", "lockkeeper", "drain of 64 waiters, ms") > 0.0);
    assert_eq!(figure(&table, "held", "lockkeeper", "locks"), 1000.0);
}

#[test]
fn requests_are_those_that_the_design_promises() {
    let output = bench(&["w1", "w2", "w3", "--quick"]);
    let table = String::from_utf8(output.stdout).expect("text");
    let each = |load, who| figure(&table, load, who, "requests each");
    // One to lock and one to release. Those of several tasks may travel together; a lock that is
    // handed on needs none; the first waiters ask how grants will reach them, which in so few
    // acquisitions can be seen.
    assert_eq!(each("w1", "lockkeeper"), 2.0);
    assert!(each("w2", "lockkeeper") <= 2.0, "{table}");
    assert!(each("w3", "lockkeeper fifo") < 3.0, "{table}");
    assert!(each("w3", "lockkeeper") < each("w3", "lockkeeper fifo"), "{table}");
}

/// A lock of a name that was used before is a transaction of two flights, and so is its release.
#[test]
fn databases_are_asked_as_often_as_the_design_promises() {
    for store in ["postgres:", "mysql:"] {
        let output = bench(&[store, "w1", "--quick"]);
        let table = String::from_utf8(output.stdout).expect("text");
        assert!(output.status.success(), "{table}{}", String::from_utf8_lossy(&output.stderr));
        let each = |what| figure(&table, "w1", "lockkeeper", what);
        assert_eq!(each("transactions at the server each"), 2.0, "{store}");
        assert_eq!(each("flights to the server each"), 4.0, "{store}");
        assert!(figure(&table, "w1", "lock table", "lock+release/s") > 0.0);
    }
}

#[test]
fn too_little_to_judge_is_no_success() {
    let output = bench(&["w3", "--rounds", "1", "--seconds", "0.05"]);
    let text = String::from_utf8(output.stdout).expect("text");
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert!(text.contains("too short to judge: w3 lockkeeper, rate / tokio Mutex"), "{text}");
}

#[test]
fn a_failure_leaves_what_was_measured_before() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("locks.db");
    // The path of the file of one of w3p's peers.
    std::fs::create_dir_all(folder.path().join("locks.db-peers/token.db")).expect("made");
    let output = bench(&[&format!("sqlite:{}", file.display()), "w4", "w3p", "w1", "--quick"]);
    let table = String::from_utf8(output.stdout).expect("text");
    let message = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{table}{message}");
    assert!(figure(&table, "w4", "lockkeeper", "drain of 64 waiters, ms") > 0.0);
    assert!(message.contains("could not measure: w3p: "), "{message}");
    assert!(!table.contains("| w1 "), "{table}");
}

#[test]
fn nonsense_and_unknown_stores_are_refused() {
    for words in [["w9"], ["nothing://user:secret@host"]] {
        let output = bench(&words);
        let message = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{message}");
        assert!(!message.is_empty() && !message.contains("secret"), "{message}");
    }
}
