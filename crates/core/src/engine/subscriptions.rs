//! Subscriptions: at most one per topic and keeper, shared by all tasks that care.

use std::{
    collections::{HashMap, HashSet},
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard, watch};

use super::store_client::StoreClient;
use crate::{
    clock::BootTime,
    error::StoreError,
    name::Name,
    store::{Topic, Watch},
    support::{self, calm::calm},
};

/// How long a subscription nobody uses is kept: a contended lock would otherwise subscribe anew
/// at each wait.
const LINGER: Duration = Duration::from_secs(5);

#[derive(Default)]
pub(crate) struct Subscriptions {
    topics: Mutex<HashMap<Topic, Subscribed>>,
    /// The names whose grants a task is subscribing to.
    attempts: Mutex<HashSet<Name>>,
    /// The store said that grants reach the keeper without subscribing.
    grants_come_by_themselves: AtomicBool,
}

struct Subscribed {
    shared: Arc<Shared>,
    idle_since: Option<BootTime>,
}

#[derive(Debug)]
struct Shared {
    /// `None` until the store was asked for it. Locked while it is made and while it is ended, so that the end of the
    /// one never comes after the beginning of the next, which it might undo.
    watch: Arc<AsyncMutex<Option<Watched>>>,
    /// Whether it is there; changed only where nobody can join unseen.
    made: AtomicBool,
    version: watch::Sender<u64>,
}

/// The store's answer; `None` if nothing need be kept.
type Watched = Option<Watch>;

/// A subscription that was taken away from its topic, to be ended where the store may be called.
struct Ending(OwnedMutexGuard<Option<Watched>>);

impl Ending {
    /// Ends it, and only then lets others make a new one.
    fn end(mut self, topic: Topic) -> Topic {
        drop(self.0.take());
        topic
    }
}

/// One part in a subscription: keeps it, and tells when to look again.
#[derive(Clone, Debug)]
pub(crate) struct Subscription {
    _shared: Arc<Shared>,
    changes: watch::Receiver<u64>,
    /// Whether it was made for this one, so that something may have been missed before.
    pub(crate) new: bool,
}

impl Subscribed {
    /// Whether nobody cares. Others join only under the lock of the topics.
    fn is_idle(&self) -> bool {
        Arc::strong_count(&self.shared) == 1
    }

    /// Takes the subscription away if nobody has used it for a while.
    fn end_if_idle(&mut self, now: BootTime) -> Option<Ending> {
        let since = *self.idle_since.get_or_insert(now);
        if !self.is_idle() {
            self.idle_since = None;
            return None;
        }
        if now.since(since) < LINGER {
            return None;
        }
        // Nobody cares, so nobody has it locked.
        let alone = self.shared.watch.clone().try_lock_owned().ok()?;
        self.shared.made.store(false, Ordering::Release);
        Some(Ending(alone))
    }

    /// The channel to all who care. It is used without the lock of the topics, because wakers may call the keeper, and is
    /// no part in the subscription.
    fn teller(&self) -> watch::Sender<u64> {
        self.shared.version.clone()
    }

    /// Whether there is no subscription, and nobody cares for one.
    fn is_over(&self) -> bool {
        self.is_idle() && !self.shared.made.load(Ordering::Acquire)
    }
}

/// Tells of a change.
fn tell(version: &watch::Sender<u64>) {
    version.send_modify(|version| *version += 1);
}

impl Subscription {
    /// Resolves at the next change; at once if one came since the last call.
    pub(crate) async fn changed(&mut self) {
        // The sender lives as long as this subscription.
        drop(calm(self.changes.changed()).await);
    }
}

impl Subscriptions {
    fn lock(&self) -> MutexGuard<'_, HashMap<Topic, Subscribed>> {
        support::lock(&self.topics)
    }

    pub(super) fn grants_need_one(&self) -> bool {
        !self.grants_come_by_themselves.load(Ordering::Relaxed)
    }

    /// Whether the caller may subscribe to the grants of `name`; false while another task does. It ends with
    /// [`attempt_ended`](Self::attempt_ended).
    pub(super) fn begin_attempt(&self, name: &Name) -> bool {
        support::lock(&self.attempts).insert(name.clone())
    }

    pub(super) fn attempt_ended(&self, name: &Name) {
        support::lock(&self.attempts).remove(name);
    }

    /// Returns the part that all tasks of a topic share, and whether there is a subscription already.
    fn join(&self, topic: &Topic) -> (Arc<Shared>, bool) {
        let mut topics = self.lock();
        let entry = topics.entry(topic.clone()).or_insert_with(|| Subscribed {
            shared: Arc::new(Shared {
                watch: Arc::default(),
                made: AtomicBool::new(false),
                version: watch::channel(0).0,
            }),
            idle_since: None,
        });
        entry.idle_since = None;
        (entry.shared.clone(), entry.shared.made.load(Ordering::Acquire))
    }

    /// Subscribes to changes of a topic.
    pub(super) async fn subscribe(
        &self,
        client: &StoreClient,
        topic: &Topic,
        wake_watchdog: impl FnOnce(),
    ) -> Result<Subscription, StoreError> {
        let (shared, made) = self.join(topic);
        let changes = shared.version.subscribe();
        let mut watch = calm(shared.watch.lock()).await;
        if watch.is_none() {
            // The watchdog, which sweeps, sleeps for ever while there is nothing to do.
            wake_watchdog();
            *watch = Some(client.ask("watch", client.store.watch(topic)).await?);
            shared.made.store(true, Ordering::Release);
        }
        if matches!(*watch, Some(None)) && matches!(topic, Topic::Grants(_)) {
            self.grants_come_by_themselves.store(true, Ordering::Relaxed);
            // Nothing that would have to be ended some day.
            self.lock().remove(topic);
        }
        drop(watch);
        Ok(Subscription { _shared: shared, changes, new: !made })
    }

    pub(super) fn changed(&self, topic: &Topic) {
        let told = self.lock().get(topic).map(Subscribed::teller);
        told.iter().for_each(tell);
    }

    pub(super) fn all_changed(&self) {
        let told = Vec::from_iter(self.lock().values().map(Subscribed::teller));
        told.iter().for_each(tell);
    }

    /// How many there are.
    pub(super) fn count(&self) -> usize {
        self.lock().len()
    }

    /// Ends subscriptions that nobody has used for a while; returns when to look again.
    pub(super) fn sweep(&self, now: BootTime) -> BootTime {
        let mut topics = self.lock();
        let ending: Vec<(Topic, Ending)> = topics
            .iter_mut()
            .filter_map(|(topic, entry)| Some((topic.clone(), entry.end_if_idle(now)?)))
            .collect();
        if !ending.is_empty() {
            drop(topics);
            // Outside of the lock: ending a subscription may call into the store. A task that subscribes meanwhile
            // joins the same entry, where it waits until the old subscription has ended.
            let ended: Vec<Topic> = ending.into_iter().map(|(topic, ending)| ending.end(topic)).collect();
            topics = self.lock();
            for topic in ended {
                if topics.get(&topic).is_some_and(Subscribed::is_over) {
                    topics.remove(&topic);
                }
            }
        }
        if topics.is_empty() { BootTime::NEVER } else { now.after(LINGER / 2) }
    }

    /// Ends all subscriptions.
    pub(super) fn clear(&self) {
        let ended = std::mem::take(&mut *self.lock());
        drop(ended);
    }
}
