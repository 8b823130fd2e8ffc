//! The tables, their version, and the boot that their times belong to.
//!
//! The SQL of the layout steps must always make the same tables: databases on disk have them.

use std::path::Path;

use lockkeeper_core::{KeeperId, StoreError, StoreErrorKind};
use rusqlite::{Connection, OptionalExtension, Transaction, TransactionBehavior::Immediate, params};

use crate::{
    provenance::{self, APPLICATION, Provenance},
    trouble::explain,
};

/// The steps from an empty database to the layout of this version. The number of steps done is the version of a
/// database. Steps are only ever added, and each works on the result of the one before.
const STEPS: &[&str] = &[LAYOUT_1, LAYOUT_2, LAYOUT_3];

/// Times are in microseconds: `since` since 1970, the others on the boot-time clock. Numbers of units are 0 for "all".
/// A keeper is 32 hexadecimal digits, `seq` its number for the contender.
const LAYOUT_1: &str = "
-- One row. `mark` is the high-water mark, the highest grant number so far: it never falls, whatever is removed.
CREATE TABLE store (
    only_one INTEGER PRIMARY KEY CHECK (only_one = 1),
    id TEXT NOT NULL,
    layout INTEGER NOT NULL,
    boot TEXT NOT NULL,
    mark INTEGER NOT NULL
) STRICT;

-- Holders (queued = 0, turn = grant number) and waiters (queued = 1, turn = position in the queue).
-- One table, so that a hand-over touches one page. `began`: when it was granted, or when it last asked.
CREATE TABLE entry (
    name TEXT NOT NULL,
    queued INTEGER NOT NULL,
    turn INTEGER NOT NULL,
    keeper TEXT NOT NULL,
    seq INTEGER NOT NULL,
    capacity INTEGER NOT NULL,
    units INTEGER NOT NULL,
    lease INTEGER NOT NULL,
    began INTEGER NOT NULL,
    since INTEGER NOT NULL,
    expires INTEGER,
    confirmed INTEGER,
    evicted INTEGER,
    retired INTEGER,
    detached INTEGER,
    stamp INTEGER,
    kind TEXT NOT NULL,
    host TEXT NOT NULL,
    pid INTEGER NOT NULL,
    program TEXT NOT NULL,
    label TEXT,
    value TEXT,
    PRIMARY KEY (name, queued, turn)
) STRICT, WITHOUT ROWID;

-- Tombstones: contenders that left while a copy of their claim may still arrive.
CREATE TABLE grave (
    keeper TEXT NOT NULL, seq INTEGER NOT NULL, until INTEGER NOT NULL, PRIMARY KEY (keeper, seq)
) STRICT, WITHOUT ROWID;

CREATE TABLE latch (
    name TEXT PRIMARY KEY,
    remaining INTEGER NOT NULL, initial INTEGER NOT NULL, opened INTEGER NOT NULL, born INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- Latch operations that were done, with their answers, as long as a copy of them may still arrive.
CREATE TABLE counted (
    keeper TEXT NOT NULL, seq INTEGER NOT NULL, until INTEGER NOT NULL,
    answer INTEGER NOT NULL,
    remaining INTEGER NOT NULL, initial INTEGER NOT NULL, opened INTEGER NOT NULL, born INTEGER NOT NULL,
    PRIMARY KEY (keeper, seq)
) STRICT, WITHOUT ROWID;

CREATE TABLE fence (name TEXT PRIMARY KEY, highest INTEGER NOT NULL) STRICT, WITHOUT ROWID;

-- Keepers that have subscribed to a topic.
CREATE TABLE watcher (
    topic TEXT NOT NULL, name TEXT NOT NULL, keeper TEXT NOT NULL, PRIMARY KEY (topic, name, keeper)
) STRICT, WITHOUT ROWID;
";

/// How long a hold is kept from its grant on, even if its process crashes. Holds from before this step have no such
/// time.
const LAYOUT_2: &str = "ALTER TABLE entry ADD COLUMN min_hold INTEGER NOT NULL DEFAULT 0";

/// Whether the keeper renews the lease; the operator's reason for an eviction; the least number of a waiter's grant;
/// and the number of a grant that was raised, which then differs from `turn`. From this step on waiters have
/// `detached`, too.
const LAYOUT_3: &str = "
ALTER TABLE entry ADD COLUMN renewed INTEGER NOT NULL DEFAULT 1;
ALTER TABLE entry ADD COLUMN reason TEXT;
ALTER TABLE entry ADD COLUMN at_least INTEGER NOT NULL DEFAULT 0;
ALTER TABLE entry ADD COLUMN number INTEGER;
";

/// A new boot keeps the high-water mark, latches and fences, and removes everything with a time of the boot before.
const FREE_EVERYTHING: &str =
    "DELETE FROM entry; DELETE FROM grave; DELETE FROM counted; DELETE FROM watcher;";

/// The table for the record of a member of a quorum. It is made when the store is first asked to be one.
pub(crate) const MEMBER: &str = "
CREATE TABLE IF NOT EXISTS member (only_one INTEGER PRIMARY KEY CHECK (only_one = 1), record TEXT NOT NULL) STRICT";

/// The SQL that makes the tables in a new file, for somebody who sets it up for others. It names no boot, so the first
/// keeper stores its own.
pub(crate) fn sql(path: &Path) -> String {
    let (path, steps, newest) = (path.display(), STEPS.join(";\n"), number(STEPS));
    let (id, member) = (new_id(), MEMBER.trim_start());
    format!(
        "-- For a new file: sqlite3 -bail FILE < THIS. FILE is {path}
-- Its users have to read and write it, and to make files in its folder, such as members of a group:
--   chgrp GROUP FOLDER FILE; chmod 2770 FOLDER; chmod 660 FILE
BEGIN IMMEDIATE;
{steps}
INSERT INTO store VALUES (1, '{id}', {newest}, '', 0);
{member};
PRAGMA application_id = {APPLICATION};
COMMIT;
"
    )
}

fn new_id() -> String {
    format!("sqlite-{}", KeeperId::random())
}

/// Brings the database to this program's layout and to this boot; returns the store's own id. Leases of another boot
/// are ended only if no keeper is alive.
pub(crate) fn settle(
    connection: &mut Connection,
    path: &Path,
    boot: &str,
    any_alive: impl Fn() -> Result<bool, StoreError>,
) -> Result<String, StoreError> {
    match settled(connection, boot).map_err(|error| explain(path, error).not_applied())? {
        Some(id) => Ok(id),
        None => settle_with(connection, path, boot, any_alive, STEPS),
    }
}

/// Returns the store's own id, if there is nothing to do. That is the usual case, which needs no write lock.
fn settled(connection: &Connection, boot: &str) -> rusqlite::Result<Option<String>> {
    if provenance::of(connection)? != Provenance::Lockkeeper {
        return Ok(None);
    }
    let mut find = connection.prepare("SELECT id FROM store WHERE layout = ? AND boot = ?")?;
    find.query_row(params![number(STEPS), boot], |row| row.get(0)).optional()
}

fn settle_with(
    connection: &mut Connection,
    path: &Path,
    boot: &str,
    any_alive: impl Fn() -> Result<bool, StoreError>,
    steps: &[&str],
) -> Result<String, StoreError> {
    let explain = |error| explain(path, error);
    let transaction = connection.transaction_with_behavior(Immediate).map_err(explain)?;
    let done = version(&transaction, path)?;
    if done > steps.len() {
        return Err(newer(path, done));
    }
    let newest = number(steps);
    for step in &steps[done..] {
        transaction.execute_batch(step).map_err(explain)?;
    }
    if done == 0 {
        let id = new_id();
        transaction.pragma_update(None, "application_id", APPLICATION).map_err(explain)?;
        transaction
            .execute("INSERT INTO store VALUES (1, ?, ?, ?, 0)", params![id, newest, boot])
            .map_err(explain)?;
    } else if done < steps.len() {
        transaction.execute("UPDATE store SET layout = ?", [newest]).map_err(explain)?;
    }
    let (id, boot_of_file): (String, String) = transaction
        .query_row("SELECT id, boot FROM store", [], |row| Ok((row.get(0)?, row.get(1)?)))
        .map_err(explain)?;
    if boot_of_file != boot {
        // A keeper of this boot stores the boot here before it makes its life file, so live keepers are of the other
        // boot.
        if any_alive()? {
            return Err(another_boot(path));
        }
        transaction.execute_batch(FREE_EVERYTHING).map_err(explain)?;
        transaction.execute("UPDATE store SET boot = ?", [boot]).map_err(explain)?;
    }
    transaction.commit().map_err(explain)?;
    Ok(id)
}

/// The layout of the database: 0 if it is empty.
fn version(transaction: &Transaction<'_>, path: &Path) -> Result<usize, StoreError> {
    let explain = |error| explain(path, error);
    match provenance::of(transaction).map_err(explain)? {
        Provenance::Nobody => Ok(0),
        Provenance::Lockkeeper => {
            transaction.query_row("SELECT layout FROM store", [], layout_in).map_err(explain)
        }
        Provenance::AnotherProgram => Err(provenance::foreign(path)),
    }
}

/// Processes that have different ids for one boot, as containers may have, would end each other's leases.
fn another_boot(path: &Path) -> StoreError {
    let message = format!(
        "{} is used by running processes for which this is another boot of the machine (see \
         /proc/sys/kernel/random/boot_id there and here); give them one boot id, or end them",
        path.display()
    );
    StoreError::new(StoreErrorKind::Config, message).not_applied()
}

/// The version of the layout after these steps.
fn number(steps: &[&str]) -> i64 {
    i64::try_from(steps.len()).unwrap_or(i64::MAX)
}

/// The layout in the first column.
fn layout_in(row: &rusqlite::Row<'_>) -> rusqlite::Result<usize> {
    row.get::<_, u32>(0).map(|layout| layout as usize)
}

/// The database was made or migrated by a newer version of this program.
fn newer(path: &Path, layout: usize) -> StoreError {
    StoreError::new(
        StoreErrorKind::Corrupt,
        format!(
            "{} has layout {layout}, and this version of Lockkeeper knows layouts up to {}; update it here",
            path.display(),
            STEPS.len()
        ),
    )
}

/// The high-water mark, if the database still has this program's layout and this boot.
pub(crate) fn read_high_water(
    transaction: &Transaction<'_>,
    path: &Path,
    boot: &str,
) -> Result<u64, StoreError> {
    let explain = |error| explain(path, error);
    let mut read = transaction.prepare_cached("SELECT layout, boot = ?, mark FROM store").map_err(explain)?;
    let (layout, same_boot, mark): (usize, bool, i64) =
        read.query_row([boot], |row| Ok((layout_in(row)?, row.get(1)?, row.get(2)?))).map_err(explain)?;
    if layout != STEPS.len() {
        return Err(newer(path, layout));
    }
    if !same_boot {
        return Err(StoreError::new(
            StoreErrorKind::Corrupt,
            format!(
                "{} was taken over by another boot of this machine; restart this process",
                path.display()
            ),
        ));
    }
    Ok(mark.unsigned_abs())
}

/// Stores the high-water mark.
pub(crate) fn write_high_water(transaction: &Transaction<'_>, high_water: u64) -> rusqlite::Result<()> {
    transaction.prepare_cached("UPDATE store SET mark = ?")?.execute([high_water.cast_signed()])?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(connection: &Connection, table: &str) -> i64 {
        connection
            .query_row(&format!("SELECT count(*) FROM {table}"), [], |row| row.get(0))
            .expect("the table is there")
    }

    fn memory() -> Connection {
        Connection::open_in_memory().expect("opened")
    }

    const FILE: &str = "locks.db";

    type Lives = Result<bool, StoreError>;

    fn nobody() -> Lives {
        Ok(false)
    }

    /// A keeper makes the same tables by itself.
    #[test]
    fn the_sql_for_somebody_else_makes_the_same_tables() {
        let (mut own, mut given) = (memory(), memory());
        settle(&mut own, Path::new(FILE), "boot", nobody).expect("made");
        own.execute_batch(MEMBER).expect("it is asked to be a member");
        given.execute_batch(&sql(Path::new(FILE))).expect("it is good SQL");
        let tables = |connection: &Connection| -> Vec<(String, String)> {
            let mut all = connection
                .prepare("SELECT name, sql FROM sqlite_schema WHERE sql IS NOT NULL")
                .expect("read");
            let row = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, row.get(1)?));
            all.query_map([], row).expect("read").collect::<Result<_, _>>().expect("read")
        };
        assert_eq!(tables(&given), tables(&own));
        let id = settle(&mut given, Path::new(FILE), "boot", nobody).expect("it is ours, of another boot");
        assert!(id.starts_with("sqlite-"), "{id}");
        assert!(settled(&given, "boot").expect("read").is_some());
    }

    #[test]
    fn an_older_layout_is_migrated_and_keeps_its_data() {
        let mut connection = memory();
        let id = settle(&mut connection, Path::new(FILE), "boot", nobody).expect("made");
        connection.execute("INSERT INTO fence VALUES ('stock', 7)", []).expect("written");
        let steps = &[LAYOUT_1, LAYOUT_2, LAYOUT_3, "ALTER TABLE fence ADD COLUMN note TEXT"];
        let after = settle_with(&mut connection, Path::new(FILE), "boot", nobody, steps).expect("migrated");
        assert_eq!(after, id, "it is still the same store");
        let (highest, note): (i64, Option<String>) = connection
            .query_row("SELECT highest, note FROM fence", [], |row| Ok((row.get(0)?, row.get(1)?)))
            .expect("the new column is there");
        assert_eq!((highest, note), (7, None));
        settle_with(&mut connection, Path::new(FILE), "boot", nobody, steps).expect("nothing is left to do");
    }

    #[test]
    fn a_hold_and_a_waiter_of_the_second_layout_are_read_as_they_were() {
        let mut connection = memory();
        settle_with(&mut connection, Path::new(FILE), "boot", nobody, &[LAYOUT_1, LAYOUT_2]).expect("made");
        let keeper = KeeperId::from_u128(1);
        for (queued, turn) in [(false, 41), (true, 1)] {
            let expires = (!queued).then_some(99);
            let flag = (!queued).then_some(false);
            connection
                .execute(
                    "INSERT INTO entry (name, queued, turn, keeper, seq, capacity, units, lease, began, since, expires,
                     confirmed, evicted, retired, detached, stamp, kind, host, pid, program)
                     VALUES ('n', ?1, ?2, ?3, ?2, 0, 0, 9, 1, 1, ?4, ?5, ?5, ?5, ?5, 7, 'mutex', 'h', 1, 'p')",
                    params![queued, turn, keeper.to_string(), expires, flag],
                )
                .expect("written");
        }
        settle(&mut connection, Path::new(FILE), "boot", nobody).expect("migrated");
        let transaction = connection.transaction().expect("begun");
        let name = lockkeeper_core::Name::new("n").expect("valid");
        let mut rows = crate::codec::load(&transaction, &name).expect("read").entries.into_iter();
        let holder = rows.next().expect("one holds").into_holder().expect("good");
        let waiter = rows.next().expect("one waits").into_waiter().expect("good");
        assert_eq!((holder.number, holder.renewed, &holder.reason), (41, true, &None));
        assert_eq!((waiter.renewed, waiter.detached, waiter.at_least), (true, false, 0));
    }

    #[test]
    fn a_newer_layout_is_refused_also_while_in_use() {
        let mut connection = memory();
        settle_with(
            &mut connection,
            Path::new(FILE),
            "boot",
            nobody,
            &[LAYOUT_1, LAYOUT_2, LAYOUT_3, "SELECT 1"],
        )
        .expect("made");
        let error = settle(&mut connection, Path::new(FILE), "boot", nobody).expect_err("it is newer");
        assert_eq!(error.kind(), StoreErrorKind::Corrupt);
        assert!(error.to_string().contains("layout 4"), "{error}");
        let transaction = connection.transaction().expect("begun");
        assert!(read_high_water(&transaction, Path::new(FILE), "boot").is_err());
    }

    #[test]
    fn another_program_s_database_is_left_alone() {
        let mut connection = memory();
        connection.execute_batch("CREATE TABLE theirs (x)").expect("made");
        let error = settle(&mut connection, Path::new(FILE), "boot", nobody).expect_err("it is theirs");
        assert_eq!(error.kind(), StoreErrorKind::Config);
        assert_eq!(count(&connection, "sqlite_schema"), 1, "nothing was added");
    }

    #[test]
    fn a_restart_frees_all_and_keeps_the_high_water_mark_latches_and_fences() {
        let mut connection = memory();
        settle(&mut connection, Path::new(FILE), "first", nobody).expect("made");
        connection
            .execute_batch(
                "UPDATE store SET mark = 42;
                 INSERT INTO grave VALUES ('k', 1, 99);
                 INSERT INTO watcher VALUES ('latch', 'n', 'k');
                 INSERT INTO latch VALUES ('n', 1, 2, 0, 3);
                 INSERT INTO fence VALUES ('n', 7);
                 INSERT INTO entry (name, queued, turn, keeper, seq, capacity, units, lease, began, since, kind,
                     host, pid, program) VALUES ('n', 1, 1, 'k', 1, 0, 0, 1, 1, 1, 'mutex', 'h', 1, 'p');",
            )
            .expect("filled");
        settle(&mut connection, Path::new(FILE), "first", nobody).expect("the same boot");
        assert_eq!(count(&connection, "entry"), 1, "another process of this boot frees nothing");
        let not_known = || Err(StoreError::new(StoreErrorKind::Denied, "not to be read"));
        let lives: [(fn() -> Lives, _); 2] =
            [(|| Ok(true), StoreErrorKind::Config), (not_known, StoreErrorKind::Denied)];
        for (any_alive, kind) in lives {
            let settled = settle(&mut connection, Path::new(FILE), "second", any_alive);
            let error = settled.expect_err("a keeper may be alive");
            assert_eq!(error.kind(), kind, "{error}");
        }
        assert_eq!(count(&connection, "entry"), 1, "nothing of theirs was touched");
        settle(&mut connection, Path::new(FILE), "second", nobody).expect("another boot");
        assert_eq!(["entry", "grave", "watcher"].map(|table| count(&connection, table)), [0; 3]);
        assert_eq!(["latch", "fence"].map(|table| count(&connection, table)), [1; 2]);
        let transaction = connection.transaction().expect("begun");
        assert_eq!(read_high_water(&transaction, Path::new(FILE), "second").expect("read"), 42);
        assert!(read_high_water(&transaction, Path::new(FILE), "first").is_err());
    }
}
