//! A task that ends with its handle.

use tokio::{runtime::Handle, task::AbortHandle};

/// A task; ends when dropped.
pub(crate) struct Background(AbortHandle);

impl Background {
    pub(crate) fn spawn(runtime: &Handle, task: impl Future<Output = ()> + Send + 'static) -> Self {
        Self(runtime.spawn(task).abort_handle())
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        self.0.abort();
    }
}
