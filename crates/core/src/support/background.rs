//! Tasks that end with their owner.

use tokio::{runtime::Handle, task::AbortHandle};

/// A task that is aborted when this is dropped.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// use lockkeeper::support::background::Background;
/// let (_never, listens) = tokio::sync::oneshot::channel::<()>();
/// let task = Background::spawn(&tokio::runtime::Handle::current(), async move { drop(listens.await) });
/// drop(task);
/// # }
/// ```
#[derive(Debug)]
pub struct Background(AbortHandle);

impl Background {
    /// Starts `task` on `runtime`.
    pub fn spawn(runtime: &Handle, task: impl Future<Output = ()> + Send + 'static) -> Self {
        Self(runtime.spawn(task).abort_handle())
    }
}

impl From<AbortHandle> for Background {
    fn from(task: AbortHandle) -> Self {
        Self(task)
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        self.0.abort();
    }
}
