//! Chooses the runtime that owns a connection: the caller's, or the keeper's if the caller's is blocked or gone.
//!
//! The caller's runtime comes first because the tasks that wait for answers run there: an answer then wakes them
//! without a change of threads. The choice changes at most once, to the keeper's.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use lockkeeper_core::support;
use tokio::{
    runtime::{Handle, Id},
    sync::Notify,
    task::JoinHandle,
};

/// A runtime that starts no task for this long counts as blocked.
const BLOCKED_AFTER: Duration = Duration::from_millis(100);

/// The runtime that owns some connections. Clones share the choice.
#[derive(Clone)]
pub(crate) struct ConnectionRuntime {
    choice: Arc<Choice>,
    keeper: Handle,
}

struct Choice {
    chosen: Mutex<Handle>,
    changed: Notify,
}

impl ConnectionRuntime {
    pub(crate) fn new(first: &Handle, keeper: &Handle) -> Self {
        let choice = Choice { chosen: Mutex::new(first.clone()), changed: Notify::new() };
        Self { choice: Arc::new(choice), keeper: keeper.clone() }
    }

    fn chosen(&self) -> Handle {
        support::lock(&self.choice.chosen).clone()
    }

    /// Whether a connection that `runtime` owns may be used.
    pub(crate) fn is_chosen(&self, runtime: Id) -> bool {
        support::lock(&self.choice.chosen).id() == runtime
    }

    /// Returns when `runtime` is not, or no longer, the chosen one.
    pub(crate) async fn left(&self, runtime: Id) {
        if runtime == self.keeper.id() {
            return std::future::pending().await;
        }
        // Made before the look, so that no change falls between the two. There is only one change.
        let changed = self.choice.changed.notified();
        if self.is_chosen(runtime) {
            changed.await;
        }
    }

    /// Does `work` as a task of the chosen runtime. If the choice changes meanwhile, does it once more, as a task of the
    /// keeper's runtime. `None` if the runtime has ended.
    pub(crate) async fn run<T, F>(&self, work: impl Fn() -> F) -> Option<T>
    where
        T: Send + 'static,
        F: Future<Output = T> + Send + 'static,
    {
        let (task, runtime) = self.start(&work);
        tokio::select! {
            biased;
            done = task => done.ok(),
            () = self.left(runtime) => self.keeper.spawn(work()).await.ok(),
        }
    }

    /// Starts a task on the chosen runtime, or on the keeper's if the chosen one has ended.
    pub(crate) fn spawn<T, F>(&self, work: impl Fn() -> F) -> JoinHandle<T>
    where
        T: Send + 'static,
        F: Future<Output = T> + Send + 'static,
    {
        self.start(work).0
    }

    fn start<T, F>(&self, work: impl Fn() -> F) -> (JoinHandle<T>, Id)
    where
        T: Send + 'static,
        F: Future<Output = T> + Send + 'static,
    {
        let chosen = self.chosen();
        let task = chosen.spawn(work());
        if task.is_finished() && self.choose_keeper() {
            return (self.keeper.spawn(work()), self.keeper.id());
        }
        (task, chosen.id())
    }

    /// Chooses the keeper's runtime; true if it was another one before.
    pub(crate) fn choose_keeper(&self) -> bool {
        let mut chosen = support::lock(&self.choice.chosen);
        if chosen.id() == self.keeper.id() {
            return false;
        }
        let before = std::mem::replace(&mut *chosen, self.keeper.clone());
        drop(chosen);
        drop(before);
        self.choice.changed.notify_waiters();
        true
    }

    /// Checks in the background whether the chosen runtime still runs tasks. If it does not, chooses the keeper's
    /// runtime and calls `changed`.
    pub(crate) fn check(&self, changed: impl FnOnce() + Send + 'static) {
        let (this, chosen) = (self.clone(), self.chosen());
        if chosen.id() == self.keeper.id() {
            return;
        }
        let probe = chosen.spawn(async {});
        self.keeper.spawn(async move {
            let runs = matches!(tokio::time::timeout(BLOCKED_AFTER, probe).await, Ok(Ok(())));
            if !runs && this.choose_keeper() {
                changed();
            }
        });
    }
}
