//! Chooses the runtime that owns a connection: the caller's, or the keeper's if the caller's is blocked or gone.
//!
//! The caller's runtime comes first because the tasks that wait for answers run there: an answer then wakes them
//! without a change of threads.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use lockkeeper_core::support;
use tokio::{runtime::Handle, task::JoinHandle};

/// A runtime that starts no task for this long counts as blocked.
const BLOCKED_AFTER: Duration = Duration::from_millis(100);

/// The runtime that owns some connections. Clones share the choice.
#[derive(Clone)]
pub(crate) struct ConnectionRuntime {
    chosen: Arc<Mutex<Handle>>,
    keeper: Handle,
}

impl ConnectionRuntime {
    pub(crate) fn new(first: &Handle, keeper: &Handle) -> Self {
        Self { chosen: Arc::new(Mutex::new(first.clone())), keeper: keeper.clone() }
    }

    fn chosen(&self) -> Handle {
        support::lock(&self.chosen).clone()
    }

    /// Starts a task on the chosen runtime, or on the keeper's if the chosen one has ended.
    pub(crate) fn spawn<T, F>(&self, work: impl Fn() -> F) -> JoinHandle<T>
    where
        T: Send + 'static,
        F: Future<Output = T> + Send + 'static,
    {
        let task = self.chosen().spawn(work());
        if task.is_finished() && self.choose_keeper() {
            return self.keeper.spawn(work());
        }
        task
    }

    /// Chooses the keeper's runtime; true if it was another one before.
    fn choose_keeper(&self) -> bool {
        let mut chosen = support::lock(&self.chosen);
        let changed = chosen.id() != self.keeper.id();
        *chosen = self.keeper.clone();
        changed
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
