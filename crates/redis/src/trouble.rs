//! Turns errors of servers and of the driver into `StoreError`s that say what to do. None of them ever shows a
//! password.

use std::io;

use lockkeeper_core::{StoreError, StoreErrorKind};
use redis::{RedisError, ServerError};

use crate::address::{Address, Shape};

/// The server answered with an error.
pub(crate) fn refused(error: &ServerError) -> StoreError {
    let (code, details) = (error.code(), without_words(error.details().unwrap_or_default()));
    explain(code, details).unwrap_or_else(|| {
        // A script that failed half-way, or a new kind of error: whether it did anything is not known.
        let message = format!("the server refused the request (the server said: {code} {details})");
        StoreError::new(StoreErrorKind::Config, message).perhaps_applied()
    })
}

/// Whether nothing was done because the slot of a call is on its way to another node: its keys are not all on one node,
/// or the script would have to make a key on the node that the slot leaves. A script fails there before its first
/// write, since no script removes a key and then writes it again.
pub(crate) fn is_half_moved(error: &ServerError) -> bool {
    error.code() == "TRYAGAIN" || error.details().is_some_and(|details| details.contains(NOT_LOCAL))
}

const NOT_LOCAL: &str = "attempted to access a non local key";

/// The message of a server, without the words that it repeats from the request: a password may be among them.
fn without_words(details: &str) -> &str {
    details.split(", with args beginning with").next().unwrap_or_default()
}

/// Whether a command inside of a script was denied, and not the script itself: the commands before it were done. Redis
/// 7.0 uses the first text, newer versions the second.
fn is_denied_in_a_script(details: &str) -> bool {
    details.contains("user executing the script can't") || details.contains("ACL failure in script")
}

/// Whether nothing was done, because this user may not do it.
pub(crate) fn is_denied(error: &StoreError) -> bool {
    error.kind() == StoreErrorKind::Denied && !error.maybe_applied()
}

/// Explains an error of a server, if it is known. Nothing was done, unless a script was denied one of its commands.
fn explain(code: &str, details: &str) -> Option<StoreError> {
    let (kind, remedy) = server_not_ready(code)
        .or_else(|| slot_moves(code, details))
        .or_else(|| no_access(code, details))
        .or_else(|| wrong_server(code, details))?;
    let error = StoreError::new(kind, format!("{remedy} (the server said: {code} {details})"));
    Some(if is_denied_in_a_script(details) { error.perhaps_applied() } else { error.not_applied() })
}

/// The kind of trouble, and the remedy.
type Remedy = (StoreErrorKind, &'static str);

/// The server cannot do it now. It has answered, so it is reachable.
fn server_not_ready(code: &str) -> Option<Remedy> {
    use StoreErrorKind::Conflict;
    Some(match code {
        "READONLY" => (
            Conflict,
            "this server is a replica and takes no writes: a failover is under way, or the URL names a replica; \
             name the master, or use redis+sentinel:// or redis+cluster://, which find it",
        ),
        "MASTERDOWN" => (Conflict, "this replica has lost its master; wait for the failover"),
        "LOADING" => (Conflict, "the server is loading its data; it answers when that is done"),
        "CLUSTERDOWN" => (
            Conflict,
            "the cluster does not serve this slot; see `redis-cli cluster info` for the nodes that are missing",
        ),
        // Only if there was no time left to send its text.
        "NOSCRIPT" => (Conflict, "the server has forgotten a script; it is sent with the next try"),
        "OOM" => (
            Conflict,
            "the server is out of memory; raise maxmemory or remove data. Renewals and releases go on meanwhile",
        ),
        "MISCONF" => (
            Conflict,
            "the server takes no writes because it cannot save its data; free disk space or repair its folder",
        ),
        "NOREPLICAS" => {
            (Conflict, "the server takes no writes because it has too few replicas (min-replicas-to-write)")
        }
        "BUSY" => (
            Conflict,
            "another client's script keeps the server busy; end it with SCRIPT KILL if it is stuck",
        ),
        _ => return None,
    })
}

/// The slot is on its way to another node.
fn slot_moves(code: &str, details: &str) -> Option<Remedy> {
    let moves = matches!(code, "TRYAGAIN" | "MOVED" | "ASK") || code == "ERR" && details.contains(NOT_LOCAL);
    let remedy = "the slot of this resource is being moved to another node; try again after the move";
    moves.then_some((StoreErrorKind::Conflict, remedy))
}

/// The user may not do it.
fn no_access(code: &str, details: &str) -> Option<Remedy> {
    let remedy = match code {
        "NOAUTH" => "the server asks for a password; put it into the URL: redis://user:password@host",
        "WRONGPASS" => WRONG_LOGIN,
        code if code == "NOPERM" || is_denied_in_a_script(details) => {
            "the user may not do this; it needs: ~NAMESPACE:* &NAMESPACE:* +@read +@write +@scripting +@pubsub \
             +@connection +time +wait +info +config|get +cluster|slots +cluster|info +role"
        }
        "ERR"
            if details.contains("without any password configured")
                || details.contains("no password is set") =>
        {
            "the server has no password, and the URL has one; set it at the server or leave it out of the URL"
        }
        _ => return None,
    };
    Some((StoreErrorKind::Denied, remedy))
}

/// The server is another one than the URL takes it for, or has no room.
fn wrong_server(code: &str, details: &str) -> Option<Remedy> {
    use StoreErrorKind::{Config, Conflict};
    Some(match code {
        "CROSSSLOT" => (Config, "this server is part of a cluster; use redis+cluster:// in the URL"),
        "NOPROTO" => (Config, NO_RESP3),
        _ if details.contains("invalid DB index") || details.contains("DB index is out of range") => {
            (Config, "the server has no such database; change the number at the end of the URL")
        }
        "ERR" if details.contains("cluster support disabled") => {
            (Config, "this server is not part of a cluster; use redis:// in the URL")
        }
        "ERR" if details.contains("max number of clients") => {
            (Conflict, "the server has no connection left; raise maxclients, or close some of its clients")
        }
        "ERR" if is_unknown_command(details) => {
            (Config, "the server does not know a command that locks need; use Redis 7.0 or newer")
        }
        _ => return None,
    })
}

const WRONG_LOGIN: &str = "the server refused user or password; check both in the URL";
const NO_RESP3: &str = "the server does not speak RESP3; add protocol=resp2 to the URL";

/// The key of a resource holds something that is not a lock.
pub(crate) fn foreign() -> StoreError {
    StoreError::new(
        StoreErrorKind::Corrupt,
        "the key of this resource holds something that is not a lock; choose another namespace= in the URL",
    )
}

/// The numbers of grants are too high for tokens.
pub(crate) fn high_water_too_high() -> StoreError {
    StoreError::new(
        StoreErrorKind::Corrupt,
        "the key of the highest grant number (…:mark) holds a number that no clock gives; remove it once no lock of this \
         namespace is held",
    )
    .perhaps_applied()
}

/// The connection broke before the answer came: the request may have been done.
pub(crate) fn unanswered(address: &str, error: RedisError) -> StoreError {
    let message = format!("the connection to {address} broke; the next request opens a new one");
    StoreError::new(StoreErrorKind::Unreachable, message).with_source(error)
}

/// The runtime that drove the connection is left before the answer came: the request may have been done.
pub(crate) fn caller_left(address: &str) -> StoreError {
    let message = format!(
        "the runtime of the connection to {address} is blocked or gone; the next request opens a new one"
    );
    StoreError::new(StoreErrorKind::Unreachable, message)
}

/// No answer within the limit.
pub(crate) fn too_late(address: &str) -> StoreError {
    StoreError::new(
        StoreErrorKind::Unreachable,
        format!("no answer from {address} in time; check that it is up and reachable"),
    )
}

/// A connection could not be opened, so nothing was sent.
pub(crate) fn not_connected(address: &str, error: RedisError) -> StoreError {
    if let Some(code) = error.code().filter(|_| !error.is_io_error()) {
        let details = without_words(error.detail().unwrap_or_default());
        // Without its source, which may show the request.
        return explain(code, details).unwrap_or_else(|| {
            let message = format!("could not connect to {address} (the server said: {code} {details})");
            StoreError::new(StoreErrorKind::Unreachable, message).not_applied()
        });
    }
    let (kind, remedy) = match error.kind() {
        redis::ErrorKind::AuthenticationFailed => (StoreErrorKind::Denied, WRONG_LOGIN),
        redis::ErrorKind::RESP3NotSupported => (StoreErrorKind::Config, NO_RESP3),
        redis::ErrorKind::Parse | redis::ErrorKind::UnexpectedReturnType => {
            (StoreErrorKind::Unreachable, "what answers there is no Redis server; check the address and port")
        }
        _ => (StoreErrorKind::Unreachable, "check that it is up, and the address and port"),
    };
    StoreError::new(kind, format!("could not connect to {address}; {remedy}"))
        .not_applied()
        .with_source(error)
}

/// A socket could not be opened, so nothing was sent.
pub(crate) fn no_socket(address: &str, error: io::Error) -> StoreError {
    let (kind, remedy) = match error.kind() {
        io::ErrorKind::InvalidData => (
            StoreErrorKind::Denied,
            "TLS failed: check that the certificate is for this host and that ca= names who signed it",
        ),
        io::ErrorKind::PermissionDenied => (StoreErrorKind::Denied, "give this user access to the socket"),
        io::ErrorKind::NotFound => {
            (StoreErrorKind::Unreachable, "the socket is not there; check path and server")
        }
        _ => (StoreErrorKind::Unreachable, "check that it is up, and the address and port"),
    };
    StoreError::new(kind, format!("could not connect to {address}: {error}; {remedy}"))
        .not_applied()
        .with_source(error)
}

/// The server was reached and did not let this client in, so nothing was done. The greeting of RESP3 is `HELLO`; old
/// servers and proxies that do not know it answer in various ways.
pub(crate) fn not_greeted(address: &Address, resp3: bool, error: RedisError) -> StoreError {
    let address = address.to_string();
    let details = without_words(error.detail().unwrap_or_default()).to_owned();
    if resp3 && error.is_io_error() && !error.is_timeout() {
        let message = format!(
            "{address} ended the connection at the greeting; check that it is a Redis server, that it is up, and whether it \
             wants TLS (rediss://); if it is an old one or behind a proxy, add protocol=resp2 to the URL"
        );
        return StoreError::new(StoreErrorKind::Unreachable, message).not_applied().with_source(error);
    }
    let plain = error.code() == Some("ERR") && !error.is_io_error();
    let explained = explain("ERR", &details).is_some() && !is_unknown_command(&details);
    if !resp3 || !plain || explained {
        return not_connected(&address, error);
    }
    let message = format!(
        "{address} does not know the greeting of RESP3, or refuses it; add protocol=resp2 to the URL (the server said: ERR {details})"
    );
    StoreError::new(StoreErrorKind::Config, message).not_applied()
}

/// The server speaks TLS and the URL does not ask for it, or the other way round: nothing was done.
pub(crate) fn wrong_scheme(address: &Address, shape: &Shape, speaks_tls: bool) -> StoreError {
    let form = match shape {
        Shape::Single(_) => "",
        Shape::Sentinel(..) => "+sentinel",
        Shape::Cluster(_) => "+cluster",
    };
    let message = if speaks_tls {
        format!("{address} speaks TLS; write rediss{form}:// in the URL instead of redis{form}://")
    } else {
        format!("{address} does not speak TLS; write redis{form}:// in the URL instead of rediss{form}://")
    };
    config(message).not_applied()
}

fn is_unknown_command(details: &str) -> bool {
    details.contains("unknown command")
}

/// The sentinels that answer name a master of an older epoch than one that they agreed on before.
pub(crate) fn outdated_sentinels(epoch: u64, seen: u64) -> StoreError {
    let message = format!(
        "the sentinels that answer name the master of epoch {epoch}, but epoch {seen} was seen before; wait until they know \
         it again; if they were set up anew, make a new keeper"
    );
    StoreError::new(StoreErrorKind::Unreachable, message).not_applied()
}

/// A sentinel does not know the master that the URL names.
pub(crate) fn unknown_master(sentinel: &str, name: &str) -> StoreError {
    config(format!("the sentinel at {sentinel} knows no master {name:?}; check the name in the URL"))
        .not_applied()
}

/// The sentinels name a server that is a replica, so nothing was sent.
pub(crate) fn not_a_master(address: &Address) -> StoreError {
    let message =
        format!("{address} is a replica, but the sentinels say that it is the master; wait for the failover");
    StoreError::new(StoreErrorKind::Unreachable, message).not_applied()
}

/// A connection ended while nothing was asked.
pub(crate) fn ended(address: &str) -> StoreError {
    StoreError::new(StoreErrorKind::Unreachable, format!("the connection to {address} ended")).not_applied()
}

/// The URL names a single server, and the server is part of a cluster: nothing was done.
pub(crate) fn part_of_a_cluster(error: &ServerError) -> StoreError {
    let (code, details) = (error.code(), without_words(error.details().unwrap_or_default()));
    let message = format!(
        "this server is part of a cluster; use redis+cluster:// in the URL (the server said: {code} {details})"
    );
    config(message).not_applied()
}

/// An answer that does not fit the request, or that no script of this program gives.
pub(crate) fn nonsense(what: &str) -> StoreError {
    let message =
        format!("the server's answer makes no sense ({what}); is a proxy in between that mixes up replies?");
    StoreError::new(StoreErrorKind::Unreachable, message)
}

pub(crate) fn config(message: impl Into<String>) -> StoreError {
    StoreError::new(StoreErrorKind::Config, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// MariaDB greets a client before it has said anything.
    #[test]
    fn a_server_of_another_kind_is_told_apart() {
        let said = redis::parse_redis_value(b"\x5b\0\0\0\x0a5.5.5-10.11.19-MariaDB\0");
        let told = not_connected("127.0.0.1:3306", said.expect_err("no answer of Redis")).to_string();
        assert!(told.contains("is no Redis server; check the address and port"), "{told}");
    }

    #[test]
    fn passing_trouble_is_told_from_lasting_trouble() {
        use StoreErrorKind::{Config, Conflict, Denied};
        for (code, kind) in [
            ("READONLY", Conflict),
            ("MASTERDOWN", Conflict),
            ("LOADING", Conflict),
            ("CLUSTERDOWN", Conflict),
            ("TRYAGAIN", Conflict),
            ("NOSCRIPT", Conflict),
            ("OOM", Conflict),
            ("NOAUTH", Denied),
            ("WRONGPASS", Denied),
            ("NOPERM", Denied),
            ("CROSSSLOT", Config),
        ] {
            let error = explain(code, "details").expect("known");
            assert_eq!(error.kind(), kind, "{code}");
            assert!(!error.maybe_applied() && error.to_string().contains(code), "{error}");
        }
        let said = redis::parse_redis_value(b"-ERR user_script:3: attempt to index a nil value\r\n");
        let Ok(redis::Value::ServerError(half_way)) = said else { panic!("no error: {said:?}") };
        assert!(refused(&half_way).maybe_applied(), "{half_way:?}");
        for (code, words) in [
            (
                "ERR",
                "The user executing the script can't run this command or subcommand script: 1f, on @user_script:3.",
            ),
            (
                "NOPERM",
                "ACL failure in script: User u has no permissions to run the 'rename' command script: 1f, on @user_script:3.",
            ),
        ] {
            let half_way = explain(code, words).expect("known");
            assert!(half_way.kind() == Denied && half_way.maybe_applied(), "{half_way:?}");
        }
        for words in [
            "max number of clients reached",
            "Script attempted to access a non local key in a cluster node script: 1f, on @user_script:3.",
        ] {
            let passing = explain("ERR", words).expect("known");
            assert!(passing.is_passing() && !passing.maybe_applied(), "{passing}");
        }
    }
}
