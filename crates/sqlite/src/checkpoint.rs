//! Checkpoints, which move the log into the database file: by SQLite itself, or by the writer while nobody can commit.
//!
//! SQLite before 3.51.3 can damage a database in WAL mode (<https://sqlite.org/wal.html>, "The WAL-Reset Bug"): a
//! checkpoint reads the end of the log, a commit of another connection starts the log anew, and the checkpoint then
//! notes pages as moved that are only in the new log. Later checkpoints skip those pages. The commit is the only step
//! that starts the log anew, and it needs SQLite's write lock. So with such a library SQLite runs no checkpoint after
//! its commits. The writer runs them, and a second connection has the write lock meanwhile.
//!
//! The checkpoint at the end of the last connection is safe in every version: SQLite runs it only with an exclusive
//! lock on the file, which no other connection of any process then has open.

use std::{fs, path::Path, time::Duration};

use rusqlite::{Connection, OpenFlags, Result, config::DbConfig};

use crate::{
    paths::beside,
    patience::{be_patient, give_up_after},
};

/// As SQLite does it: a checkpoint is due once the log has 1,000 pages, which have 4 KiB and a header each.
const LOG_LIMIT: u64 = 1000 * (4096 + 24);

/// How long a checkpoint waits for those who write. If it comes to nothing, another is due soon.
const PATIENCE: Duration = Duration::from_millis(200);

/// The number of the writer's actions between two tries. A reader may keep the log from being started anew for a while.
const BETWEEN_TRIES: u32 = 32;

/// Whether SQLite must not run checkpoints by itself.
pub(crate) fn are_ours() -> bool {
    has_reset_bug(rusqlite::version_number())
}

/// Whether this version of SQLite has the bug. It was also fixed in 3.44.6 and 3.50.7.
fn has_reset_bug(version: i32) -> bool {
    !matches!(version, 3_044_006..3_045_000 | 3_050_007..3_051_000 | 3_051_003..)
}

/// Keeps SQLite from running checkpoints after commits of `connection`.
pub(crate) fn take_over(connection: &Connection) -> Result<()> {
    connection.pragma_update_and_check(None, "wal_autocheckpoint", 0, |_| Ok(()))?;
    // A log that is started anew is cut to this length. So a longer one has not been moved yet.
    connection.pragma_update_and_check(None, "journal_size_limit", LOG_LIMIT.cast_signed(), |_| Ok(()))
}

/// The schedule of the checkpoints.
#[derive(Debug, Default)]
pub(crate) struct Checkpoints {
    /// How many actions of the writer to let pass.
    pause: u32,
}

impl Checkpoints {
    /// Runs a checkpoint of the file at `path` if one is due.
    pub(crate) fn run_if_due(&mut self, connection: &Connection, path: &Path) {
        if let Some(pause) = self.pause.checked_sub(1) {
            self.pause = pause;
            return;
        }
        if fs::metadata(beside(path, "-wal")).is_ok_and(|log| log.len() > LOG_LIMIT) {
            self.pause = BETWEEN_TRIES;
            if let Err(error) = run(connection, path, PATIENCE) {
                tracing::debug!(%error, "the log could not be moved into the database file; it grows until it can");
            }
        }
    }
}

/// Moves the log into the file while nobody can commit.
fn run(connection: &Connection, path: &Path, patience: Duration) -> Result<()> {
    let _no_commits = NoCommits::begin(path, patience)?;
    connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(()))
}

/// Keeps everybody from committing, in this process and in others. It ends with the process, also in a crash.
struct NoCommits(#[expect(dead_code, reason = "kept for its drop, which rolls back")] Connection);

impl NoCommits {
    /// Waits for SQLite's write lock. It is taken without writing anything, so it does not start the log anew itself.
    fn begin(path: &Path, patience: Duration) -> Result<Self> {
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let mut connection = Connection::open_with_flags(path, flags)?;
        // It is never the last connection, and need not find that out.
        connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
        give_up_after(patience);
        be_patient(&mut connection)?;
        connection.execute_batch("BEGIN IMMEDIATE")?;
        Ok(Self(connection))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{file::DatabaseFile, open::connect};

    const SHORT: Duration = Duration::from_millis(1);

    /// A database whose checkpoints are ours, with any version of SQLite. Its table is in the log only.
    fn with_log(folder: &Path) -> (DatabaseFile, Connection) {
        let file = DatabaseFile::prepare(&folder.join("locks.db")).expect("prepared");
        let connection = connect(&file.path, Duration::from_secs(1)).expect("connected");
        take_over(&connection).expect("taken over");
        connection.execute_batch("CREATE TABLE t (x)").expect("made");
        (file, connection)
    }

    fn length(path: &Path) -> u64 {
        fs::metadata(path).expect("there").len()
    }

    #[test]
    fn only_versions_with_the_bug_need_it() {
        for (version, bug) in [
            (3_044_005, true),
            (3_044_006, false),
            (3_046_000, true),
            (3_050_006, true),
            (3_050_007, false),
            (3_051_000, true),
            (3_051_002, true),
            (3_051_003, false),
            (3_053_000, false),
        ] {
            assert_eq!(has_reset_bug(version), bug, "{version}");
        }
    }

    #[test]
    fn no_checkpoint_runs_beside_a_transaction_that_writes() {
        let folder = tempfile::tempdir().expect("a folder");
        let (file, connection) = with_log(folder.path());
        let before = length(&file.path);
        let other = Connection::open(&file.path).expect("opened");
        other.execute_batch("BEGIN IMMEDIATE; INSERT INTO t VALUES (1)").expect("written");
        run(&connection, &file.path, SHORT).expect_err("the other one writes");
        assert_eq!(length(&file.path), before, "nothing was moved");
        other.execute_batch("COMMIT").expect("committed");
        run(&connection, &file.path, SHORT).expect("nobody writes");
        assert!(length(&file.path) > before, "the table was moved");
    }

    #[test]
    fn nobody_commits_during_a_checkpoint() {
        let folder = tempfile::tempdir().expect("a folder");
        let (file, connection) = with_log(folder.path());
        connection.busy_timeout(SHORT).expect("set");
        let no_commits = NoCommits::begin(&file.path, SHORT).expect("begun");
        connection.execute_batch("INSERT INTO t VALUES (1)").expect_err("the lock is taken");
        drop(no_commits);
        connection.execute_batch("INSERT INTO t VALUES (1)").expect("the lock is free");
    }

    /// Only the writer moves it, and it is started anew again and again.
    #[test]
    fn the_log_stays_short() {
        let folder = tempfile::tempdir().expect("a folder");
        let (file, connection) = with_log(folder.path());
        connection.pragma_update(None, "synchronous", "OFF").expect("set");
        let mut checkpoints = Checkpoints::default();
        let log = beside(&file.path, "-wal");
        let mut longest = 0;
        for _ in 0..4000 {
            connection.execute_batch("INSERT INTO t VALUES (zeroblob(4096))").expect("written");
            checkpoints.run_if_due(&connection, &file.path);
            longest = longest.max(length(&log));
        }
        assert!((LOG_LIMIT..LOG_LIMIT * 2).contains(&longest), "it had {longest} bytes");
        let kept: String =
            connection.query_row("PRAGMA integrity_check", [], |row| row.get(0)).expect("read");
        assert_eq!(kept, "ok");
    }
}
