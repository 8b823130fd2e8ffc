//! Looking at something again whenever it may have changed: by subscription, and now and then without being told.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use tokio::sync::mpsc;

use super::{Engine, subscriptions::Subscription};
use crate::{
    error::StoreError,
    store::{BoxFuture, Topic},
    support::calm::calmly,
};

pub(super) struct Watching {
    topic: Topic,
    poll: Duration,
    subscription: Option<Subscription>,
}

impl Watching {
    /// `poll` is how often to look without being told.
    pub(super) fn new(topic: Topic, poll: Duration) -> Self {
        Self { topic, poll, subscription: None }
    }

    /// Called before each look, so that nothing falls between subscription and look.
    pub(super) async fn subscribed(&mut self, engine: &Engine) {
        if self.subscription.is_none() {
            // A failure is told by the look, or costs only time: the next look subscribes again.
            self.subscription = engine.subscribe(&self.topic).await.ok();
        }
    }

    /// Waits until it is time to look again.
    pub(super) async fn changed(&mut self, engine: &Engine) {
        let poll = engine.clock().now().after(self.poll);
        tokio::select! {
            biased;
            () = async {
                match &mut self.subscription {
                    Some(subscription) => subscription.changed().await,
                    None => std::future::pending().await,
                }
            } => {}
            () = engine.clock().sleep_until(poll) => {}
        }
    }

    /// Waits until it is time to look again although the last look failed: changes would only fail again.
    async fn retry(&self, engine: &Engine) {
        engine.clock().sleep_until(engine.clock().now().after(self.poll)).await;
    }
}

/// Looks at `topic` again and again, and sends each change until nobody listens or the keeper is closed. It does not
/// keep the keeper alive.
pub(crate) async fn follow<T: Clone + PartialEq>(
    engine: Weak<Engine>,
    topic: Topic,
    poll: Duration,
    look: impl Fn(Arc<Engine>) -> BoxFuture<'static, Result<T, StoreError>>,
    changes: mpsc::Sender<Result<T, StoreError>>,
) {
    let mut watching = Watching::new(topic, poll);
    let mut seen = None;
    loop {
        // The engine without its user's handle: the look of a task is nobody's reason to go on.
        let Some(engine) = engine.upgrade() else { return };
        if engine.is_closed() {
            return;
        }
        watching.subscribed(&engine).await;
        let found = look(engine.clone()).await;
        if engine.is_closed() {
            // The look may have failed only because of that.
            return;
        }
        let failed = found.is_err();
        let is_new = found.as_ref().map_or(true, |found| seen.as_ref() != Some(found));
        if let Ok(found) = &found {
            seen = Some(found.clone());
        }
        if is_new {
            let Ok(place) = changes.reserve().await else { return };
            // It wakes whoever looks, and more changes are to come.
            calmly(|| place.send(found));
        }
        tokio::select! {
            biased;
            () = changes.closed() => return,
            () = async { if failed { watching.retry(&engine).await } else { watching.changed(&engine).await } } => {}
        }
    }
}
