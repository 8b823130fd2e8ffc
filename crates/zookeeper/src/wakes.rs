//! Hints about changes of resources and latches, and the end of a keeper's connection.

use std::{sync::Arc, time::Duration};

use lockkeeper_core::{
    StoreError,
    store::{Topic, Wake},
};
use tokio::sync::oneshot;
use zookeeper_client::{Error, OneshotWatcher, SessionState};

use crate::{
    keeper::KeeperState,
    session::{Session, WatchPermit},
    trouble::trouble,
    waiter::LOOK_EVERY,
};

impl KeeperState {
    /// Wakes the keeper at every change of `topic`; says through `ready` when the first watch is set.
    pub(crate) async fn tell(self: Arc<Self>, topic: Topic, ready: oneshot::Sender<Result<(), StoreError>>) {
        let mut ready = Some(ready);
        loop {
            let watched = match self.session() {
                Ok(session) => self.watch_topic(&session, &topic).await,
                Err(error) => Err(error),
            };
            match (watched, ready.take()) {
                (Ok(watch), first) => {
                    if let Some(first) = first {
                        // Whoever asked may have gone; the task then ends with the watch.
                        drop(first.send(Ok(())));
                    } else {
                        // Something may have changed while nothing was watched.
                        self.wakes.wake(Wake::Changed(topic.clone()));
                    }
                    match watch {
                        Some((watcher, _may)) => drop(watcher.changed().await),
                        // It looks instead.
                        None => self.clock.sleep_until(self.now().after(LOOK_EVERY)).await,
                    }
                }
                (Err(error), Some(first)) => {
                    drop(first.send(Err(error)));
                    return;
                }
                (Err(_), None) => {
                    self.clock.sleep_until(self.now().after(Duration::from_millis(100))).await;
                }
            }
        }
    }

    /// A watch on what `topic` is about; `None` if very many are watched already.
    async fn watch_topic(
        &self,
        session: &Arc<Session>,
        topic: &Topic,
    ) -> Result<Option<(OneshotWatcher, WatchPermit)>, StoreError> {
        let path = match topic {
            Topic::Latch(name) => self.settings.paths.latch(name),
            Topic::Changes(name) | Topic::Grants(name) => self.settings.paths.lock(name),
            // A topic of a later engine: its waiters poll.
            _ => return Ok(None),
        };
        let Some(may) = session.may_watch(&path) else { return Ok(None) };
        loop {
            if !matches!(topic, Topic::Latch(_)) {
                match session.read(session.client.list_and_watch_children(&path)).await {
                    Ok((_, watcher)) => return Ok(Some((watcher, may))),
                    Err(Error::NoNode) => {}
                    Err(error) => return Err(trouble(error)),
                }
            }
            let (there, watcher) =
                session.read(session.client.check_and_watch_stat(&path)).await.map_err(trouble)?;
            if there.is_none() || matches!(topic, Topic::Latch(_)) {
                return Ok(Some((watcher, may)));
            }
        }
    }

    /// Ends the connection, after everything was left.
    pub(crate) async fn close(self: &Arc<Self>) {
        let session = self.session();
        if let Ok(session) = &session {
            self.hand_over_the_retired(session).await;
            self.forget_all(session).await;
        }
        drop(session);
        self.abandon_claims();
        let Some(session) = self.take_session() else { return };
        let mut state = session.client.state_watcher();
        session.end();
        drop(session);
        // The last one who has the session closes it; the server then removes what is left of it.
        while !matches!(
            state.state(),
            SessionState::Closed | SessionState::Expired | SessionState::AuthFailed
        ) {
            state.changed().await;
        }
    }

    /// Forgets all claims: whoever waits for them stops.
    fn abandon_claims(&self) {
        let records = std::mem::take(&mut self.memory().records);
        drop(records);
    }

    /// The keeper is gone without closing: nothing is waited for or kept alive any more.
    pub(crate) fn abandon(&self) {
        self.abandon_claims();
        if let Some(session) = self.take_session() {
            session.end();
        }
    }
}
