//! Turns errors of SQLite and of the file system into `StoreError`s that say what to do.

use std::{error::Error as _, io, path::Path};

use lockkeeper_core::{StoreError, StoreErrorKind};
use rusqlite::ErrorCode;

/// An error of SQLite. The caller adds `not_applied`, unless it was a commit whose outcome is unknown.
pub(crate) fn explain(file: &Path, error: rusqlite::Error) -> StoreError {
    let file = file.display();
    let (kind, message) = match error.sqlite_error_code() {
        Some(code) if is_busy_code(code) => (StoreErrorKind::Conflict, busy(&file)),
        Some(ErrorCode::DiskFull) => {
            (StoreErrorKind::Conflict, format!("the disk of {file} is full; free some space"))
        }
        Some(
            ErrorCode::ReadOnly | ErrorCode::PermissionDenied | ErrorCode::AuthorizationForStatementDenied,
        ) => (
            StoreErrorKind::Denied,
            format!("{file} cannot be written; give this user write access to the file and its folder"),
        ),
        Some(ErrorCode::CannotOpen) => (
            StoreErrorKind::Denied,
            format!(
                "{file} or the files SQLite keeps beside it cannot be opened; check that this user may read \
                 and write the folder and what is in it, and that not too many files are open"
            ),
        ),
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => {
            (StoreErrorKind::Corrupt, damaged(&file))
        }
        Some(ErrorCode::SystemIoFailure) => (
            StoreErrorKind::Unreachable,
            format!("{file} cannot be read or written; check that its disk is there and healthy"),
        ),
        // SQLite has no error, but this program does not write such a row.
        None => (StoreErrorKind::Corrupt, damaged(&file)),
        Some(_) => (StoreErrorKind::Unreachable, format!("SQLite failed on {file}; the source says how")),
    };
    StoreError::new(kind, message).with_source(error)
}

/// Whether another process had the database locked.
pub(crate) fn is_busy(error: &StoreError) -> bool {
    code_of(error).is_some_and(is_busy_code)
}

/// Whether SQLite says that the file is no database at all.
pub(crate) fn is_no_database(error: &StoreError) -> bool {
    code_of(error) == Some(ErrorCode::NotADatabase)
}

/// Whether SQLite says that the file is a damaged database.
pub(crate) fn is_damage(error: &StoreError) -> bool {
    code_of(error) == Some(ErrorCode::DatabaseCorrupt)
}

fn code_of(error: &StoreError) -> Option<ErrorCode> {
    let source = error.source().and_then(|source| source.downcast_ref::<rusqlite::Error>());
    source.and_then(rusqlite::Error::sqlite_error_code)
}

/// The last of these codes means that very many processes asked for the file at the same moment.
fn is_busy_code(code: ErrorCode) -> bool {
    matches!(code, ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked | ErrorCode::FileLockingProtocolFailed)
}

/// SQLite also says so of a sound file if its disk answers a read with EIO.
fn damaged(file: &dyn std::fmt::Display) -> String {
    format!(
        "{file} is damaged or not an SQLite file, or its disk cannot be read; check the disk first; if that is healthy, \
         stop all that use the file, move it away together with its -wal and -shm files, and start again with a new one"
    )
}

/// The message for a write lock that another process has had for too long.
pub(crate) fn busy(file: &dyn std::fmt::Display) -> String {
    format!(
        "another process has kept {file} locked for too long; look for one that is stopped or stuck, or for \
         another program that writes to it (fuser -v {file}), and continue or end it"
    )
}

/// A file or folder that cannot be used as it is; `what` gives the reason and the remedy.
pub(crate) fn bad_file(path: &Path, what: &str) -> StoreError {
    StoreError::new(StoreErrorKind::Config, format!("{} {what}", path.display()))
}

/// A failed operation on a file or folder of ours.
pub(crate) fn file_trouble(doing: &str, path: &Path, error: io::Error) -> StoreError {
    let path = path.display();
    let (kind, remedy) = match error.kind() {
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            (StoreErrorKind::Denied, "give this user write access to the folder, or choose another one")
        }
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            (StoreErrorKind::Conflict, "the disk is full; free some space")
        }
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory | io::ErrorKind::AlreadyExists => {
            (StoreErrorKind::Config, "check the path: a part of it is not a folder")
        }
        _ => (StoreErrorKind::Unreachable, "check that the disk is there and healthy"),
    };
    StoreError::new(kind, format!("could not {doing} {path} ({error}); {remedy}"))
        .not_applied()
        .with_source(error)
}
