//! Tells whose database a file is: ours, nobody's yet, or another program's.
//!
//! It is asked at three moments, because each sees something that the others cannot. Before the file is opened, a
//! foreign database is refused without leaving a trace. Once it is open, tables that are only in its log are seen. And
//! inside the first write transaction, no other program can add a table any more.

use std::{fmt::Write as _, os::unix::ffi::OsStrExt, path::Path};

use lockkeeper_core::{StoreError, StoreErrorKind};
use rusqlite::{Connection, OpenFlags};

use crate::trouble::{bad_file, explain, is_damage, is_no_database};

/// SQLite's `application_id` of our databases ("LKKR"), so that no other program's database is ever touched.
pub(crate) const APPLICATION: i32 = 0x4c4b_4b52;

/// The owner of a database.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Provenance {
    Lockkeeper,
    /// It is empty.
    Nobody,
    AnotherProgram,
}

/// Finds the owner of a database.
pub(crate) fn of(connection: &Connection) -> rusqlite::Result<Provenance> {
    let application: i32 = connection.pragma_query_value(None, "application_id", |row| row.get(0))?;
    Ok(match application {
        APPLICATION => Provenance::Lockkeeper,
        0 if !connection.prepare("SELECT 1 FROM sqlite_schema")?.exists([])? => Provenance::Nobody,
        _ => Provenance::AnotherProgram,
    })
}

/// The error that refuses another program's database.
pub(crate) fn foreign(path: &Path) -> StoreError {
    let message = format!("{} is the database of another program; name a file of its own", path.display());
    StoreError::new(StoreErrorKind::Config, message).not_applied()
}

/// The error that refuses a file that is no database.
pub(crate) fn no_database(path: &Path) -> StoreError {
    bad_file(path, "is not a database, and is left as it is; name a file of its own").not_applied()
}

/// Refuses the database of another program.
pub(crate) fn refuse_foreign(connection: &Connection, path: &Path) -> Result<(), StoreError> {
    // In one transaction: another process may be about to make our own tables.
    let owner = || of(&*connection.unchecked_transaction()?);
    match owner() {
        Ok(Provenance::AnotherProgram) => Err(foreign(path)),
        Ok(Provenance::Lockkeeper | Provenance::Nobody) => Ok(()),
        Err(error) => Err(explain(path, error).not_applied()),
    }
}

/// Refuses the database of another program, and a file that is no database, without leaving a trace: it takes no lock,
/// makes nothing beside the file, and leaves a half-done change of that program as it is. It does not see tables that
/// are only in a log.
///
/// A file with a log may look damaged and be sound: SQLite moves pages from the log into the file one by one, and a
/// process that is killed meanwhile leaves it so. Then the file has to be opened to know.
pub(crate) fn refuse_foreign_untouched(path: &Path, has_log: impl Fn() -> bool) -> Result<(), StoreError> {
    let before = has_log();
    match look_untouched(path) {
        Err(error) if is_damage(&error) && (before || has_log()) => Ok(()),
        Err(error) if is_no_database(&error) && !before && !has_log() => Err(no_database(path)),
        looked => looked,
    }
}

fn look_untouched(path: &Path) -> Result<(), StoreError> {
    let flags =
        OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX | OpenFlags::SQLITE_OPEN_URI;
    // SQLite itself must open and close it: any other close would end the locks that this process has on the file.
    let opened = Connection::open_with_flags(immutable_uri(path), flags);
    let connection = opened.map_err(|error| explain(path, error).not_applied())?;
    refuse_foreign(&connection, path)
}

/// The URI with which SQLite neither locks the file nor looks at the files beside it.
fn immutable_uri(path: &Path) -> String {
    let mut uri = "file:".to_owned();
    // By bytes: a path need not be UTF-8.
    for byte in path.as_os_str().as_bytes() {
        if byte.is_ascii_alphanumeric() || b"/-_.".contains(byte) {
            uri.push(char::from(*byte));
        } else {
            write!(uri, "%{byte:02X}").expect("writing to a string cannot fail");
        }
    }
    uri + "?immutable=1"
}
