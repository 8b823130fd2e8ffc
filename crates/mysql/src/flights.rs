//! A transaction in two flights: begin, lock and read in the first; write and commit in the second. Each is one packet.
//!
//! Both run on the keeper's thread, so no blocked runtime keeps rows locked. The second flight is sent only after every
//! answer of the first succeeded, and its transaction counts only if every answer of it did. The server ends a
//! transaction whose client stops in the middle.

use lockkeeper_core::{Name, StoreError, StoreErrorKind};
use mysql_async::Row;

use crate::{
    codec::name_of,
    connection::{Failure, Progress, Worked},
    session::{Failed, Session},
    trouble::{self, Severity, explain},
};

/// The rows that the first flight brought.
pub(crate) struct FirstFlight {
    /// The rows that were locked, by name.
    pub(crate) locked: Vec<Row>,
    pub(crate) read: Vec<Row>,
}

impl FirstFlight {
    /// Returns the names of the rows that were locked. A row with a bad name belongs to nobody.
    pub(crate) fn names(&self) -> Vec<Name> {
        self.locked.iter().filter_map(|row| name_of(row, 0).ok()).collect()
    }
}

/// Begins a transaction, locks and reads. On success the transaction is open; on failure it is not.
pub(crate) async fn first(session: &Session, lock: &str, read: &str) -> Worked<FirstFlight> {
    let packet = session.statements.first_flight(lock, read);
    let sets = match session.run(&packet).await {
        Ok(sets) => sets,
        Err(failed) => return Err(undone(session, failed).await),
    };
    let Ok([locked, read]) = <[Vec<Row>; 2]>::try_from(sets) else {
        return Err(Failure::closes(trouble::corrupt("the server answered something else than was asked")));
    };
    Ok(FirstFlight { locked, read })
}

/// Reads on in the open transaction. On failure it is not open any more.
pub(crate) async fn inside(session: &Session, packet: &str) -> Worked<Vec<Row>> {
    match session.run(packet).await {
        Ok(mut sets) => Ok(sets.pop().unwrap_or_default()),
        Err(failed) => Err(undone(session, failed).await),
    }
}

/// Ends a transaction without any effect.
pub(crate) async fn roll_back(session: &Session) -> Worked<()> {
    let packet = session.statements.roll_back();
    session.run(&packet).await.map(drop).map_err(|failed| broken(failed).not_applied())
}

/// Ends the transaction because the rows that were read cannot be used.
pub(crate) async fn give_up(session: &Session, error: StoreError) -> Failure {
    match roll_back(session).await {
        Ok(()) => Failure::keeps(error),
        Err(_) => Failure::closes(error),
    }
}

/// A transaction failed before its commit. If it only lost against another one, the session is good after an answered
/// rollback.
async fn undone(session: &Session, failed: Failed) -> Failure {
    match trouble::severity(&failed.error) {
        Severity::LostRace => give_up(session, explain(failed.error).not_applied()).await,
        Severity::Fatal => broken(failed).not_applied(),
    }
}

/// The session is not used any more.
fn broken(failed: Failed) -> Failure {
    Failure::closes(explain(failed.error))
}

/// Writes and commits.
pub(crate) async fn second(session: &Session, progress: &Progress, writes: &[String]) -> Worked<()> {
    let packet = session.statements.second_flight(writes);
    progress.commits();
    let Err(failed) = session.run(&packet).await else { return Ok(()) };
    if trouble::code(&failed.error).is_none() {
        return Err(broken(failed).perhaps_applied());
    }
    // The server answered, and did nothing after the statement that failed.
    if failed.done < writes.len() {
        progress.nothing_done();
        return Err(undone(session, failed).await);
    }
    let message = format!(
        "the server answered the commit with an error, so it is not known whether it took place ({})",
        failed.error
    );
    let unknown = StoreError::new(StoreErrorKind::Unreachable, message).with_source(failed.error);
    Err(Failure::closes(unknown))
}

/// Runs a lone packet that changes nothing of importance.
pub(crate) async fn lone(session: &Session, packet: &str) -> Worked<Vec<Vec<Row>>> {
    session.run(packet).await.map_err(|failed| {
        let severity = trouble::severity(&failed.error);
        let error = explain(failed.error).not_applied();
        match severity {
            Severity::LostRace => Failure::keeps(error),
            Severity::Fatal => Failure::closes(error),
        }
    })
}

/// The rows of a lone packet with one statement that has rows.
pub(crate) async fn rows(session: &Session, packet: &str) -> Worked<Vec<Row>> {
    Ok(lone(session, packet).await?.pop().unwrap_or_default())
}
