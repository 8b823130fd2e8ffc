//! Turns errors of the server and of the driver into `StoreError`s that say what to do. None of them shows a password.

use std::{error::Error as _, io};

use lockkeeper_core::{StoreError, StoreErrorKind};
use tokio_postgres::{Error, error::SqlState};

/// The URL, an option or the server's settings are wrong.
pub(crate) fn config(message: impl Into<String>) -> StoreError {
    StoreError::new(StoreErrorKind::Config, message).not_applied()
}

/// The tables do not look as this program makes them.
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

/// The server at `address` took too long to let this program in, so nothing was done.
pub(crate) fn silent(address: &str) -> StoreError {
    let message = format!(
        "no answer from {address} in time; check that it is up, that it is PostgreSQL and not overloaded, or allow more \
         time with connect_limit="
    );
    StoreError::new(StoreErrorKind::Unreachable, message).not_applied()
}

/// The store was closed.
pub(crate) fn closed() -> StoreError {
    StoreError::new(StoreErrorKind::Unreachable, "the connection was closed; connect anew").not_applied()
}

/// The consequence of a failure for the connection that it came from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Severity {
    /// Nothing was done, and the transaction can be rolled back: it lost against another one.
    LostRace,
    /// The connection may be in any state, so it is closed.
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

/// Explains an error, with advice. It counts as maybe applied if there was no answer; the caller knows more.
pub(crate) fn explain(error: Error) -> StoreError {
    let said = error.as_db_error().map(|error| error.message().to_owned()).unwrap_or_default();
    let special = |code| lost_by_pooler(code, &said).or_else(|| lacks_tls(code, &said));
    let known = error.code().and_then(|code| special(code).or_else(|| known(code)));
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
    let message = "the connection to the server failed; check that it is up and can be reached";
    StoreError::new(StoreErrorKind::Unreachable, message).with_source(error)
}

/// No connection to the server at `address` could be opened, so nothing was done.
pub(crate) fn not_connected(address: &str, error: Error) -> StoreError {
    use StoreErrorKind::{Denied, Unreachable};
    if error.as_db_error().is_some() {
        return explain(error).not_applied();
    }
    // The driver tells these kinds apart by their texts only.
    let kind = error.to_string();
    // A server that refuses this program's certificate says so after the handshake.
    let is_tls = |cause: &io::Error| cause.kind() == io::ErrorKind::InvalidData;
    let cause = error.source().and_then(|cause| cause.downcast_ref::<io::Error>());
    let explained = if kind.starts_with("error performing TLS handshake") || cause.is_some_and(is_tls) {
        let message = format!(
            "the TLS handshake with {address} failed; check sslrootcert, sslcert and sslkey, that the server's certificate \
             is for this host, and that the server has TLS"
        );
        StoreError::new(Denied, message)
    } else if kind.starts_with("invalid configuration") {
        let message = format!(
            "{address} asks for a password, or for another kind of login than the URL has; write user and password"
        );
        StoreError::new(Denied, message)
    } else {
        let cause = error.source().map_or(kind, ToString::to_string);
        let is_foreign =
            ["unexpected message", "unknown message tag"].iter().any(|words| cause.starts_with(words));
        let remedy = match is_foreign {
            true => "what answers there is no PostgreSQL server; check host and port",
            false => "check that the server runs, and its host, port or socket",
        };
        StoreError::new(Unreachable, format!("could not connect to {address}: {cause}; {remedy}"))
    };
    let explained = explained.not_applied();
    // The driver's own words around its cause say no more.
    match error.into_source() {
        Some(cause) => {
            explained.with_source(cause.downcast::<io::Error>().map_or_else(io::Error::other, |cause| *cause))
        }
        None => explained,
    }
}

/// The kind of trouble, and the advice.
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

/// Recognizes a pooler that lost its server. Under the same code poolers say that they do not know a setting of the
/// startup message, which every session without `pooler=true` has.
fn lost_by_pooler(code: &SqlState, said: &str) -> Option<Remedy> {
    let lost = "the pooler lost its server, or has none now; it is asked again";
    (*code == SqlState::PROTOCOL_VIOLATION && !said.contains("startup parameter"))
        .then_some((StoreErrorKind::Unreachable, lost))
}

/// Recognizes a server that asks for TLS or for a certificate. It has no other code for these than for a wrong user.
fn lacks_tls(code: &SqlState, said: &str) -> Option<Remedy> {
    let remedy = if said.contains("client certificate") {
        "the server asks for a certificate of the client; name one that it trusts with sslcert= and sslkey="
    } else if said.ends_with("no encryption") || said.ends_with("SSL off") {
        "the server has no rule that lets this user in without TLS; write sslmode=require, or check pg_hba.conf"
    } else {
        return None;
    };
    (*code == SqlState::INVALID_AUTHORIZATION_SPECIFICATION).then_some((StoreErrorKind::Denied, remedy))
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

#[cfg(test)]
mod tests {
    use lockkeeper_core::support::sentence;
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        net::TcpListener,
    };
    use tokio_postgres::{Config, NoTls};

    use super::*;
    use crate::settings::{Settings, address};

    /// A driver's error is made by the driver only: this one connects to a port of this host.
    async fn refused_at(port: u16) -> (String, StoreError) {
        let url = format!("postgres://ada:canary@127.0.0.1:{port}/shop");
        let driver: Config = Settings::parse(&url).expect("a good URL").drivers.remove(0);
        let error = driver.connect(NoTls).await.err().expect("refused");
        (address(&driver), not_connected(&address(&driver), error))
    }

    /// The error that becomes of this `code`, sent by a server in answer to the first packet of a connection.
    async fn answered(code: &str) -> StoreError {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("bound").port();
        let fields = format!("SFATAL\0VFATAL\0C{code}\0Mwords\0\0");
        let server = async {
            let (mut socket, _) = listener.accept().await.expect("it connects");
            let length = socket.read_u32().await.expect("a length");
            let mut rest = vec![0; usize::try_from(length - 4).expect("small")];
            socket.read_exact(&mut rest).await.expect("a packet");
            let length = u32::try_from(fields.len() + 4).expect("small").to_be_bytes();
            socket.write_all(&[b"E", &length[..], fields.as_bytes()].concat()).await.expect("sent");
        };
        tokio::join!(refused_at(port), server).0.1
    }

    #[tokio::test]
    async fn answers_of_the_server_say_what_to_do_and_each_cause_once() {
        for (code, kind, word) in [
            ("28P01", StoreErrorKind::Denied, "password"),
            ("3D000", StoreErrorKind::Config, "createdb"),
            ("53300", StoreErrorKind::Unreachable, "max_connections"),
            ("25006", StoreErrorKind::Unreachable, "replica"),
            ("40P01", StoreErrorKind::Conflict, "asked again"),
            ("42P01", StoreErrorKind::Corrupt, "restore"),
            ("42000", StoreErrorKind::Config, "42000 words"),
        ] {
            let explained = answered(code).await;
            assert_eq!(explained.kind(), kind, "{explained}");
            assert!(explained.to_string().contains(word) && !explained.maybe_applied(), "{explained}");
            assert_eq!(sentence::of(&explained).matches("words").count(), 1, "the server's words, once");
        }
    }

    #[tokio::test]
    async fn a_server_that_cannot_be_reached_is_named_and_each_cause_is_said_once() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("bound").port();
        drop(listener);
        let (address, refused) = refused_at(port).await;
        let told = sentence::of(&refused);
        assert!(told.starts_with(&format!("could not connect to {address}: Connection refused")), "{told}");
        assert!(!told.contains("canary") && !format!("{refused:?}").contains("canary"), "{told}");
        assert_eq!(told.matches("refused").count(), 1, "{told}");
        assert_eq!(told.matches("connect").count(), 1, "{told}");
        assert!(refused.is_passing() && !refused.maybe_applied(), "{refused:?}");
    }
    /// MariaDB greets a client before it has said anything.
    #[tokio::test]
    async fn a_server_of_another_kind_is_told_apart() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("bound").port();
        let server = async {
            let (mut socket, _) = listener.accept().await.expect("called");
            socket.write_all(b"\x5b\0\0\0\x0a5.5.5-10.11.19-MariaDB\0").await.expect("sent");
            // Until the client has gone.
            socket.read_to_end(&mut Vec::new()).await.ok();
        };
        let ((_, refused), ()) = tokio::join!(refused_at(port), server);
        let told = sentence::of(&refused);
        assert!(told.contains("is no PostgreSQL server; check host and port"), "{told}");
    }
}
