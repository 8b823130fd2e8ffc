//! The keeper's own thread with its own runtime: renewals go on even if the user's runtime is blocked.

use std::{
    cell::Cell,
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
        mpsc,
    },
    thread,
};

use tokio::{
    runtime::{Builder, Handle},
    sync::watch,
};

thread_local! {
    /// Whether [`start`] made this thread.
    static IS_OF_A_KEEPER: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread belongs to a keeper, whichever it is: blocked, it would delay renewals.
pub(crate) fn is_of_a_keeper() -> bool {
    IS_OF_A_KEEPER.get()
}

/// Ends the keeper's background work.
#[derive(Clone, Debug)]
pub(crate) struct Stop(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    stopped: watch::Sender<bool>,
    has_thread: AtomicBool,
    kept_alive_by: AtomicUsize,
    gone: tokio::sync::Notify,
}

impl Stop {
    pub(crate) fn new() -> Self {
        let (stopped, _) = watch::channel(false);
        Self(Arc::new(Shared {
            stopped,
            has_thread: AtomicBool::new(false),
            kept_alive_by: AtomicUsize::new(0),
            gone: tokio::sync::Notify::new(),
        }))
    }

    pub(crate) fn stop(&self) {
        self.0.stopped.send_replace(true);
    }

    pub(crate) fn is_stopped(&self) -> bool {
        *self.0.stopped.borrow()
    }

    pub(crate) async fn stopped(&self) {
        // The sender is in `self`, so this ends only by `stop`.
        drop(self.0.stopped.subscribe().wait_for(|stopped| *stopped).await);
    }

    /// Whether the background work has a thread of its own, which goes on while another one is blocked.
    pub(crate) fn has_thread(&self) -> bool {
        self.0.has_thread.load(Ordering::Acquire)
    }

    /// Somebody elsewhere who has timers on the thread, which ends only when all of them are gone.
    pub(crate) fn keep_alive(&self) -> KeepAlive {
        self.0.kept_alive_by.fetch_add(1, Ordering::AcqRel);
        KeepAlive(self.0.clone())
    }

    async fn without_kept_alive_by(&self) {
        loop {
            let gone = self.0.gone.notified();
            if self.0.kept_alive_by.load(Ordering::Acquire) == 0 {
                return;
            }
            gone.await;
        }
    }
}

/// See [`Stop::keep_alive`].
#[derive(Debug)]
pub(crate) struct KeepAlive(Arc<Shared>);

impl Drop for KeepAlive {
    fn drop(&mut self) {
        if self.0.kept_alive_by.fetch_sub(1, Ordering::AcqRel) == 1 {
            // Stored if the thread is not waiting yet.
            self.0.gone.notify_one();
        }
    }
}

/// Starts a thread whose runtime runs until `stop`, and gives the way into it.
pub(crate) fn start(stop: &Stop) -> io::Result<Handle> {
    let (ready, is_ready) = mpsc::channel();
    let until = stop.clone();
    thread::Builder::new().name("lockkeeper".into()).spawn(move || {
        IS_OF_A_KEEPER.set(true);
        // Made here: if no thread can be had, there is no runtime to be dropped where that is forbidden.
        let runtime = match Builder::new_current_thread().enable_all().build() {
            Ok(runtime) => runtime,
            // The caller that started the thread waits for this; it cannot be gone.
            Err(error) => return drop(ready.send(Err(error))),
        };
        runtime.block_on(async {
            drop(ready.send(Ok(runtime.handle().clone())));
            until.stopped().await;
            until.without_kept_alive_by().await;
        });
        // Tasks that still run belong to nobody any more.
        runtime.shutdown_background();
    })?;
    let handle = is_ready.recv().map_err(|_| io::Error::other("the keeper's thread ended at once"))??;
    stop.0.has_thread.store(true, Ordering::Release);
    Ok(handle)
}

/// Stops the thread of something that did not come to be.
pub(crate) struct StopUnlessKept(Option<Stop>);

impl StopUnlessKept {
    pub(crate) fn new(stop: &Stop) -> Self {
        Self(Some(stop.clone()))
    }

    pub(crate) fn keep(mut self) {
        self.0 = None;
    }
}

impl Drop for StopUnlessKept {
    fn drop(&mut self) {
        if let Some(stop) = &self.0 {
            stop.stop();
        }
    }
}
