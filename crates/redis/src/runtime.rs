//! Where connections live: where what they bring is waited for, so that it changes threads as little as can be; and on the
//! keeper's thread if that runtime is blocked, gone, or driven by nobody.

use lockkeeper_core::support;
use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use tokio::{runtime::Handle, task::JoinHandle};

/// A runtime that starts no task for this long is taken to be blocked.
const SIGN_OF_LIFE: Duration = Duration::from_millis(100);

/// Where some connections live. Copies are the same runtime.
#[derive(Clone)]
pub(crate) struct ConnectionRuntime {
    now: Arc<Mutex<Handle>>,
    keeper: Handle,
}

impl ConnectionRuntime {
    pub(crate) fn new(first: &Handle, keeper: &Handle) -> Self {
        Self { now: Arc::new(Mutex::new(first.clone())), keeper: keeper.clone() }
    }

    fn now(&self) -> Handle {
        support::lock(&self.now).clone()
    }

    /// Starts a task there; on the keeper's thread if that runtime has ended.
    pub(crate) fn spawn<T, F>(&self, work: impl Fn() -> F) -> JoinHandle<T>
    where
        T: Send + 'static,
        F: Future<Output = T> + Send + 'static,
    {
        let task = self.now().spawn(work());
        if task.is_finished() && self.use_the_keepers() {
            return self.keeper.spawn(work());
        }
        task
    }

    /// True if it was elsewhere.
    fn use_the_keepers(&self) -> bool {
        let mut now = support::lock(&self.now);
        let elsewhere = now.id() != self.keeper.id();
        *now = self.keeper.clone();
        elsewhere
    }

    /// Has what comes next live on the keeper's thread if the runtime shows no sign of life; `moved` is told so.
    pub(crate) fn check_runtime(&self, moved: impl FnOnce() + Send + 'static) {
        let (runtime, now) = (self.clone(), self.now());
        if now.id() == self.keeper.id() {
            return;
        }
        let sign_of_life = now.spawn(async {});
        self.keeper.spawn(async move {
            let lives = matches!(tokio::time::timeout(SIGN_OF_LIFE, sign_of_life).await, Ok(Ok(())));
            if !lives && runtime.use_the_keepers() {
                moved();
            }
        });
    }
}
