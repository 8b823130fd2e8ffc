//! Subscriptions to changes: rows of the table `watcher`, which the keeper renews for as long as it cares.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use lockkeeper_core::{
    StoreError,
    store::{Topic, Wake},
    support::{background::Background, backoff::Backoff},
};
use lockkeeper_rows::wake_text::topic_words;
use tokio::sync::watch;

use crate::{
    codec::ReadRows,
    connection::{Connection, Failure, Worked},
    counts::ReadLatch,
    flights::{self, Call, LockWait, unread},
    groups::Group,
    own::Own,
    statements::Statement,
    trouble,
    wakes::Interest,
};

/// How long a row lasts, and how often it is renewed. A keeper that crashed leaves it behind for that long.
const LASTS: Duration = Duration::from_secs(300);
const RENEWED_EVERY: Duration = Duration::from_secs(100);
/// The pauses between tries to renew it that fail.
const PAUSES: Backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(10));
const TRIES: usize = 3;

/// A keeper's interest in a topic, which ends when it is dropped.
pub(crate) struct Subscription {
    waits: Weak<Connection>,
    own: Own,
    topic: Topic,
    _interest: Interest,
    _renewal: Background,
}

impl Subscription {
    /// Subscribes. Changes that are committed from now on are told.
    pub(crate) async fn start(
        waits: &Arc<Connection>,
        background: &tokio::runtime::Handle,
        own: Own,
        topic: Topic,
        interest: Interest,
    ) -> Result<Self, StoreError> {
        let losses = waits.losses();
        watch(waits, &own, &topic).await?;
        let renewal = renew(Arc::downgrade(waits), losses, own.clone(), topic.clone());
        let renewal = Background::spawn(background, renewal);
        Ok(Self { waits: Arc::downgrade(waits), own, topic, _interest: interest, _renewal: renewal })
    }
}

/// Renews the row in time, and as soon as a session was lost: a crash of the server may have taken the row along, which was
/// not synced.
async fn renew(waits: Weak<Connection>, mut losses: watch::Receiver<u64>, own: Own, topic: Topic) {
    let mut backoff = PAUSES;
    let (mut pause, mut is_missing) = (RENEWED_EVERY, false);
    loop {
        tokio::select! {
            changed = losses.changed() => match changed {
                Ok(()) => is_missing = true,
                Err(_) => return,
            },
            () = tokio::time::sleep(pause) => {}
        }
        let Some(waits) = waits.upgrade() else { return };
        match watch(&waits, &own, &topic).await {
            Ok(()) => {
                backoff.reset();
                pause = RENEWED_EVERY;
                if std::mem::take(&mut is_missing) {
                    // Changes while there was no row were told to nobody.
                    own.wakes.wake(Wake::Changed(topic.clone()));
                }
            }
            Err(error) => {
                tracing::debug!(%error, "a subscription was not renewed; it is tried again");
                pause = backoff.jittered();
                is_missing = true;
            }
        }
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        let Some(waits) = self.waits.upgrade() else { return };
        let Some((word, name)) = topic_words(&self.topic) else { return };
        let (name, keeper) = (name.as_str().as_bytes().to_vec(), self.own.keeper.to_string());
        // If this fails, the keeper gets needless messages until the row is swept.
        waits.run_detached(move |session, _| {
            Box::pin(async move {
                session.query(Statement::Unwatch, &[&name, &word, &keeper]).await.map(drop).map_err(unread)
            })
        });
    }
}

async fn watch(waits: &Connection, own: &Own, topic: &Topic) -> Result<(), StoreError> {
    let (own, topic) = (own.clone(), topic.clone());
    let wait = LockWait::Whole;
    waits.run(move |session, progress| Box::pin(Group { session, progress, own, wait }.watch(topic))).await
}

impl Group {
    /// Adds this keeper to those that are told of a topic.
    async fn watch(self, topic: Topic) -> Worked<()> {
        let Some((_, name)) = topic_words(&topic) else { return Ok(()) };
        let name = name.as_str().as_bytes();
        let (names, nobody, op) = (vec![name], Vec::<String>::new(), "");
        let (keeper, lasts) = (self.own.keeper.to_string(), LASTS.as_micros() as i64);
        let is_latch = matches!(topic, Topic::Latch(_));
        let statement = if is_latch { Statement::WatchLatch } else { Statement::Watch };
        for _ in 0..TRIES {
            let flight = if is_latch {
                let lock = Call { statement: Statement::LockLatch, parameters: &[&name] };
                let read = Call { statement: Statement::ReadLatch, parameters: &[&name, &op] };
                flights::first(&self.session, self.wait, lock, read, &[statement]).await?
            } else {
                let lock = Call { statement: Statement::Lock, parameters: &[&names] };
                let read = Call { statement: Statement::Read, parameters: &[&names, &nobody] };
                flights::first(&self.session, self.wait, lock, read, &[statement]).await?
            };
            let answered = match is_latch {
                true => ReadLatch::new(&flight.read, &self.session.origin).map(drop),
                false => ReadRows::new(&flight.read, &self.session.origin).map(drop),
            };
            if let Err(error) = answered {
                return Err(flights::give_up(&self.session, error).await);
            }
            if flight.locked.is_empty() {
                flights::roll_back(&self.session).await?;
                let made = if is_latch {
                    self.session.query(Statement::MakeLatch, &[&name]).await
                } else {
                    self.session.query(Statement::Make, &[&names]).await
                };
                made.map_err(unread)?;
                continue;
            }
            let write = Call { statement, parameters: &[&name, &keeper, &lasts] };
            return flights::second(&self.session, &self.progress, write, None).await;
        }
        Err(Failure::keeps(trouble::busy()))
    }
}
