//! The watchdog: it renews holds, ends those whose time is over and has waiters ask again. It runs on the keeper's own
//! thread, so a blocked user runtime loses no lock.

use std::sync::Arc;

use super::{Engine, acquisition, renewal};
use crate::clock::BootTime;

/// Runs until the keeper ends.
pub(crate) async fn run(engine: Arc<Engine>) {
    loop {
        let latest = look_around(&engine);
        tokio::select! {
            biased;
            () = engine.stop.stopped() => return,
            () = engine.registry.until_due(engine.clock(), latest) => {}
        }
    }
}

/// Does what is due; returns when to look again at the latest.
fn look_around(engine: &Arc<Engine>) -> BootTime {
    let now = engine.clock().now();
    let due = engine.registry.take_due(now, renewal::TOGETHER);
    if !due.waiters.is_empty() {
        acquisition::ask_again(engine, due.waiters);
    }
    renewal::renew_due(engine, due.holds, now);
    engine.subscriptions.sweep(now)
}
