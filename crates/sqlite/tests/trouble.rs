//! Trouble with the file: each is a typed error that says what to do, and no lock is granted twice.
#![cfg(target_os = "linux")]

use std::{
    fs,
    os::unix::fs::{MetadataExt, symlink},
    path::Path,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use lockkeeper_core::{Keeper, StoreError, StoreErrorKind};
use rusqlite::Connection;
use tempfile::TempDir;

fn folder() -> TempDir {
    tempfile::tempdir().expect("a folder")
}

async fn connect(file: &Path) -> Result<Keeper, StoreError> {
    let connector = lockkeeper_sqlite::connector(&format!("sqlite:{}", file.display()))?;
    Keeper::builder(connector).request_limit(Duration::from_secs(1)).connect().await
}

fn store_error(error: lockkeeper_core::AcquireError) -> StoreError {
    match error {
        lockkeeper_core::AcquireError::Store(error) => error,
        other => panic!("{other}"),
    }
}

async fn refused(file: &Path) -> StoreError {
    connect(file).await.map(drop).expect_err("it cannot work")
}

#[tokio::test]
async fn a_file_that_is_replaced_or_deleted_is_noticed() {
    for (case, suffix) in [("moved", ""), ("deleted", ""), ("deleted", "-wal"), ("deleted", "-shm")] {
        let folder = folder();
        let file = folder.path().join("locks.db");
        let ours = connect(&file).await.expect("connected");
        let guard = ours.mutex("stock").lease(Duration::from_secs(1)).lock().await.expect("free");
        let gone = folder.path().join(format!("locks.db{suffix}"));
        match case {
            "moved" => fs::rename(&gone, folder.path().join("away.db")).expect("moved"),
            _ => fs::remove_file(&gone).expect("deleted"),
        }
        let error = store_error(ours.mutex("other").try_lock().await.expect_err("it is another file"));
        assert_eq!(error.kind(), StoreErrorKind::Corrupt, "{case}{suffix}: {error}");
        assert!(!error.maybe_applied(), "{error}");
        assert!(error.to_string().contains("restart every process"), "{error}");
        // The hold ends in time: its renewals are refused.
        guard.lost().await;
    }
}

#[tokio::test]
async fn a_file_that_is_no_database_is_refused_and_left_as_it_is() {
    let text = "this is no database, only text that is long enough to be taken for a header\n";
    for content in ["x", "a short text\n", "SQLite format 3\0", text, &text.repeat(9), &text.repeat(99)] {
        let folder = folder();
        let file = folder.path().join("notes.txt");
        fs::write(&file, content).expect("written");
        let facts = fs::metadata(&file).expect("there");
        let error = refused(&file).await;
        assert_eq!(error.kind(), StoreErrorKind::Config, "{error}");
        assert!(error.to_string().contains("name a file of its own"), "{error}");
        assert_eq!(fs::read_to_string(&file).expect("read"), content);
        let after = fs::metadata(&file).expect("there");
        assert_eq!((facts.modified().ok(), facts.ino()), (after.modified().ok(), after.ino()));
        assert_eq!(beside(&file), ["notes.txt"]);
    }
}

#[tokio::test]
async fn a_damaged_file_is_reported_and_left_as_it_is() {
    let folder = folder();
    let file = folder.path().join("locks.db");
    connect(&file).await.expect("connected").close().await;
    let mut content = fs::read(&file).expect("read");
    content.truncate(100);
    content.extend([0xee; 9000]);
    fs::write(&file, &content).expect("written");
    let before = beside(&file);
    let error = refused(&file).await;
    assert_eq!(error.kind(), StoreErrorKind::Corrupt, "{error}");
    assert!(error.to_string().contains("move it away"), "{error}");
    assert_eq!(fs::read(&file).expect("read"), content);
    assert_eq!(beside(&file), before);
}

#[tokio::test]
async fn a_folder_that_is_not_there_is_not_made() {
    let folder = folder();
    for path in ["missing/locks.db", "missing/deep/locks.db"] {
        let error = refused(&folder.path().join(path)).await;
        assert_eq!(error.kind(), StoreErrorKind::Config, "{error}");
        let words = error.to_string();
        assert!(words.contains("/missing") && words.contains("does not exist; make it"), "{error}");
        assert!(!folder.path().join("missing").exists());
    }
}

/// The last version of a page in SQLite's log: after a header of 32 bytes, each page has one of 24 before it, which
/// begins with its number.
fn page_in_log(log: &[u8], number: u32, size: usize) -> Option<&[u8]> {
    let mut frames = log[32..].chunks_exact(24 + size);
    frames.rfind(|frame| frame[..4] == number.to_be_bytes()).map(|frame| &frame[24..])
}

/// SQLite moves its log into the file page by page. The first page tells the number of pages, and is moved before the
/// pages that make the file so long.
#[tokio::test]
async fn a_file_left_by_a_crash_while_its_log_was_moved_is_sound() {
    const PAGE: usize = 4096;
    let folder = folder();
    let file = folder.path().join("locks.db");
    connect(&file).await.expect("connected").close().await;
    let writer = Connection::open(&file).expect("opened");
    let rows = "WITH RECURSIVE n(i) AS (VALUES (1) UNION ALL SELECT i + 1 FROM n WHERE i < 999)
        INSERT INTO fence SELECT 'fence/' || i, 7 FROM n";
    writer.execute(rows, []).expect("written");
    let cut = folder.path().join("cut");
    fs::create_dir(&cut).expect("made");
    let log = fs::read(folder.path().join("locks.db-wal")).expect("there is a log");
    let mut pages = fs::read(&file).expect("read");
    pages[..PAGE].copy_from_slice(page_in_log(&log, 1, PAGE).expect("the file has grown"));
    fs::write(cut.join("locks.db"), pages).expect("written");
    fs::write(cut.join("locks.db-wal"), log).expect("written");
    let keeper = connect(&cut.join("locks.db")).await.expect("nothing is wrong with it");
    let guard = keeper.mutex("stock").lock().await.expect("free");
    guard.release().await.expect("held");
    keeper.close().await;
    let fences = Connection::open(cut.join("locks.db")).expect("opened");
    let count: u32 = fences.query_row("SELECT count(*) FROM fence", [], |row| row.get(0)).expect("read");
    assert_eq!(count, 999, "all of it is there");
}

/// The names in the file's folder.
fn beside(file: &Path) -> Vec<String> {
    let names = fs::read_dir(file.parent().expect("a folder")).expect("listed");
    let mut names: Vec<_> = names.map(|entry| entry.expect("listed").file_name()).collect();
    names.sort_unstable();
    names.into_iter().map(|name| name.to_string_lossy().into_owned()).collect()
}

/// It may be at rest, in use, or in the middle of a change that a crash left.
#[tokio::test]
async fn another_program_s_database_is_left_as_it_is() {
    for (case, setup) in [
        ("at rest", "CREATE TABLE theirs (x); INSERT INTO theirs VALUES (1)"),
        ("with a log", "PRAGMA journal_mode = WAL; CREATE TABLE theirs (x); INSERT INTO theirs VALUES (1)"),
        ("without tables", "PRAGMA application_id = 7"),
        ("with a journal", "CREATE TABLE theirs (x); BEGIN; INSERT INTO theirs VALUES (1)"),
    ] {
        for in_use in [true, false] {
            let folder = folder();
            let file = folder.path().join("it's 100% #1.db");
            let theirs = Connection::open(&file).expect("opened");
            theirs.execute_batch(setup).expect("made");
            let theirs = in_use.then_some(theirs);
            let look = || {
                let names = beside(&file);
                // The index of a log also says who reads it.
                let kept = names.iter().filter(|name| !name.ends_with("-shm"));
                let contents: Vec<_> = kept.map(|name| fs::read(folder.path().join(name)).ok()).collect();
                (names, contents)
            };
            let before = look();
            let error = refused(&file).await;
            assert_eq!(error.kind(), StoreErrorKind::Config, "{case}: {error}");
            assert!(error.to_string().contains("another program"), "{case}: {error}");
            assert!(look() == before, "{case}, in use: {in_use}: {:?} became {:?}", before.0, look().0);
            drop(theirs);
        }
    }
}

/// The kernel ends a process's locks on a file when any descriptor of it is closed. Opening a file a second time must
/// not do that.
#[tokio::test]
async fn opening_a_file_once_more_ends_no_lock_on_it() {
    let folder = folder();
    let file = folder.path().join("locks.db");
    let _first = connect(&file).await.expect("connected");
    let inode = fs::metadata(&file).expect("there").ino();
    let locks = || {
        // `/proc/locks` is read in pieces, and misses lines while other processes lock and unlock.
        let descriptors = fs::read_dir("/proc/self/fd").expect("listed").map(|entry| entry.expect("listed"));
        let of_file =
            descriptors.filter(|entry| fs::metadata(entry.path()).is_ok_and(|it| it.ino() == inode));
        let told =
            of_file.map(|entry| fs::read_to_string(Path::new("/proc/self/fdinfo").join(entry.file_name())));
        let told: Vec<_> = told.collect::<Result<_, _>>().expect("read");
        told.iter().map(|lines| lines.matches("POSIX").count()).max().unwrap_or(0)
    };
    let before = locks();
    assert!(before > 0, "an open file is locked");
    connect(&file).await.expect("connected").close().await;
    assert_eq!(locks(), before);
}

#[tokio::test]
async fn a_damaged_row_is_reported() {
    let folder = folder();
    let file = folder.path().join("locks.db");
    let keeper = connect(&file).await.expect("connected");
    let guard = keeper.mutex("stock").lock().await.expect("free");
    let vandal = Connection::open(&file).expect("opened");
    vandal.execute("UPDATE entry SET keeper = 'nobody'", []).expect("written");
    let error = store_error(keeper.mutex("stock").try_lock().await.expect_err("it makes no sense"));
    assert_eq!(error.kind(), StoreErrorKind::Corrupt, "{error}");
    drop(guard);
}

#[tokio::test]
async fn another_writer_that_does_not_end_is_reported_and_then_forgotten() {
    let folder = folder();
    let file = folder.path().join("locks.db");
    let keeper = connect(&file).await.expect("connected");
    let mut writer = Connection::open(&file).expect("opened");
    let stuck = writer.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate).expect("begun");
    let started = Instant::now();
    let error = store_error(keeper.mutex("stock").try_lock().await.expect_err("it is busy"));
    assert_eq!(error.kind(), StoreErrorKind::Conflict, "{error}");
    assert!(!error.maybe_applied() && error.to_string().contains("stopped or stuck"), "{error}");
    assert!(started.elapsed() < Duration::from_secs(2), "the request limit is one second");
    let waiting = tokio::spawn({
        let stock = keeper.mutex("stock");
        async move { stock.lock().await }
    });
    drop(stuck);
    drop(waiting.await.expect("no panic").expect("served once the other is gone"));
}

/// After a restart of the machine, for example, opening has to write.
#[tokio::test]
async fn opening_a_locked_file_waits_as_long_as_the_request_limit() {
    let folder = folder();
    let file = folder.path().join("locks.db");
    connect(&file).await.expect("connected").close().await;
    let mut writer = Connection::open(&file).expect("opened");
    writer.execute("UPDATE store SET boot = 'another'", []).expect("written");
    let stuck = writer.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate).expect("begun");
    let connector = lockkeeper_sqlite::connector(&format!("sqlite:{}", file.display())).expect("a good URL");
    let started = Instant::now();
    let limit = Duration::from_millis(200);
    let error = Keeper::builder(connector).request_limit(limit).connect().await.expect_err("it is busy");
    assert_eq!(error.kind(), StoreErrorKind::Conflict, "{error}");
    assert!(started.elapsed() < limit * 20, "failed after {:?}", started.elapsed());
    drop(stuck);
    connect(&file).await.expect("it is no longer locked");
}

#[tokio::test]
async fn a_folder_that_cannot_be_written_is_reported() {
    // Not even root can make files here.
    let error = refused(Path::new("/sys/kernel/locks.db")).await;
    assert_eq!(error.kind(), StoreErrorKind::Denied, "{error}");
    assert!(error.to_string().contains("write access"), "{error}");
    let error = refused(Path::new("/proc/self/status/locks.db")).await;
    assert_eq!(error.kind(), StoreErrorKind::Config, "{error}");
}

#[tokio::test]
async fn a_hard_link_is_refused_and_a_symbolic_one_is_followed() {
    let folder = folder();
    let (file, link) = (folder.path().join("locks.db"), folder.path().join("link.db"));
    let keeper = connect(&file).await.expect("connected");
    symlink(&file, &link).expect("linked");
    let linked = connect(&link).await.expect("followed");
    let _guard = keeper.mutex("stock").lock().await.expect("free");
    assert!(linked.mutex("stock").try_lock().await.expect("asked").is_none(), "one file, one lock");
    fs::hard_link(&file, folder.path().join("hard.db")).expect("linked");
    let error = refused(&folder.path().join("hard.db")).await;
    assert_eq!(error.kind(), StoreErrorKind::Config, "{error}");
}

/// Only does something as a child process of the test below, whose files cannot grow.
#[tokio::test]
async fn in_a_process_whose_files_cannot_grow() {
    let Ok(file) = std::env::var("LOCKKEEPER_FULL_DISK") else { return };
    let keeper = connect(Path::new(&file)).await.expect("there is room for an empty file");
    let mut held = Vec::new();
    let error = loop {
        let name = format!("{}/{}", "long".repeat(100), held.len());
        match keeper.mutex(&name).try_lock().await {
            Ok(guard) => held.push(guard.expect("free")),
            Err(error) => break store_error(error),
        }
        assert!(held.len() < 10_000, "the disk never fills up");
    };
    assert!(error.is_passing(), "{error}");
    assert!(error.to_string().contains("disk"), "{error}");
    // Earlier grants stay.
    let first = keeper.inspect(held[0].name().as_str()).await.expect("reading goes on");
    assert!(first.is_some());
    println!("full after {}", held.len());
}

#[test]
fn a_full_disk_is_reported_and_what_was_granted_stays() {
    let folder = folder();
    // With this signal ignored, a write past the limit fails as one on a full disk does.
    let output = Command::new("sh")
        .args(["-c", "trap '' XFSZ; ulimit -f 2000; exec \"$@\"", "sh"])
        .arg(std::env::current_exe().expect("known"))
        .args(["--exact", "in_a_process_whose_files_cannot_grow", "--nocapture"])
        .env("LOCKKEEPER_FULL_DISK", folder.path().join("locks.db"))
        .stdin(Stdio::null())
        .output()
        .expect("started");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("full after"), "{output:?}");
}

/// Only does something as a child process of the test below, whose disk fails after a while.
#[tokio::test]
async fn in_a_process_whose_disk_fails() {
    let Ok(file) = std::env::var("LOCKKEEPER_BAD_DISK") else { return };
    let keeper = connect(Path::new(&file)).await.expect("it is well at first");
    let lease = Duration::from_secs(5);
    let guard = keeper.mutex("held").lease(lease).lock().await.expect("free");
    println!("token {}", guard.token());
    let mut others = 0;
    let error = loop {
        // Another name each time: it may be a release that fails first.
        others += 1;
        match keeper.mutex(&format!("other/{others}")).try_lock().await {
            Ok(other) => drop(other.expect("free")),
            Err(error) => break store_error(error),
        }
    };
    println!("{:?}: {error}", error.kind());
    let failed = Instant::now();
    assert!(guard.is_held(), "it has its lease");
    guard.lost().await;
    assert!(failed.elapsed() < lease, "told before its lease ends");
}

/// A child process whose calls on files fail from some call on, in the middle of a transaction.
fn start_on_bad_disk(file: &Path, calls: &str, error: &str, from: u32) -> Child {
    Command::new("strace")
        .args(["-f", "--seccomp-bpf", "-qq", "-o", "/dev/null", "-e", &format!("trace={calls}")])
        .args(["-e", &format!("inject={calls}:error={error}:when={from}+")])
        .arg(std::env::current_exe().expect("known"))
        .args(["--exact", "in_a_process_whose_disk_fails", "--nocapture"])
        .env("LOCKKEEPER_BAD_DISK", file)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .expect("strace is there")
}

/// Each error of the kernel has its kind and its advice, and a holder learns in time that its lease cannot be renewed.
/// Others find the file as it was.
#[tokio::test]
async fn a_disk_that_fails_is_reported_and_nobody_holds_beyond_the_lease() {
    let full = ("pwrite64,ftruncate,fallocate", "ENOSPC", "Conflict", "free some space");
    let gone = ("pread64,pwrite64,ftruncate,fdatasync,fsync", "EIO", "Unreachable", "check that its disk");
    let mut children = Vec::new();
    for (calls, name, kind, remedy) in [full, gone] {
        for from in [60, 61, 62] {
            let folder = folder();
            let child = start_on_bad_disk(&folder.path().join("locks.db"), calls, name, from);
            children.push((folder, child, format!("{name} from {from} on"), kind, remedy));
        }
    }
    for (folder, child, case, kind, remedy) in children {
        let output = child.wait_with_output().expect("it ends");
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{case}: {said}");
        assert!(said.contains(kind) && said.contains(remedy), "{case}: {said}");
        let number = |text: &str| text.parse::<u64>().ok();
        let token = said.lines().find_map(|line| number(line.split_once("token ")?.1)).expect("it held");
        let keeper = connect(&folder.path().join("locks.db")).await.expect("the file is sound");
        let next =
            keeper.mutex("held").try_lock().await.expect("asked").expect("a crashed keeper holds nothing");
        assert!(number(&next.token().to_string()).is_some_and(|next| next > token), "{case}: {said}");
    }
}
