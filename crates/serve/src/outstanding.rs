//! Work that goes on after its request has ended, and that the end of the server waits for.

use tokio::{runtime::Handle, sync::watch};

/// Counts the work that goes on; clones count together.
#[derive(Clone)]
pub(crate) struct Outstanding {
    runtime: Handle,
    count: watch::Sender<usize>,
}

impl Outstanding {
    /// Work runs on the current runtime.
    pub(crate) fn new() -> Self {
        Self { runtime: Handle::current(), count: watch::Sender::new(0) }
    }

    /// Does `work`, from any thread.
    pub(crate) fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        let counted = self.begin();
        self.runtime.spawn(async move {
            work.await;
            drop(counted);
        });
    }

    /// Something begins, and goes on until this is dropped.
    pub(crate) fn begin(&self) -> Counted {
        self.count.send_modify(|count| *count += 1);
        Counted(self.count.clone())
    }

    /// Waits until there is none.
    pub(crate) async fn finished(&self) {
        // Only fails if all senders are gone, and this is one.
        drop(self.count.subscribe().wait_for(|count| *count == 0).await);
    }

    pub(crate) fn count(&self) -> usize {
        *self.count.borrow()
    }
}

/// One piece of work.
pub(crate) struct Counted(watch::Sender<usize>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count -= 1);
    }
}
