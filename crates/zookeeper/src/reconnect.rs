//! Replaces the keeper's session when it is over, and opens sessions for single claims.

use std::{sync::Arc, time::Duration};

use lockkeeper_core::{StoreError, StoreErrorKind, store::Wake, support::backoff::Backoff};

use crate::{
    keeper::KeeperState,
    session::{Purpose, Session},
};

/// The pauses between tries of this store's background tasks.
pub(crate) const fn backoff() -> Backoff {
    Backoff::new(Duration::from_millis(20), Duration::from_secs(1))
}

/// A session for one claim.
pub(crate) enum OwnSession {
    Open(Arc<Session>),
    /// The servers keep no session as long as the lease.
    TooLong(StoreError),
}

impl OwnSession {
    /// The session, or the reason why there is none.
    pub(crate) fn open(self) -> Result<Arc<Session>, StoreError> {
        match self {
            Self::Open(session) => Ok(session),
            Self::TooLong(refusal) => Err(refusal),
        }
    }
}

/// Replaces the keeper's session whenever it is over. Ends when the keeper has none any more.
pub(crate) async fn run(keeper: Arc<KeeperState>) {
    loop {
        let Some(session) = keeper.any_session() else { return };
        session.ended().await;
        keeper.replace_session(None);
        keeper.forget_session(&session);
        drop(session);
        let mut backoff = backoff();
        loop {
            let timeout = keeper.settings.session;
            match keeper.sessions.open(timeout, Purpose::Keeper, timeout).await {
                Ok(session) => {
                    tracing::info!(?session, "a new session with ZooKeeper");
                    keeper.replace_session(Some(session));
                    break;
                }
                Err(error) => tracing::debug!(%error, "no new session yet"),
            }
            keeper.pause(&mut backoff).await;
        }
        keeper.wakes.wake(Wake::Resync);
    }
}

impl KeeperState {
    /// Sleeps for the next pause of `backoff`.
    pub(crate) async fn pause(&self, backoff: &mut Backoff) {
        self.clock.sleep_until(self.now().after(backoff.pause())).await;
    }

    /// Forgets the claims of a session that is over: their nodes are lost. Their waiters claim again.
    pub(crate) fn forget_session(&self, session: &Arc<Session>) {
        let lost: Vec<_> = {
            let mut records = self.records();
            records.claims.extract_if(|_, record| Arc::ptr_eq(&record.session, session)).collect()
        };
        for (_, record) in &lost {
            self.wake_waiters(&record.name);
        }
    }

    /// A session for one claim, which outlives this process by `timeout` at least.
    pub(crate) async fn open_own_session(&self, timeout: Duration) -> Result<Arc<Session>, StoreError> {
        // The protocol counts milliseconds with 32 bits.
        let timeout = timeout.min(Duration::from_millis(i32::MAX as u64));
        // Its server may be silent while the keeper's answers, and must not hold up other claims for long.
        let purpose = Purpose::OneClaim { patience: self.limit / 2 };
        self.sessions.open(timeout, purpose, self.limit).await
    }

    /// A session that certainly lasts as long as `lease`.
    pub(crate) async fn own_session_for(&self, lease: Duration) -> Result<OwnSession, StoreError> {
        // It is two ticks longer, so that the keeper never promises more than the session lives.
        let session = self.open_own_session(lease + self.limits.known().tick * 2).await?;
        let longest = session.timeout();
        if longest >= lease {
            return Ok(OwnSession::Open(session));
        }
        Ok(OwnSession::TooLong(StoreError::new(
            StoreErrorKind::Unsupported,
            format!(
                "a lease that may outlive its process can last at most {longest:?} on these servers; \
                 ask for less, or raise maxSessionTimeout"
            ),
        )))
    }
}
