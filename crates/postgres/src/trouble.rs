//! Turns errors of the server and of the driver into `StoreError`s that say what to do. None of them shows a password.

use std::{error::Error as _, io};

use lockkeeper_core::{StoreError, StoreErrorKind};
use tokio_postgres::{Error, error::SqlState};

/// The URL, an option or the server's settings are wrong.
pub(crate) fn config(message: impl Into<String>) -> StoreError {
    StoreError::new(StoreErrorKind::Config, message).not_applied()
}

/// The tables are not what this program made.
pub(crate) fn corrupt(message: impl Into<String>) -> StoreError {
    StoreError::new(StoreErrorKind::Corrupt, message).not_applied()
}

const REPLICA: &str = "this server takes no writes: it is a replica, or default_transaction_read_only is on; name the \
                       primary, or all servers with commas between";

/// The server is a replica.
pub(crate) fn replica() -> StoreError {
    StoreError::new(StoreErrorKind::Unreachable, REPLICA).not_applied()
}

/// The server is one that another has taken the place of.
pub(crate) fn replaced() -> StoreError {
    let message = "this server was replaced: another one has taken over since, which this program has used; stop the old \
                   one, or name the new one in the URL; after a restored backup, restart this program";
    StoreError::new(StoreErrorKind::Unreachable, message).not_applied()
}

pub(crate) const POOLER: &str = "a pooler is between this program and the server, and may run the statements of other programs in place \
                      of this one's; write pooler=true in the URL, or connect to the server itself";

/// A pooler spreads the statements of a session over several server processes.
pub(crate) fn pooler() -> StoreError {
    config(POOLER)
}

/// Whether an error says that there is a pooler.
pub(crate) fn is_pooler(error: &StoreError) -> bool {
    error.kind() == StoreErrorKind::Config && error.to_string().contains(POOLER)
}

/// A name is locked by another transaction, and nothing was done.
pub(crate) fn busy() -> StoreError {
    let message = "another transaction works on this name just now; it is asked again";
    StoreError::new(StoreErrorKind::Conflict, message).not_applied()
}

/// The time limit passed. Whether anything was done is not known.
pub(crate) fn too_slow() -> StoreError {
    let message = "the server did not answer in time; check that it is up and not overloaded, or allow more time with \
                   request_limit=";
    StoreError::new(StoreErrorKind::Unreachable, message)
}

/// The store was closed.
pub(crate) fn closed() -> StoreError {
    StoreError::new(StoreErrorKind::Unreachable, "the connection was closed; connect anew").not_applied()
}

/// What a failure means for the connection that it came from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Severity {
    /// Nothing was done, and the transaction can be rolled back: it lost against another one.
    LostRace,
    /// Whatever state the connection is in, it is closed.
    Fatal,
}

/// Whether a statement was cancelled, by its time limit or by somebody. Its transaction can be rolled back.
pub(crate) fn is_cancelled(error: &Error) -> bool {
    error.code() == Some(&SqlState::QUERY_CANCELED)
}

/// How bad an error is. Only three are known to leave a connection that a rollback makes good.
pub(crate) fn severity(error: &Error) -> Severity {
    let lost = [
        &SqlState::LOCK_NOT_AVAILABLE,
        &SqlState::T_R_DEADLOCK_DETECTED,
        &SqlState::T_R_SERIALIZATION_FAILURE,
    ];
    if error.code().is_some_and(|code| lost.contains(&code)) { Severity::LostRace } else { Severity::Fatal }
}

/// What an error means and what to do. It counts as maybe applied if there was no answer; the caller knows more.
pub(crate) fn explain(error: Error) -> StoreError {
    let said = error.as_db_error().map(|error| error.message().to_owned()).unwrap_or_default();
    let known = error.code().and_then(|code| lost_by_pooler(code, &said).or_else(|| known(code)));
    let Some((kind, remedy)) = known else { return unknown(error) };
    StoreError::new(kind, format!("{remedy} (the server said: {said})")).not_applied()
}

fn unknown(error: Error) -> StoreError {
    if let Some(answer) = error.as_db_error() {
        let (code, said) = (answer.code().code().to_owned(), answer.message().to_owned());
        // Resources, interventions, and errors of the system or of the server itself may pass.
        let passes = ["08", "53", "57", "58", "XX"].iter().any(|class| code.starts_with(class));
        let kind = if passes { StoreErrorKind::Unreachable } else { StoreErrorKind::Config };
        let message = format!("the server refused the request (the server said: {code} {said})");
        return StoreError::new(kind, message).not_applied();
    }
    // The driver tells this kind apart by its text only.
    if error.to_string().starts_with("error performing TLS handshake") {
        let message = "the TLS handshake failed; check sslrootcert, sslcert and sslkey, that the server's certificate is for \
                       this host, and that the server has TLS";
        return StoreError::new(StoreErrorKind::Denied, message).not_applied().with_source(error);
    }
    if error.to_string().starts_with("invalid configuration") {
        let message = "the server asks for a password, or for another kind of login than the URL has; write user and password";
        return StoreError::new(StoreErrorKind::Denied, message).not_applied().with_source(error);
    }
    let refused = error.source().and_then(|source| source.downcast_ref::<io::Error>()).map(io::Error::kind);
    let message = match refused {
        Some(io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound) => {
            "nobody listens there; check that the server runs, and its host, port or socket"
        }
        _ => "the connection to the server failed; check that it is up and can be reached",
    };
    StoreError::new(StoreErrorKind::Unreachable, message).with_source(error)
}

/// What kind of trouble it is, and what to do.
type Remedy = (StoreErrorKind, &'static str);

fn known(code: &SqlState) -> Option<Remedy> {
    not_ready(code).or_else(|| no_access(code)).or_else(|| passing(code)).or_else(|| damaged(code))
}

/// The server cannot do it now.
fn not_ready(code: &SqlState) -> Option<Remedy> {
    use StoreErrorKind::Unreachable;
    Some(match *code {
        SqlState::READ_ONLY_SQL_TRANSACTION => (Unreachable, REPLICA),
        SqlState::CANNOT_CONNECT_NOW => {
            (Unreachable, "the server starts, stops or recovers; it is asked again")
        }
        SqlState::ADMIN_SHUTDOWN | SqlState::CRASH_SHUTDOWN | SqlState::DATABASE_DROPPED => {
            (Unreachable, "the server ended the connection: it stops, or somebody ended this session")
        }
        SqlState::IDLE_IN_TRANSACTION_SESSION_TIMEOUT => (
            Unreachable,
            "this process stood still inside of a transaction, and the server ended it; nothing was done",
        ),
        SqlState::TOO_MANY_CONNECTIONS => (
            Unreachable,
            "the server has no connection left; raise max_connections, or end programs that keep too many",
        ),
        SqlState::DISK_FULL | SqlState::OUT_OF_MEMORY | SqlState::INSUFFICIENT_RESOURCES => {
            (Unreachable, "the server has no disk space or memory left; free some")
        }
        _ => return None,
    })
}

/// What a pooler says itself, under one code: that it does not know a setting of the startup message, which every session
/// without `pooler=true` has; or that it lost the server.
fn lost_by_pooler(code: &SqlState, said: &str) -> Option<Remedy> {
    let lost = "the pooler lost its server, or has none now; it is asked again";
    (*code == SqlState::PROTOCOL_VIOLATION && !said.contains("startup parameter"))
        .then_some((StoreErrorKind::Unreachable, lost))
}

/// Whether the error may come from a pooler rather than from the server: then it tells nothing about the transaction.
pub(crate) fn may_be_a_poolers(error: &Error) -> bool {
    error.code().is_some_and(|code| code.code().starts_with("08"))
}

fn no_access(code: &SqlState) -> Option<Remedy> {
    use StoreErrorKind::{Config, Denied};
    Some(match *code {
        SqlState::INVALID_PASSWORD | SqlState::INVALID_AUTHORIZATION_SPECIFICATION => {
            (Denied, "the server does not let this user in; check user, password and pg_hba.conf")
        }
        SqlState::INSUFFICIENT_PRIVILEGE => {
            (Denied, "this user lacks a right; give it to the user, or name another user in the URL")
        }
        // A pooler refuses settings in the startup message. Prepared statements are unknown, or there already, only if
        // another server process answers than the one that prepared them.
        SqlState::PROTOCOL_VIOLATION
        | SqlState::INVALID_SQL_STATEMENT_NAME
        | SqlState::DUPLICATE_PSTATEMENT => (Config, POOLER),
        SqlState::INVALID_CATALOG_NAME => {
            (Config, "there is no such database; make it with `createdb`, or name another in the URL")
        }
        _ => return None,
    })
}

/// Nothing was done, for a reason that passes.
fn passing(code: &SqlState) -> Option<Remedy> {
    use StoreErrorKind::Conflict;
    Some(match *code {
        SqlState::LOCK_NOT_AVAILABLE => {
            (Conflict, "another transaction works on this name for long; it is asked again")
        }
        SqlState::T_R_DEADLOCK_DETECTED | SqlState::T_R_SERIALIZATION_FAILURE => {
            (Conflict, "another transaction was in the way; it is asked again")
        }
        SqlState::QUERY_CANCELED => (
            Conflict,
            "the statement was cancelled, by an administrator or by a time limit; it is asked again",
        ),
        _ => return None,
    })
}

fn damaged(code: &SqlState) -> Option<Remedy> {
    let changed = [
        SqlState::UNDEFINED_TABLE,
        SqlState::UNDEFINED_COLUMN,
        SqlState::UNDEFINED_FUNCTION,
        SqlState::INVALID_SCHEMA_NAME,
        SqlState::DATATYPE_MISMATCH,
        SqlState::NOT_NULL_VIOLATION,
        SqlState::CHECK_VIOLATION,
        SqlState::DIVISION_BY_ZERO,
    ];
    changed.contains(code).then_some((
        StoreErrorKind::Corrupt,
        "somebody has changed the tables of the store; restore them, or name another schema= in the URL",
    ))
}
