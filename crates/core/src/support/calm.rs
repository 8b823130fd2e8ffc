//! Other people's code that may panic: wakers of users' executors, and log listeners.
//!
//! Whoever wakes a task runs code of that task's executor, and hand-written ones panic: their queue is full, or they are
//! gone. Tokio passes such a panic on to whoever told the news, and wakes nobody else of the batch that the waker was in.
//! Timers, sockets and `Notify` all wake in batches. So the watchdog would end with a waker of one guard.
//!
//! There are two ways out. A task that may be woken in a batch waits with a [`calm`] waker. Where only one task is woken
//! and every lock or release passes by, its waker stays as it is, and whoever tells it does so [`calmly`]: that costs no
//! allocation. The panic itself is shown by the program's panic hook, as any other.

use std::{
    future::poll_fn,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::pin,
    sync::Arc,
    task::{Context, Wake, Waker},
};

use tokio::sync::oneshot;

/// Does some work; `None` if it panicked.
pub(crate) fn calmly<T>(work: impl FnOnce() -> T) -> Option<T> {
    catch_unwind(AssertUnwindSafe(work)).ok()
}

/// Sends `value`, and gives it back if nobody waits for it.
pub(crate) fn send<T>(sender: oneshot::Sender<T>, value: T) -> Result<(), T> {
    // A waker that panics does so when the value is there already.
    calmly(|| sender.send(value)).unwrap_or(Ok(()))
}

/// Does `work` with a waker that never panics.
pub(crate) async fn calm<T>(work: impl Future<Output = T>) -> T {
    let mut work = pin!(work);
    let mut waker = None::<Arc<CalmWaker>>;
    poll_fn(|context| {
        let waker = match &waker {
            Some(waker) if waker.0.will_wake(context.waker()) => waker,
            _ => waker.insert(Arc::new(CalmWaker(context.waker().clone()))),
        };
        work.as_mut().poll(&mut Context::from_waker(&waker.clone().into()))
    })
    .await
}

struct CalmWaker(Waker);

impl Wake for CalmWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        calmly(|| self.0.wake_by_ref());
    }
}
