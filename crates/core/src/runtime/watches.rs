//! Subscriptions: at most one per topic and keeper, shared by all who care.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::sync::{OnceCell, watch};

use super::{clock::BootTime, engine::Engine};
use crate::{
    error::StoreError,
    store::{Topic, Watch},
};

/// How long a subscription nobody uses is kept: a contended lock would otherwise subscribe anew
/// at each wait.
const LINGER: Duration = Duration::from_secs(5);

#[derive(Default)]
pub(crate) struct Watches {
    topics: Mutex<HashMap<Topic, Subscribed>>,
    /// The store said that grants reach the keeper without subscribing.
    grants_come_by_themselves: AtomicBool,
}

struct Subscribed {
    shared: Arc<Shared>,
    idle_since: Option<BootTime>,
}

#[derive(Debug)]
struct Shared {
    watch: OnceCell<Option<Watch>>,
    version: watch::Sender<u64>,
}

/// Somebody's interest in a topic: keeps the subscription, and tells when to look again.
#[derive(Debug)]
pub(crate) struct Interest {
    _shared: Arc<Shared>,
    changes: watch::Receiver<u64>,
    /// Whether the store was asked for it just now, so that something may have been missed before.
    pub(crate) new: bool,
}

impl Interest {
    /// Resolves at the next change; at once if one came since the last call.
    pub(crate) async fn changed(&mut self) {
        // The sender lives as long as this interest.
        drop(self.changes.changed().await);
    }
}

impl Watches {
    fn lock(&self) -> MutexGuard<'_, HashMap<Topic, Subscribed>> {
        self.topics.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn grants_need_one(&self) -> bool {
        !self.grants_come_by_themselves.load(Ordering::Relaxed)
    }

    fn shared(&self, topic: &Topic) -> Arc<Shared> {
        let mut topics = self.lock();
        let subscribed = topics.entry(topic.clone()).or_insert_with(|| Subscribed {
            shared: Arc::new(Shared { watch: OnceCell::new(), version: watch::channel(0).0 }),
            idle_since: None,
        });
        subscribed.idle_since = None;
        subscribed.shared.clone()
    }

    /// Subscribes to changes of a topic.
    pub(crate) async fn subscribe(&self, engine: &Engine, topic: &Topic) -> Result<Interest, StoreError> {
        let shared = self.shared(topic);
        let changes = shared.version.subscribe();
        let mut new = false;
        let watch = shared
            .watch
            .get_or_try_init(|| {
                new = true;
                // The beat, which sweeps, sleeps for ever while there is nothing to do.
                engine.ledger().nudge();
                engine.ask_store("watch", engine.store().watch(topic))
            })
            .await?;
        if watch.is_none() && matches!(topic, Topic::Grants(_)) {
            self.grants_come_by_themselves.store(true, Ordering::Relaxed);
            // Nothing that would have to be ended some day.
            self.lock().remove(topic);
        }
        Ok(Interest { _shared: shared, changes, new })
    }

    pub(crate) fn changed(&self, topic: &Topic) {
        if let Some(subscribed) = self.lock().get(topic) {
            subscribed.shared.version.send_modify(|version| *version += 1);
        }
    }

    pub(crate) fn all_changed(&self) {
        for subscribed in self.lock().values() {
            subscribed.shared.version.send_modify(|version| *version += 1);
        }
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.lock().len()
    }

    /// Ends subscriptions that nobody has used for a while; returns when to look again.
    pub(crate) fn sweep(&self, now: BootTime) -> BootTime {
        let mut ended = Vec::new();
        let mut topics = self.lock();
        topics.retain(|_, subscribed| {
            let idle = Arc::strong_count(&subscribed.shared) == 1;
            let since = *subscribed.idle_since.get_or_insert(now);
            if !idle {
                subscribed.idle_since = None;
            }
            let keep = !idle || now.since(since) < LINGER;
            if !keep {
                ended.push(subscribed.shared.clone());
            }
            keep
        });
        let look_again = if topics.is_empty() { BootTime::NEVER } else { now.after(LINGER / 2) };
        drop(topics);
        // Dropped here, outside of the lock: ending a subscription may call into the store.
        drop(ended);
        look_again
    }

    /// Ends all subscriptions.
    pub(crate) fn clear(&self) {
        let ended = std::mem::take(&mut *self.lock());
        drop(ended);
    }
}
