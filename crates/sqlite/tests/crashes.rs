//! Crashed keepers are noticed, and their locks are freed.
#![cfg(target_os = "linux")]

use std::{
    fs,
    io::{BufRead as _, BufReader},
    path::Path,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use lockkeeper_core::{FenceError, Keeper, StoreError, Token, testing::VirtualClock};
use tempfile::TempDir;

fn folder() -> TempDir {
    tempfile::tempdir().expect("a folder")
}

async fn connect(file: &Path) -> Result<Keeper, StoreError> {
    let connector = lockkeeper_sqlite::connector(&format!("sqlite:{}", file.display()))?;
    Keeper::builder(connector).connect().await
}

const LEASE: Duration = Duration::from_secs(3);

/// Only does something as a child process: takes locks and waits to be killed.
#[tokio::test]
async fn a_process_to_be_killed() {
    let Ok(file) = std::env::var("LOCKKEEPER_VICTIM") else { return };
    let keeper = connect(Path::new(&file)).await.expect("connected");
    let _plain = keeper.mutex("plain").lease(LEASE * 20).lock().await.expect("free");
    let detachable = keeper.mutex("detached").lease(LEASE).detachable().lock().await.expect("free");
    detachable.into_lease().await.expect("detached");
    keeper.mutex("kept").min_hold(LEASE).lock().await.expect("free").release().await.expect("held");
    let _minimum = keeper.mutex("minimum").lease(LEASE * 20).min_hold(LEASE).lock().await.expect("free");
    let pushed = keeper.mutex("pushed").lease(LEASE * 20).min_hold(LEASE * 2);
    let _pushed = pushed.lock().await.expect("it comes free");
    let line = keeper.life_line().expect("SQLite has one");
    let guardian = std::env::var("LOCKKEEPER_GUARDIAN").is_ok().then(|| {
        // Its standard input is the life line, which keeps the locks of this process.
        Command::new("sleep").arg("2").stdin(line).spawn().expect("started")
    });
    println!("\nready {}", guardian.map_or(0, |guardian| guardian.id()));
    std::future::pending::<()>().await;
}

/// Starts the process above and waits until it holds everything.
fn victim(file: &Path, guarded: bool) -> Child {
    let mut command = Command::new(std::env::current_exe().expect("known"));
    command.args(["--exact", "a_process_to_be_killed", "--nocapture"]).env("LOCKKEEPER_VICTIM", file);
    if guarded {
        command.env("LOCKKEEPER_GUARDIAN", "1");
    }
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().expect("started");
    let output = child.stdout.take().expect("piped");
    let ready = BufReader::new(output).lines().any(|line| line.expect("text").starts_with("ready"));
    assert!(ready, "the victim ended early");
    child
}

fn kill(mut victim: Child) {
    victim.kill().expect("killed");
    victim.wait().expect("ended");
}

#[tokio::test]
async fn a_killed_process_frees_all_but_its_detached_locks() {
    let folder = folder();
    let file = folder.path().join("locks.db");
    let keeper = connect(&file).await.expect("connected");
    let victim = victim(&file, false);
    assert!(keeper.mutex("plain").try_lock().await.expect("asked").is_none(), "its holder is alive");
    kill(victim);
    assert!(keeper.mutex("plain").try_lock().await.expect("asked").is_some(), "freed at once");
    for name in ["detached", "kept"] {
        assert!(keeper.mutex(name).try_lock().await.expect("asked").is_none(), "{name} ends by its lease");
    }
    for name in ["detached", "kept"] {
        drop(keeper.mutex(name).lock().await.expect("and does end by it"));
    }
}

/// A killed process may have done its work. The work is not done again before the minimum is over, and then nobody
/// waits for the lease.
#[tokio::test]
async fn a_killed_process_keeps_its_minimum() {
    let folder = folder();
    let file = folder.path().join("locks.db");
    let keeper = connect(&file).await.expect("connected");
    let guard = keeper.mutex("pushed").lock().await.expect("free");
    let started = Instant::now();
    let victim = tokio::task::spawn_blocking(move || victim(&file, false));
    while keeper.inspect("pushed").await.expect("asked").is_none_or(|view| view.waiters.is_empty()) {
        tokio::task::yield_now().await;
    }
    let released = Instant::now();
    guard.release().await.expect("held");
    kill(victim.await.expect("it holds everything"));
    for (name, since, least) in [("minimum", started, LEASE), ("pushed", released, LEASE * 2)] {
        drop(keeper.mutex(name).lock().await.expect("it ends"));
        let kept = since.elapsed();
        assert!(kept >= least && kept < LEASE * 10, "{name} was kept for {kept:?}");
    }
}

#[tokio::test]
async fn a_life_line_keeps_the_locks_of_a_killed_process() {
    let folder = folder();
    let file = folder.path().join("locks.db");
    let keeper = connect(&file).await.expect("connected");
    let victim = victim(&file, true);
    let waiting = tokio::spawn({
        let plain = keeper.mutex("plain");
        async move { plain.lock().await }
    });
    while keeper.inspect("plain").await.expect("asked").is_none_or(|view| view.waiters.is_empty()) {
        tokio::task::yield_now().await;
    }
    kill(victim);
    assert!(keeper.mutex("plain").try_lock().await.expect("asked").is_none(), "the guardian is there");
    let killed = Instant::now();
    drop(waiting.await.expect("no panic").expect("served when the guardian ends"));
    let waited = killed.elapsed();
    assert!(waited > Duration::from_secs(1), "the guardian had not ended after {waited:?}");
    assert!(waited < LEASE * 5, "and nobody waited for the lease");
}

#[tokio::test]
async fn without_its_life_file_only_its_lease_ends_a_hold() {
    let folder = folder();
    let file = folder.path().join("locks.db");
    let (ours, theirs) = (connect(&file).await.expect("one"), connect(&file).await.expect("two"));
    let lease = Duration::from_millis(1500);
    let _guard = theirs.mutex("stock").expires_after(lease).lock().await.expect("free");
    let started = Instant::now();
    for entry in fs::read_dir(folder.path().join("locks.db-keepers")).expect("listed") {
        // A cleaner of temporary files does the same.
        fs::remove_file(entry.expect("listed").path()).expect("removed");
    }
    assert!(ours.mutex("stock").try_lock().await.expect("asked").is_none(), "it may well be alive");
    drop(ours.mutex("stock").lock().await.expect("its lease ends"));
    assert!(started.elapsed() > lease - Duration::from_millis(100), "not before its lease");
}

#[tokio::test]
async fn files_of_crashed_keepers_are_removed() {
    let folder = folder();
    let file = folder.path().join("locks.db");
    kill(victim(&file, false));
    let keepers = || fs::read_dir(folder.path().join("locks.db-keepers")).expect("listed").count();
    assert_eq!(keepers(), 2, "a life file and a socket");
    let keeper = connect(&file).await.expect("connected");
    assert_eq!(keepers(), 2, "its own");
    keeper.close().await;
    assert_eq!(keepers(), 0);
}

#[tokio::test]
async fn unused_names_leave_nothing_behind() {
    let folder = folder();
    let file = folder.path().join("locks.db");
    let connector = lockkeeper_sqlite::connector(&format!("sqlite:{}", file.display())).expect("a good URL");
    let clock = VirtualClock::new();
    let keeper = Keeper::builder(connector).virtual_time(clock.clock()).connect().await.expect("connected");
    for name in ["ended", "kept"] {
        let lease = if name == "kept" { LEASE * 100 } else { LEASE };
        let guard = keeper.mutex(name).lease(lease).detachable().lock().await.expect("free");
        guard.into_lease().await.expect("detached");
    }
    clock.suspend(Duration::from_secs(100));
    keeper.mutex("other").lock().await.expect("free").release().await.expect("held");
    let reader = rusqlite::Connection::open(&file).expect("opened");
    let mut names = reader.prepare("SELECT name FROM entry").expect("prepared");
    let names: Vec<String> =
        names.query_map([], |row| row.get(0)).expect("asked").collect::<Result<_, _>>().expect("read");
    assert_eq!(names, ["kept"]);
}

/// Only does something as a child process of the test below: asks a fence, which changes nothing, and tells the answer.
#[tokio::test]
async fn a_process_that_finds_a_log() {
    let Ok(file) = std::env::var("LOCKKEEPER_LEFT_LOG") else { return };
    let keeper = connect(Path::new(&file)).await.expect("connected");
    let stale = Token::new(1, 0);
    match keeper.fence("stock").admit(stale).await {
        Err(FenceError::Stale { highest, .. }) => println!("\ntold {highest}"),
        other => panic!("the token that the log has is higher: {other:?}"),
    }
}

/// A process that is killed between the write of a commit and its sync leaves the commit in the log. SQLite takes it for
/// done when the file is opened next, and a power cut may still take it back. So nothing may be told of it before the log
/// is synced.
#[tokio::test]
async fn what_a_killed_process_left_in_the_log_is_synced_before_it_is_told() {
    let (theirs, ours) = (folder(), folder());
    let keeper = connect(&theirs.path().join("locks.db")).await.expect("connected");
    let guard = keeper.mutex("stock").lock().await.expect("free");
    keeper.fence("stock").admit(guard.token()).await.expect("the first");
    // As a killed process leaves its files: the frames are in the log, and nobody has the index in use.
    for name in ["locks.db", "locks.db-wal"] {
        fs::copy(theirs.path().join(name), ours.path().join(name)).expect("copied");
    }
    let calls = ours.path().join("calls");
    let output = Command::new("strace")
        .args(["-f", "-y", "--seccomp-bpf", "-qq", "-e", "trace=write,fdatasync,fsync", "-o"])
        .arg(&calls)
        .arg(std::env::current_exe().expect("known"))
        .args(["--exact", "a_process_that_finds_a_log", "--nocapture"])
        .env("LOCKKEEPER_LEFT_LOG", ours.path().join("locks.db"))
        .stdin(Stdio::null())
        .output()
        .expect("strace is there");
    let told = format!("told {}", guard.token());
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains(&told), "{output:?}");
    let calls = fs::read_to_string(&calls).expect("written");
    let (before, _) = calls.split_once(&told).expect("the answer is written");
    let (_, synced) = before.split_once("locks.db-wal>").expect("the log is synced before the answer");
    // With several threads a call has two rows, and the second one has its end.
    assert!(synced.lines().any(|call| call.ends_with("= 0")), "{before}");
}
