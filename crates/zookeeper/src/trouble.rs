//! Turns errors of the client into `StoreError`s that say what to do. Pure.

use lockkeeper_core::{StoreError, StoreErrorKind};
use zookeeper_client::{CheckWriteError, Error, MultiWriteError};

/// Explains the `error` of a request that was sent, and so may have been applied.
pub(crate) fn trouble(error: Error) -> StoreError {
    let (kind, message) = match &error {
        Error::ConnectionLoss
        | Error::Timeout
        | Error::NoHosts
        | Error::SessionExpired
        | Error::SessionMoved
        | Error::ClientClosed
        | Error::NotReadOnly
        | Error::Custom(_) => (
            StoreErrorKind::Unreachable,
            "no answer from ZooKeeper; check that a majority of its servers is up and reachable",
        ),
        Error::Throttled | Error::QuotaExceeded | Error::BadVersion | Error::NodeExists | Error::NoNode => (
            StoreErrorKind::Conflict,
            "ZooKeeper refused for a reason that may pass; look at its quotas and load if it stays",
        ),
        Error::NoAuth | Error::AuthFailed | Error::InvalidAcl => (
            StoreErrorKind::Denied,
            "ZooKeeper refused; check user, password and the access rights of the namespace",
        ),
        Error::BadArguments(_) => (StoreErrorKind::Config, "the store's URL or its settings are wrong"),
        Error::Unimplemented => (
            StoreErrorKind::Unsupported,
            "this ZooKeeper is too old: it does not know a request that came with 3.6; update the servers",
        ),
        _ => (StoreErrorKind::Corrupt, "ZooKeeper said something unexpected; report this as a bug"),
    };
    StoreError::new(kind, message).with_source(error)
}

/// The keeper has no connected session at the moment, so nothing was sent.
pub(crate) fn no_session() -> StoreError {
    StoreError::new(
        StoreErrorKind::Unreachable,
        "there is no session with ZooKeeper at the moment; check that a majority of its servers is up",
    )
    .not_applied()
}

/// No session could be opened. Each server has told something.
pub(crate) fn no_session_opened(told: &[String]) -> StoreError {
    let message = format!(
        "{}; check that a majority of ZooKeeper's servers is up and reachable, that these are their ports, and whether \
         the ports want TLS (tls=true)",
        told.join(", and ")
    );
    StoreError::new(StoreErrorKind::Unreachable, message).not_applied()
}

/// The URL, or a file that it names, is wrong.
pub(crate) fn config(message: impl Into<String>) -> StoreError {
    StoreError::new(StoreErrorKind::Config, message)
}

/// The store contains something that Lockkeeper does not write.
pub(crate) fn corrupt(message: impl Into<String>) -> StoreError {
    StoreError::new(StoreErrorKind::Corrupt, message)
}

/// The servers answered a transaction or a group of reads only in part.
pub(crate) fn too_few_answers() -> StoreError {
    corrupt("ZooKeeper answered fewer operations than it was asked")
}

/// Whether the transaction was certainly refused, so that it changed nothing.
pub(crate) fn refused(error: &MultiWriteError) -> bool {
    matches!(error, MultiWriteError::OperationFailed { .. })
}

/// The reason why a check failed.
pub(crate) fn check_failed(error: CheckWriteError) -> Error {
    match error {
        CheckWriteError::CheckFailed { source } => source,
        error => error.into(),
    }
}
