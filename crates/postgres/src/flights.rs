//! A transaction in two flights: begin, lock and read in the first; write, commit and notify in the second.
//!
//! Both run on the keeper's thread, so no blocked runtime keeps rows locked. The second flight is sent only after every
//! answer of the first succeeded, and its transaction counts only if every answer of it did. The server ends a transaction
//! whose client stops in the middle.

use std::{future::Future as _, sync::Arc, task::Poll};

use lockkeeper_core::StoreError;
use tokio_postgres::{Error, Row};

use crate::{
    connection::{Failure, Progress, Worked},
    session::{Parameter, Session},
    statements::Statement,
    trouble::{self, Severity, explain},
};

/// Begins a transaction, and bounds the time for which it can keep others waiting. The limits belong to the
/// transaction, so they hold behind a pooler too and leave nothing behind. A client that does not read is not idle,
/// hence the limit of TCP.
///
/// Warnings are asked for first, since somebody may have switched them off for this user. A warning that comes with the
/// beginning or with the commit changes the meaning of their answers.
macro_rules! begin {
    ($lock_wait:literal, $statement:literal) => {
        concat!(
            "SET LOCAL client_min_messages = warning;
BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE;
SET LOCAL idle_in_transaction_session_timeout = '1s';
SET LOCAL lock_timeout = '",
            $lock_wait,
            "';
SET LOCAL statement_timeout = '",
            $statement,
            "';
SET LOCAL tcp_user_timeout = '2s'"
        )
    };
}

/// For how long a transaction waits for a row that another one has locked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum LockWait {
    /// For the usual time of a transaction: others wait behind this one.
    Brief,
    /// Long enough to have its turn among many.
    Whole,
}

/// Once the rows are locked, statements may take their time. A commit must not be cancelled.
const AT_EASE: &str = "SET LOCAL statement_timeout = '5s'";

impl LockWait {
    /// The beginning of a transaction that does not wait for rows.
    const FREE: &'static str = begin!("30ms", "5s");

    /// The beginning of a transaction whose next statement waits for a row. `lock_timeout` alone is no limit: it counts
    /// anew whenever the row was updated meanwhile, which on a hot name is each time.
    fn begin(self) -> &'static str {
        match self {
            Self::Brief => begin!("30ms", "60ms"),
            Self::Whole => begin!("250ms", "300ms"),
        }
    }
}

/// A statement and its parameters.
pub(crate) struct Call<'a> {
    pub(crate) statement: Statement,
    pub(crate) parameters: &'a [Parameter<'a>],
}

/// The rows that the first flight brought.
pub(crate) struct FirstFlight {
    pub(crate) locked: Vec<Row>,
    pub(crate) read: Vec<Row>,
}

/// Begins a transaction, locks and reads. On success the transaction is open; on failure it is not.
///
/// `later` are statements that the second flight may send. They are prepared before anything is locked.
pub(crate) async fn first(
    session: &Session,
    wait: LockWait,
    lock: Call<'_>,
    read: Call<'_>,
    later: &[Statement],
) -> Worked<FirstFlight> {
    let needed: Vec<_> = [lock.statement, read.statement].iter().chain(later).copied().collect();
    session.prepare(&needed).await.map_err(|error| broken(error, None))?;
    let warnings = session.warnings();
    let waits = lock.statement.waits();
    let begin = session.batch(if waits { wait.begin() } else { LockWait::FREE });
    let at_ease = async { if waits { session.batch(AT_EASE).await } else { Ok(()) } };
    let rest = async {
        tokio::join!(
            biased;
            session.query(lock.statement, lock.parameters),
            at_ease,
            session.query(read.statement, read.parameters),
        )
    };
    let (begun, (locked, at_ease, read)) = if session.is_pooled() {
        // Should it fail, the rest must not be sent: each statement would be a transaction of its own.
        begin.await.map_err(|error| broken(error, None))?;
        (Ok(()), rest.await)
    } else {
        tokio::join!(biased; begin, rest)
    };
    if let Err(error) = begun {
        // The statements after it ran without a transaction, and locked nothing.
        return Err(broken(error, None));
    }
    if session.warnings() != warnings {
        // Such as that a transaction was open already, whose contents are not known.
        return Err(Failure::closes(trouble::closed()));
    }
    match (locked, at_ease, read) {
        (Ok(locked), Ok(()), Ok(read)) => Ok(FirstFlight { locked, read }),
        // The wait took too long.
        (Err(error), ..) if waits && trouble::is_cancelled(&error) => {
            Err(give_up(session, explain(error).not_applied()).await)
        }
        // After the first error the others only say that the transaction failed.
        (Err(error), ..) | (_, Err(error), _) | (.., Err(error)) => Err(undone(session, error).await),
    }
}

/// Ends a transaction without any effect.
pub(crate) async fn roll_back(session: &Session) -> Worked<()> {
    session.batch("ROLLBACK").await.map_err(|error| broken(error, None))
}

/// Ends the transaction because the rows that were read cannot be used.
pub(crate) async fn give_up(session: &Session, error: StoreError) -> Failure {
    match roll_back(session).await {
        Ok(()) => Failure::keeps(error),
        Err(_) => Failure::closes(error),
    }
}

/// Ends a transaction that failed before its commit was sent. If it only lost against another one, the session is good
/// after an answered rollback.
async fn undone(session: &Session, error: Error) -> Failure {
    match trouble::severity(&error) {
        Severity::LostRace => give_up(session, explain(error).not_applied()).await,
        Severity::Fatal => broken(error, None),
    }
}

/// Makes a failure after which the session is not used any more. Nothing was done unless a commit was sent.
fn broken(error: Error, progress: Option<&Progress>) -> Failure {
    let error = explain(error);
    Failure::closes(if progress.is_some() { error.perhaps_applied() } else { error.not_applied() })
}

/// Writes and commits. The messages are sent in the same flight, after the commit, and only if it was one.
pub(crate) async fn second(
    session: &Arc<Session>,
    progress: &Progress,
    write: Call<'_>,
    messages: Option<Messages>,
) -> Worked<()> {
    let mut needed = vec![write.statement];
    needed.extend(messages.is_some().then_some(Statement::Notify));
    if !session.is_ready(&needed) {
        // Preparing would end the transaction.
        return Err(give_up(session, trouble::closed()).await);
    }
    let warnings = session.warnings();
    let goes_later = |messages: &Messages| messages.waits_for_replicas || session.is_pooled();
    let (later, along): (Vec<_>, Vec<_>) = messages.into_iter().partition(goes_later);
    progress.commits();
    let (written, committed, ()) = tokio::join!(
        biased;
        session.query(write.statement, write.parameters),
        session.batch("COMMIT"),
        begin_to_send(session, along),
    );
    match (written, committed) {
        (Ok(_), Ok(())) if session.warnings() == warnings => {
            if session.is_pooled() {
                for messages in later {
                    messages.send(session.clone()).await;
                }
            } else {
                begin_to_send(session, later).await;
            }
            Ok(())
        }
        (Ok(_), Ok(())) => {
            let message =
                "the server committed with a warning, such as that it no longer waited for its replicas";
            let unknown = StoreError::new(lockkeeper_core::StoreErrorKind::Unreachable, message);
            Err(Failure::closes(unknown))
        }
        (Err(error), Ok(())) => {
            // The commit was a rollback.
            progress.nothing_done();
            let keeps = trouble::severity(&error) == Severity::LostRace;
            let error = explain(error).not_applied();
            Err(if keeps { Failure::keeps(error) } else { Failure::closes(error) })
        }
        // A statement that was refused takes its transaction along.
        (Err(error), Err(_)) if error.as_db_error().is_some() && !trouble::may_be_a_poolers(&error) => {
            Err(broken(error, None))
        }
        (Err(error), Err(_)) | (Ok(_), Err(error)) => Err(broken(error, Some(progress))),
    }
}

/// The messages for keepers, to be sent once a transaction is committed.
#[derive(Debug)]
pub(crate) struct Messages {
    pub(crate) channels: Vec<String>,
    pub(crate) texts: Vec<String>,
    /// The transaction that the messages depend on.
    pub(crate) transaction: String,
    /// Whether the server can tell only by the answer to the commit that this is safe on its replicas.
    pub(crate) waits_for_replicas: bool,
}

impl Messages {
    async fn send(self, session: Arc<Session>) {
        let parameters: [Parameter<'_>; 4] =
            [&self.channels, &self.texts, &self.transaction, &self.waits_for_replicas];
        if let Err(error) = session.query(Statement::Notify, &parameters).await {
            tracing::debug!(%error, "messages were not sent; polls make up for it");
        }
    }
}

/// Sends messages at the first poll, and leaves their answer to a task: nobody waits for it.
async fn begin_to_send(session: &Arc<Session>, messages: Vec<Messages>) {
    for messages in messages {
        let mut sending = Box::pin(messages.send(session.clone()));
        let sent = std::future::poll_fn(|context| Poll::Ready(sending.as_mut().poll(context))).await;
        if sent.is_pending() {
            tokio::spawn(sending);
        }
    }
}

/// Makes a failure of the error of a lone statement that changes nothing that matters.
pub(crate) fn unread(error: tokio_postgres::Error) -> Failure {
    let severity = trouble::severity(&error);
    let error = trouble::explain(error).not_applied();
    match severity {
        Severity::LostRace => Failure::keeps(error),
        Severity::Fatal => Failure::closes(error),
    }
}
