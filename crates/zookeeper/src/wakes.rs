//! Wakes the engine when a resource or a latch changes.

use std::{sync::Arc, time::Duration};

use lockkeeper_core::{
    StoreError,
    store::{Topic, Wake, Watch},
    support::background::Background,
};
use tokio::sync::oneshot;
use zookeeper_client::{Error, OneshotWatcher};

use crate::{
    keeper::KeeperState, session::Session, trouble::trouble, waiter::POLL, watch_budget::WatchPermit,
};

/// The pause before a watch that failed is set again.
const AGAIN: Duration = Duration::from_millis(100);

impl KeeperState {
    /// Wakes the engine at every change of `topic`, until the result is dropped.
    pub(crate) async fn subscribe(self: &Arc<Self>, topic: Topic) -> Result<Watch, StoreError> {
        let (ready, set) = oneshot::channel();
        let task =
            Background::from(self.background.spawn(self.clone().watch_topic(topic, ready)).abort_handle());
        set.await.map_err(|_| trouble(Error::ClientClosed))??;
        Ok(Watch::new(task))
    }

    /// Watches `topic` until it is aborted. Says through `ready` when the first watch is set, or ends if that fails.
    async fn watch_topic(self: Arc<Self>, topic: Topic, ready: oneshot::Sender<Result<(), StoreError>>) {
        let mut ready = Some(ready);
        loop {
            let watched = match self.session() {
                Ok(session) => self.set_watch(&session, &topic).await,
                Err(error) => Err(error),
            };
            match (watched, ready.take()) {
                (Ok(watch), first) => {
                    if let Some(first) = first {
                        // If the caller has gone, this task is aborted with its subscription.
                        drop(first.send(Ok(())));
                    } else {
                        // Something may have changed between two watches.
                        self.wakes.wake(Wake::Changed(topic.clone()));
                    }
                    match watch {
                        Some((watcher, _permit)) => drop(watcher.changed().await),
                        None => self.clock.sleep_until(self.now().after(POLL)).await,
                    }
                }
                (Err(error), Some(first)) => {
                    drop(first.send(Err(error)));
                    return;
                }
                (Err(_), None) => self.clock.sleep_until(self.now().after(AGAIN)).await,
            }
        }
    }

    /// Watches the node of `topic`; `None` if the watch budget is used up.
    async fn set_watch(
        &self,
        session: &Session,
        topic: &Topic,
    ) -> Result<Option<(OneshotWatcher, WatchPermit)>, StoreError> {
        let path = match topic {
            Topic::Latch(name) => self.settings.paths.latch(name),
            Topic::Changes(name) | Topic::Grants(name) => self.settings.paths.lock(name),
            // A topic of a later engine: its waiters poll.
            _ => return Ok(None),
        };
        let Some(permit) = session.watch_budget.permit(&path) else { return Ok(None) };
        loop {
            if !matches!(topic, Topic::Latch(_)) {
                match session.read(session.client.list_and_watch_children(&path)).await {
                    Ok((_, watcher)) => return Ok(Some((watcher, permit))),
                    Err(Error::NoNode) => {}
                    Err(error) => return Err(trouble(error)),
                }
            }
            let (there, watcher) =
                session.read(session.client.check_and_watch_stat(&path)).await.map_err(trouble)?;
            if there.is_none() || matches!(topic, Topic::Latch(_)) {
                return Ok(Some((watcher, permit)));
            }
        }
    }
}
