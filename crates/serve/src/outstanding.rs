//! Work that goes on after its request has ended, and that the end of the server waits for.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use tokio::{runtime::Handle, sync::watch};

/// Counts the work that goes on; clones count together.
#[derive(Clone)]
pub(crate) struct Outstanding {
    runtime: Handle,
    count: watch::Sender<usize>,
}

impl Outstanding {
    /// Makes a count whose work runs on the current runtime.
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

    /// Does `work` in the task that polls this. If the future is dropped before its end, such as because a caller hangs
    /// up, the work goes on in a task of its own.
    pub(crate) fn finish<F: Future<Output: Send> + Send + 'static>(&self, work: F) -> Finish<F> {
        Finish { work: Some(Box::pin(work)), outstanding: self.clone() }
    }

    /// Counts a piece of work until the returned value is dropped.
    pub(crate) fn begin(&self) -> Counted {
        self.count.send_modify(|count| *count += 1);
        Counted(self.count.clone())
    }

    /// Waits until no work is left.
    pub(crate) async fn finished(&self) {
        // Only fails if all senders are gone, and this is one.
        drop(self.count.subscribe().wait_for(|count| *count == 0).await);
    }

    pub(crate) fn count(&self) -> usize {
        *self.count.borrow()
    }
}

/// One piece of work, which counts until this is dropped.
pub(crate) struct Counted(watch::Sender<usize>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count -= 1);
    }
}

/// Work that is finished in any case.
pub(crate) struct Finish<F: Future<Output: Send> + Send + 'static> {
    work: Option<Pin<Box<F>>>,
    outstanding: Outstanding,
}

impl<F: Future<Output: Send> + Send + 'static> Future for Finish<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        // It is polled until it is ready, and not after that.
        let Some(work) = &mut self.work else { return Poll::Pending };
        let outcome = work.as_mut().poll(context);
        if outcome.is_ready() {
            self.work = None;
        }
        outcome
    }
}

impl<F: Future<Output: Send> + Send + 'static> Drop for Finish<F> {
    fn drop(&mut self) {
        if let Some(work) = self.work.take() {
            self.outstanding.spawn(async move { drop(work.await) });
        }
    }
}
