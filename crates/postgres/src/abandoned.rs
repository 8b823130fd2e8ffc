//! Requests that nobody waits for any more: the server is told to give them up.
//!
//! A commit that waits for a replica does not notice that its client has gone. It would keep its server process, a
//! connection of the server and its rows until the replica is back. What a commit whose wait is cancelled has written is
//! visible before any replica has it, and nobody is told of it as theirs without a commit that waits.

use std::{collections::BTreeSet, sync::Mutex, time::Duration};

use lockkeeper_core::{StoreError, support};
use tokio::{runtime::Handle, time::timeout};

use crate::{server::ServerFacts, session::Session, settings::Encryption, trouble};

/// How long the request to cancel may take.
const LIMIT: Duration = Duration::from_secs(2);

/// What a keeper has to have cancelled.
#[derive(Debug, Default)]
pub(crate) struct Abandoned {
    /// Transactions behind a pooler: when their server started, and their numbers.
    transactions: Mutex<BTreeSet<(i64, u64)>>,
}

impl Abandoned {
    /// Has the server cancel what a session is doing. Nobody waits for this, and the session is not used any more.
    ///
    /// Behind a pooler the request to cancel would mean whatever its server process does when it arrives, which may be
    /// somebody else's transaction by then. So there the next session cancels this `transaction`, by its number.
    pub(crate) fn add(
        &self,
        session: &Session,
        transaction: Option<u64>,
        encryption: &Encryption,
        background: &Handle,
    ) {
        if session.is_pooled() {
            let started = session.started;
            support::lock(&self.transactions).extend(transaction.map(|transaction| (started, transaction)));
            return;
        }
        let cancelling = timeout(LIMIT, session.cancelling(encryption));
        background.spawn(async move {
            match cancelling.await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => tracing::debug!(%error, "an abandoned request was not cancelled"),
                Err(_) => tracing::debug!("an abandoned request was not cancelled in time"),
            }
        });
    }

    /// Cancels transactions that were abandoned behind a pooler. Those of an earlier server are forgotten: another one gives
    /// the same numbers anew.
    pub(crate) async fn cancel(&self, session: &Session, facts: &ServerFacts) -> Result<(), StoreError> {
        let abandoned = std::mem::take(&mut *support::lock(&self.transactions));
        let here = abandoned.iter().filter(|(started, _)| *started == facts.started);
        let numbers: Vec<String> = here.map(|(_, number)| format!("'{number}'::xid8::xid")).collect();
        if numbers.is_empty() {
            return Ok(());
        }
        let cancel = format!(
            "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE usename = current_user \
             AND wait_event = 'SyncRep' AND backend_xid IN ({})",
            numbers.join(", ")
        );
        session.rows(&cancel).await.map(drop).map_err(|error| trouble::explain(error).not_applied())
    }
}
