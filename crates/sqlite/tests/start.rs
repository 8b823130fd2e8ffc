//! Many processes that start at once.
#![cfg(target_os = "linux")]

use std::{
    io::{BufRead as _, BufReader, Read as _},
    path::Path,
    process::{Child, Command, Stdio},
};

use lockkeeper_core::Keeper;

/// Only does something as a child process: connects when it is told to, and takes a lock.
#[tokio::test]
async fn a_process_that_starts() {
    let Ok(file) = std::env::var("LOCKKEEPER_START") else { return };
    println!("\nready");
    std::io::stdin().read_line(&mut String::new()).expect("told to begin");
    let connector = lockkeeper_sqlite::connector(&format!("sqlite:{file}")).expect("a good URL");
    let keeper = Keeper::builder(connector).connect().await.expect("connected");
    let own = keeper.mutex(&format!("process/{}", std::process::id()));
    let _guard = own.lock().await.expect("free");
    keeper.close().await;
}

fn start(file: &Path) -> (Child, BufReader<std::process::ChildStdout>) {
    let mut child = Command::new(std::env::current_exe().expect("known"))
        .args(["--exact", "a_process_that_starts", "--nocapture"])
        .env("LOCKKEEPER_START", file)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("started");
    let output = BufReader::new(child.stdout.take().expect("piped"));
    (child, output)
}

/// As many workers as a large host has start together, first on a new file and then on an existing one.
#[test]
fn all_of_many_processes_that_start_at_once_are_served() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("locks.db");
    for round in ["new", "old"] {
        let mut children: Vec<_> = (0..128).map(|_| start(&file)).collect();
        for (_, output) in &mut children {
            assert!(
                output.lines().any(|line| line.expect("text").starts_with("ready")),
                "{round}: ended early"
            );
        }
        // Closing the pipes tells all of them to begin.
        children.iter_mut().for_each(|(child, _)| drop(child.stdin.take()));
        for (child, mut said) in children {
            said.read_to_string(&mut String::new()).expect("text");
            let output = child.wait_with_output().expect("ended");
            assert!(output.status.success(), "{round}: {}", String::from_utf8_lossy(&output.stderr));
        }
    }
}
