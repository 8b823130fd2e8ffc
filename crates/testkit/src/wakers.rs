//! Wakers as users may write them, for futures that a test polls by hand.

use std::{
    sync::Arc,
    task::{Context, Poll, Wake, Waker},
};

struct Panics;

impl Wake for Panics {
    fn wake(self: Arc<Self>) {
        panic!("a waker that panics");
    }
}

/// A waker that panics, as that of an executor does whose queue is full or gone.
pub fn panicking() -> Waker {
    Waker::from(Arc::new(Panics))
}

struct Does<F>(F);

impl<F: Fn() + Send + Sync + 'static> Wake for Does<F> {
    fn wake(self: Arc<Self>) {
        (self.0)();
    }
}

/// A waker that does something.
pub fn that_does(something: impl Fn() + Send + Sync + 'static) -> Waker {
    Waker::from(Arc::new(Does(something)))
}

/// Polls a future once, and boxes it so that its waker stays where it was left.
///
/// # Panics
/// If it is ready.
pub fn left_with<F: Future>(waker: &Waker, future: F) -> std::pin::Pin<Box<F>> {
    let mut future = Box::pin(future);
    assert!(matches!(future.as_mut().poll(&mut Context::from_waker(waker)), Poll::Pending), "it is ready");
    future
}
