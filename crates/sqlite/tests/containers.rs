//! Processes in different containers that share a file: they may see other times, and have the same process ids.
#![cfg(target_os = "linux")]

use std::{
    io::{BufRead as _, BufReader, Lines},
    path::Path,
    process::{Child, ChildStdout, Command, Stdio},
    time::{Duration, Instant},
};

use lockkeeper_core::Keeper;

const LEASE: Duration = Duration::from_secs(60);

async fn connect(file: &str) -> Keeper {
    let connector = lockkeeper_sqlite::connector(&format!("sqlite:{file}")).expect("a good URL");
    Keeper::builder(connector).connect().await.expect("connected")
}

/// Only does something as a child process: tries to lock, or locks and holds until it is killed.
#[tokio::test]
async fn in_a_container() {
    let Ok(file) = std::env::var("LOCKKEEPER_CONTAINER") else { return };
    let keeper = connect(&file).await;
    let stock = keeper.mutex("stock").lease(LEASE);
    if std::env::var("LOCKKEEPER_TRIES").is_ok() {
        let got = stock.try_lock().await.expect("asked");
        println!("\nsays {}", if got.is_some() { "free" } else { "held" });
        return;
    }
    let guard = stock.lock().await.expect("it comes free");
    println!("\nsays holds as {}", std::process::id());
    guard.lost().await;
}

/// A process in namespaces of its own, as `unshare` calls them.
struct Container {
    process: Child,
    says: Lines<BufReader<ChildStdout>>,
}

impl Container {
    fn start(file: &Path, namespaces: &[&str], tries: bool) -> Self {
        let mut command = Command::new("unshare");
        command.args(["--user", "--map-root-user"]).args(namespaces);
        command.arg(std::env::current_exe().expect("known"));
        command.args(["--exact", "in_a_container", "--nocapture"]).env("LOCKKEEPER_CONTAINER", file);
        if tries {
            command.env("LOCKKEEPER_TRIES", "1");
        }
        let mut process =
            command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().expect("unshare is there");
        let says = BufReader::new(process.stdout.take().expect("piped")).lines();
        Self { process, says }
    }

    fn says(&mut self) -> String {
        let mut lines = self.says.by_ref().map(|line| line.expect("text"));
        lines.find_map(|line| line.strip_prefix("says ").map(str::to_owned)).expect("it ended early")
    }

    fn kill(mut self) {
        self.process.kill().expect("killed");
        self.process.wait().expect("ended");
    }
}

/// The clock of a container may be days ahead or behind. A lease lasts equally long for all.
#[tokio::test]
async fn a_shifted_clock_ends_no_lease() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("locks.db");
    let keeper = connect(&file.display().to_string()).await;
    let guard = keeper.mutex("stock").lease(LEASE).lock().await.expect("free");
    for offset in ["864000", "-10"] {
        let mut other = Container::start(&file, &["--time", "--boottime", offset], true);
        assert_eq!(other.says(), "held", "with a clock that is {offset} s ahead");
        other.kill();
    }
    assert!(guard.is_held());
    guard.release().await.expect("held");
    for offset in ["864000", "-10"] {
        let mut other = Container::start(&file, &["--time", "--boottime", offset], false);
        assert!(other.says().starts_with("holds"));
        let got = keeper.mutex("stock").try_lock().await.expect("asked");
        assert!(got.is_none(), "its holder has a clock that is {offset} s ahead");
        other.kill();
        let freed = keeper.mutex("stock").lock().await.expect("its holder has crashed");
        freed.release().await.expect("held");
    }
}

/// Each is process 1 of its own container, and the crash of one is noticed in the other.
#[tokio::test]
async fn the_first_processes_of_two_containers_are_not_taken_for_one() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("locks.db");
    let onlooker = connect(&file.display().to_string()).await;
    let start = || Container::start(&file, &["--pid", "--fork", "--kill-child"], false);
    let mut holder = start();
    assert_eq!(holder.says(), "holds as 1");
    for _ in 0..4 {
        let mut next = start();
        while onlooker.inspect("stock").await.expect("asked").is_none_or(|view| view.waiters.is_empty()) {
            tokio::task::yield_now().await;
        }
        let killed = Instant::now();
        holder.kill();
        assert_eq!(next.says(), "holds as 1");
        assert!(killed.elapsed() < Duration::from_secs(1), "passed after {:?}", killed.elapsed());
        holder = next;
    }
    holder.kill();
}
