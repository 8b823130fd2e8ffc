//! Turns errors of the server and of the driver into `StoreError`s that say what to do. None of them shows a password.

use lockkeeper_core::{StoreError, StoreErrorKind};
use mysql_async::{DriverError, Error, IoError};

/// The URL, an option or the server's settings are wrong.
pub(crate) fn config(message: impl Into<String>) -> StoreError {
    StoreError::new(StoreErrorKind::Config, message).not_applied()
}

/// The tables are not as this program made them.
pub(crate) fn corrupt(message: impl Into<String>) -> StoreError {
    StoreError::new(StoreErrorKind::Corrupt, message).not_applied()
}

const REPLICA: &str =
    "this server takes no writes: it is a replica, or read_only is on; name the primary in the URL";

/// The server is a replica.
pub(crate) fn replica() -> StoreError {
    StoreError::new(StoreErrorKind::Unreachable, REPLICA).not_applied()
}

/// A name is locked by another transaction, and nothing was done.
pub(crate) fn busy() -> StoreError {
    let message = "another transaction works on this name just now; it is asked again";
    StoreError::new(StoreErrorKind::Conflict, message).not_applied()
}

/// The time limit passed. Whether anything was done is not known.
pub(crate) fn too_slow() -> StoreError {
    let message = "the server did not answer in time; check that it is up and not overloaded, or allow more time with \
                   request_limit= and connect_limit=";
    StoreError::new(StoreErrorKind::Unreachable, message)
}

/// The server at `address` took too long to let this program in, so nothing was done.
pub(crate) fn silent(address: &str) -> StoreError {
    let message = format!(
        "no answer from {address} in time; check that it is up, that it is MariaDB or MySQL and not overloaded, or allow \
         more time with connect_limit="
    );
    StoreError::new(StoreErrorKind::Unreachable, message).not_applied()
}

/// The store was closed.
pub(crate) fn closed() -> StoreError {
    StoreError::new(StoreErrorKind::Unreachable, "the connection was closed; connect anew").not_applied()
}

/// The effect of a failure on the connection that it came from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Severity {
    /// Nothing was done, and the transaction can be rolled back: it lost against another one.
    LostRace,
    /// The connection is closed, in any state.
    Fatal,
}

/// The number of a server's error.
pub(crate) fn code(error: &Error) -> Option<u16> {
    match error {
        Error::Server(error) => Some(error.code),
        _ => None,
    }
}

/// Returns how bad an error is. Few errors leave a connection that a rollback makes good: a lock that took too long, a
/// deadlock, and a row that changed since it was read.
pub(crate) fn severity(error: &Error) -> Severity {
    match code(error) {
        Some(1020 | 1205 | 1213 | 1969 | 3024 | 3572) => Severity::LostRace,
        _ => Severity::Fatal,
    }
}

/// Adds the meaning of an error and its remedy. It counts as maybe applied if there was no answer; the caller knows
/// more.
pub(crate) fn explain(error: Error) -> StoreError {
    let Error::Server(answer) = &error else { return unanswered(error) };
    let (code, said) = (answer.code, answer.message.clone());
    let message = match known(code) {
        Some((kind, remedy)) => (kind, format!("{remedy} (the server said: {code} {said})")),
        None => {
            let message = format!("the server refused the request (the server said: {code} {said})");
            (StoreErrorKind::Config, message)
        }
    };
    StoreError::new(message.0, message.1).not_applied()
}

/// There was no answer, or none that the driver understands.
fn unanswered(error: Error) -> StoreError {
    let lost = "the connection to the server failed; check that it is up and can be reached";
    let (kind, message) = refused_by_driver(&error).unwrap_or((StoreErrorKind::Unreachable, lost));
    with_cause(StoreError::new(kind, message), error)
}

/// The remedy for an error that the driver raises by itself.
fn refused_by_driver(error: &Error) -> Option<Remedy> {
    use StoreErrorKind::{Config, Denied};
    let Error::Driver(error) = error else { return None };
    Some(match error {
        DriverError::NoClientSslFlagFromServer => {
            (Config, "the server has no TLS; set it up there, or write ssl-mode=disabled")
        }
        DriverError::UnknownAuthPlugin { .. }
        | DriverError::MysqlOldPasswordDisabled
        | DriverError::CleartextPluginDisabled => (
            Denied,
            "this user logs in by a method that is not supported; use mysql_native_password or caching_sha2_password",
        ),
        DriverError::PacketTooLarge => {
            (Config, "a packet was too large; raise max_allowed_packet of the server")
        }
        _ => return None,
    })
}

/// No connection to the server at `address` could be opened, so nothing was done.
pub(crate) fn not_connected(address: &str, error: Error) -> StoreError {
    let cause = match &error {
        Error::Io(io) if is_tls(io) => {
            let message = format!(
                "the TLS handshake with {address} failed; check ssl-ca, ssl-cert and ssl-key, and that the server's \
                 certificate is for this host"
            );
            return with_cause(StoreError::new(StoreErrorKind::Denied, message).not_applied(), error);
        }
        Error::Server(_) => return explain(error),
        known if refused_by_driver(known).is_some() => return explain(error).not_applied(),
        Error::Io(IoError::Io(cause)) => cause.to_string(),
        Error::Driver(cause) => cause.to_string(),
        other => other.to_string(),
    };
    let (cause, remedy) =
        (cause.trim_end_matches('.'), "check that the server runs, and its host, port or socket");
    let message = format!("could not connect to {address}: {cause}; {remedy}");
    StoreError::new(StoreErrorKind::Unreachable, message).not_applied()
}

/// Adds the cause without the driver's own words around it, which only repeat its kind.
fn with_cause(explained: StoreError, error: Error) -> StoreError {
    match error {
        Error::Io(IoError::Io(cause)) => explained.with_source(cause),
        Error::Driver(cause) => explained.with_source(cause),
        other => explained.with_source(other),
    }
}

#[cfg(feature = "tls")]
fn is_tls(error: &IoError) -> bool {
    match error {
        IoError::Tls(_) => true,
        // The errors that rustls finds while it reads or writes.
        IoError::Io(io) => io.get_ref().is_some_and(|inner| inner.is::<rustls::Error>()),
    }
}

#[cfg(not(feature = "tls"))]
fn is_tls(_error: &IoError) -> bool {
    false
}

/// The kind of a trouble, and its remedy.
type Remedy = (StoreErrorKind, &'static str);

fn known(code: u16) -> Option<Remedy> {
    not_ready(code).or_else(|| no_access(code)).or_else(|| passing(code)).or_else(|| wrong(code))
}

/// The server cannot do it now.
fn not_ready(code: u16) -> Option<Remedy> {
    let remedy = match code {
        1290 | 1792 | 1836 => REPLICA,
        1053 | 1077 | 1079 | 1152 | 1158..=1161 | 1184 | 1927 | 3169 | 4031 => {
            "the server ended the connection: it stops, somebody ended this session, or this process stood still"
        }
        1040 | 1203 | 1226 => {
            "the server has no connection left for this user; raise max_connections or the user's limit, or end programs \
             that keep too many"
        }
        1021 | 1026 | 1030 | 1037 | 1038 | 1041 | 1114 | 1180 | 1297 => {
            "the server has no disk space or memory left, or its disk fails; see its log"
        }
        _ => return None,
    };
    Some((StoreErrorKind::Unreachable, remedy))
}

fn no_access(code: u16) -> Option<Remedy> {
    use StoreErrorKind::{Config, Denied};
    Some(match code {
        1045 | 1130 | 1698 | 1820 | 1862 | 3118 | 4151 => (
            Denied,
            "the server does not let this user in; check user, password and from where the user may connect",
        ),
        1129 => (Denied, "the server blocks this host after many failed logins; run FLUSH HOSTS there"),
        3159 => (Denied, "the server takes TLS only; write ssl-mode=verify_identity"),
        1044 | 1142 | 1143 | 1227 => {
            (Denied, "this user lacks a right; give it to the user, or name another user in the URL")
        }
        1049 => {
            (Config, "there is no such database; make it with CREATE DATABASE, or name another in the URL")
        }
        _ => return None,
    })
}

/// Nothing was done, for a reason that passes.
fn passing(code: u16) -> Option<Remedy> {
    let remedy = match code {
        1205 | 1969 | 3024 | 3572 => "another transaction works on this name for long; it is asked again",
        1020 | 1213 => "another transaction was in the way; it is asked again",
        1317 => "the statement was cancelled by an administrator; it is asked again",
        _ => return None,
    };
    Some((StoreErrorKind::Conflict, remedy))
}

fn wrong(code: u16) -> Option<Remedy> {
    use StoreErrorKind::{Config, Corrupt};
    Some(match code {
        1048 | 1051 | 1054 | 1062 | 1109 | 1136 | 1146 | 1242 | 1264 | 1265 | 1364 | 1366 | 1406 | 1442
        | 1932 => (
            Corrupt,
            "somebody has changed the tables of the store; restore them, or name another prefix= in the URL",
        ),
        1153 | 1162 => (Config, "a packet was too large; raise max_allowed_packet of the server"),
        1665 => {
            (Config, "the server's binary log has statements only; set binlog_format to MIXED or ROW there")
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use std::io;

    use lockkeeper_core::support::sentence;
    use mysql_async::ServerError;

    use super::*;

    fn error(code: u16) -> Error {
        Error::Server(ServerError { code, message: "words".into(), state: "HY000".into() })
    }

    #[test]
    fn answers_of_the_server_say_what_to_do() {
        for (code, kind, word) in [
            (1045, StoreErrorKind::Denied, "password"),
            (1049, StoreErrorKind::Config, "CREATE DATABASE"),
            (1040, StoreErrorKind::Unreachable, "max_connections"),
            (1290, StoreErrorKind::Unreachable, "replica"),
            (1213, StoreErrorKind::Conflict, "asked again"),
            (1146, StoreErrorKind::Corrupt, "restore"),
            (9999, StoreErrorKind::Config, "9999 words"),
        ] {
            let explained = explain(error(code));
            assert_eq!(explained.kind(), kind, "{explained}");
            assert!(explained.to_string().contains(word) && !explained.maybe_applied(), "{explained}");
            assert_eq!(sentence::of(&explained).matches("words").count(), 1, "the server's words, once");
        }
        let refused = io::Error::from(io::ErrorKind::ConnectionRefused);
        let told = sentence::of(&not_connected("[::1]:3306", Error::Io(IoError::Io(refused))));
        assert!(told.starts_with("could not connect to [::1]:3306: connection refused; "), "{told}");
        assert_eq!(told.matches("refused").count(), 1, "{told}");
        let closed = not_connected("db:3306", Error::Driver(DriverError::ConnectionClosed));
        let told = sentence::of(&closed);
        assert!(told.starts_with("could not connect to db:3306: ") && !closed.maybe_applied(), "{told}");
        assert_eq!(told.matches("losed").count(), 1, "{told}");
        assert_eq!(severity(&error(1205)), Severity::LostRace);
        assert_eq!(severity(&error(1317)), Severity::Fatal);
        let cut = explain(Error::Driver(DriverError::ConnectionClosed));
        assert!(cut.maybe_applied() && cut.is_passing(), "{cut}");
    }
}
