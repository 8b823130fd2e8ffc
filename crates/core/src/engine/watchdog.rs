//! The watchdog: it renews holds, ends those whose time is over, has waiters ask again and keeps gauges up to date. It
//! runs on the keeper's own thread, so a blocked user runtime loses no lock.

use std::sync::Arc;

use super::{Engine, renewal, settle};
use crate::clock::BootTime;

/// Runs until the keeper ends.
pub(crate) async fn run(engine: Arc<Engine>) {
    loop {
        let latest = look_around(&engine);
        tokio::select! {
            biased;
            () = engine.stop.stopped() => {
                engine.client.outages.close();
                return;
            }
            () = engine.client.outages.went_down() => {}
            () = engine.registry.until_due(engine.clock(), latest) => {}
        }
    }
}

/// Does all that is due; returns the latest time to look again.
fn look_around(engine: &Arc<Engine>) -> BootTime {
    let now = engine.clock().now();
    let due = engine.registry.take_due(now, renewal::TOGETHER);
    if !due.waiters.is_empty() {
        settle::ask_again(engine, due.waiters);
    }
    renewal::renew_due(engine, due.holds, now);
    publish(engine);
    engine.subscriptions.sweep(now)
}

/// Brings the gauges up to date. They are not changed with every claim, which would cost more than a claim in memory.
fn publish(engine: &Engine) {
    let (waiting, held) = engine.registry.publish(engine.client.outages.is_down());
    engine.client.outages.gauges.set_counts(held, waiting);
}
