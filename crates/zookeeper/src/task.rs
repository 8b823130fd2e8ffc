//! A background task that its owner aborts by dropping it.

use tokio::task::AbortHandle;

/// A background task, aborted when this is dropped.
#[derive(Debug)]
pub(crate) struct Task(pub(crate) AbortHandle);

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}
