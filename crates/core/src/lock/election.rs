//! One leader at a time, visible to everybody.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::{Duration, SystemTime},
};

use futures_core::Stream;
use tokio::sync::mpsc;

use super::{
    guard::{Guard, Leadership},
    handle::{Handle, lease_settings},
};
use crate::{
    engine::{Engine, patience::Patience, terms::Terms, watching},
    error::{AcquireError, StoreError, StoreErrorKind},
    name::Name,
    store::{BoxFuture, HolderView, Kind, ProcessInfo, Topic},
    token::Token,
};

/// How often an observer looks without being told.
const POLL: Duration = Duration::from_secs(2);

/// An election: candidates wait in the queue, the first one leads and publishes a value, such as its
/// address.
///
/// A leader that is paused past its lease is no longer the leader; watch
/// [`lost`](Guard::lost), and show the [token](Guard::token) to the resources that it leads.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lockkeeper::Error> {
/// # let keeper = lockkeeper::testing::keeper().await;
/// let election = keeper.election("scheduler");
/// let leadership = election.campaign("10.0.0.7:80").await?;
/// let leader = election.leader().await?.expect("somebody leads");
/// assert_eq!(leader.value, "10.0.0.7:80");
/// leadership.resign().await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Election {
    pub(crate) handle: Handle,
}

/// A leader, as others see it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Leader {
    /// The value that it published.
    pub value: String,
    /// Its token.
    pub token: Token,
    /// Its process.
    pub process: Arc<ProcessInfo>,
    /// When it was granted, on the store's wall clock.
    pub since: SystemTime,
}

impl Election {
    lease_settings!();

    fn candidate(&self, value: &str) -> Arc<Terms> {
        let mut terms = Terms::clone(self.handle.terms());
        terms.show().value = Some(value.into());
        Arc::new(terms)
    }

    /// Waits in the queue until this process leads.
    ///
    /// # Fairness
    /// First come, first served over all tasks and processes.
    ///
    /// # Cancel safety, when the store is unreachable, errors
    /// As [`Mutex::lock`](crate::Mutex::lock).
    pub async fn campaign(&self, value: &str) -> Result<Leadership, AcquireError> {
        self.handle.wait(&self.candidate(value), "campaign").await.map(Guard::new)
    }

    /// Leads if nobody does; `None` if somebody does. Otherwise as
    /// [`Mutex::try_lock`](crate::Mutex::try_lock).
    ///
    /// # Errors
    /// See [`AcquireError`].
    pub async fn try_campaign(&self, value: &str) -> Result<Option<Leadership>, AcquireError> {
        let terms = self.candidate(value);
        Ok(self.handle.acquire(&terms, Patience::Try, "campaign").await?.map(Guard::new))
    }

    /// Waits in the queue, at most `limit`. Otherwise as [`campaign`](Self::campaign).
    ///
    /// # Errors
    /// [`TimedOut`](AcquireError::TimedOut) when the limit passes.
    pub async fn campaign_within(&self, value: &str, limit: Duration) -> Result<Leadership, AcquireError> {
        self.handle.wait_within(&self.candidate(value), limit, "campaign").await.map(Guard::new)
    }

    /// Returns the current leader; `None` if nobody leads.
    ///
    /// # Errors
    /// [`StoreError`] if the store could not be asked.
    pub async fn leader(&self) -> Result<Option<Leader>, StoreError> {
        look(self.handle.alive.engine(), &self.name_or_error("leader")?)
            .await
            .map_err(|error| error.at(self.handle.at("leader")))
    }

    fn name_or_error(&self, operation: &'static str) -> Result<Name, StoreError> {
        let config =
            |why| StoreError::new(StoreErrorKind::Config, format!("{why}")).at(self.handle.at(operation));
        self.handle.name().cloned().map_err(config)
    }

    /// Returns the leader, now and after each change: the first item is the state when asked. Changes that
    /// follow each other closely may be seen as one. While the store cannot be asked, there are
    /// errors instead; the observer goes on by itself. Ends when the keeper is closed.
    pub fn observe(&self) -> Observer {
        let (sender, changes) = mpsc::channel(1);
        let name = self.name_or_error("observe");
        let engine = Arc::downgrade(self.handle.alive.engine());
        self.handle.alive.engine().background().spawn(async move {
            match name {
                Ok(name) => {
                    let topic = Topic::Changes(name.clone());
                    let look = move |engine: Arc<Engine>| -> BoxFuture<'static, _> {
                        let name = name.clone();
                        Box::pin(async move { look(&engine, &name).await })
                    };
                    watching::follow(engine, topic, POLL, look, sender).await;
                }
                // The receiver may be gone already.
                Err(error) => drop(sender.send(Err(error)).await),
            }
        });
        Observer { changes }
    }
}

async fn look(engine: &Engine, name: &Name) -> Result<Option<Leader>, StoreError> {
    let view = engine.ask("observe", engine.store().inspect(name)).await?;
    let leads = |holder: &HolderView| holder.details.kind == Kind::Election;
    Ok(view.and_then(|view| view.holders.into_iter().find(leads)).map(|holder| Leader {
        value: holder.details.value.as_deref().unwrap_or_default().to_owned(),
        token: holder.token,
        process: holder.details.process,
        since: holder.since,
    }))
}

/// The changes of an election, as a [`Stream`] or by [`next`](Self::next).
#[derive(Debug)]
pub struct Observer {
    changes: mpsc::Receiver<Result<Option<Leader>, StoreError>>,
}

impl Observer {
    /// The next change; `None` when the keeper is closed.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub async fn next(&mut self) -> Option<Result<Option<Leader>, StoreError>> {
        self.changes.recv().await
    }
}

impl Stream for Observer {
    type Item = Result<Option<Leader>, StoreError>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.changes.poll_recv(context)
    }
}
