//! Operations on latches: each is asked for again until its outcome is known, and counts once (invariant I13).

use std::{
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use super::{Engine, patience::Patience, watching::Watching};
use crate::{
    error::{At, LatchError, StoreError, StoreErrorKind},
    model::COUNT_MEMORY,
    name::Name,
    store::{Count, CountAction, Counted, Topic},
    support::{backoff::Backoff, duration::show},
};

/// How often a task that waits for a latch looks without being told.
const POLL: Duration = Duration::from_secs(1);

/// How many operations in a row may arrive too late for the store's clock.
const LATE_COUNTS: u32 = 5;

/// Does one operation with one id.
pub(crate) async fn count(
    engine: &Engine,
    name: &Name,
    action: CountAction,
    operation: &'static str,
) -> Result<Counted, LatchError> {
    let at = || At::resource(engine.store().url(), name, operation);
    let (server, clock) = (engine.client.server_of(name), &engine.client.store_clock);
    let mut started = engine.clock().now();
    let not_after = clock.not_after(server, started);
    let mut count = Count { name: name.clone(), op: engine.ids.next(), not_after, action };
    let mut backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(1));
    let (mut unknown, mut too_late) = (false, 0);
    loop {
        if engine.is_closed() {
            return Err(LatchError::Closed { at: at() });
        }
        let result = engine.ask(operation, engine.store().count(&count)).await;
        let now = engine.clock().now();
        let error = match result.map(|answers| (answers.now, answers.each.first().copied())) {
            Ok((time, Some(Counted::Stale))) if too_late < LATE_COUNTS => {
                // The store remembers what counted for longer than anybody asks again, so
                // this means that no copy counted or ever will: a new one is in order.
                clock.heard(server, now, time);
                too_late += 1;
                unknown = false;
                started = now;
                count.op = engine.ids.next();
                count.not_after = clock.not_after(server, now);
                continue;
            }
            // It may have counted.
            Ok((_, None)) => StoreError::new(
                StoreErrorKind::Unreachable,
                "the store did not say whether it counted; check the store",
            ),
            Ok((_, Some(Counted::Stale))) => StoreError::new(
                StoreErrorKind::Conflict,
                "requests keep arriving too late for the store's clock; check clocks and latency",
            ),
            Ok((time, Some(counted))) => {
                clock.heard(server, now, time);
                return Ok(counted);
            }
            Err(error) => error,
        };
        unknown |= error.maybe_applied();
        if !error.is_passing() || now.since(started) >= engine.outage_limit.min(COUNT_MEMORY / 2) {
            let error = if unknown { error.perhaps_applied() } else { error };
            return Err(error.at(at()).into());
        }
        engine.clock().sleep_until(now.after(backoff.pause())).await;
    }
}

/// Waits until the latch opens.
pub(crate) async fn wait(engine: &Arc<Engine>, name: &Name, patience: Patience) -> Result<(), LatchError> {
    let at = || At::resource(engine.store().url(), name, "wait");
    let started = engine.clock().now();
    let last = OnceLock::new();
    let opened = patience.limit(engine.clock(), until_open(engine, name, &last)).await;
    let waited = engine.clock().now().since(started);
    match (opened, last.get()) {
        (Some(opened), _) => opened,
        (None, Some(remaining)) => {
            let remaining = remaining.load(Ordering::Relaxed);
            Err(LatchError::TimedOut { at: at(), waited, remaining })
        }
        (None, None) => {
            let message =
                format!("no answer within {}; check that the store is up and reachable", show(waited));
            Err(StoreError::new(StoreErrorKind::Unreachable, message).at(at()).into())
        }
    }
}

/// Waits until it opens or is deleted, and notes in `last` what was left at each look.
async fn until_open(engine: &Arc<Engine>, name: &Name, last: &OnceLock<AtomicU64>) -> Result<(), LatchError> {
    let at = || At::resource(engine.store().url(), name, "wait");
    let mut watching = Watching::new(Topic::Latch(name.clone()), POLL);
    let mut first = None;
    loop {
        watching.subscribed(engine).await;
        let state = match (count(engine, name, CountAction::Read, "wait").await?, first) {
            (Counted::State(state), None) => *first.insert(state),
            (Counted::State(state), Some(first)) if state.born == first.born => state,
            (_, None) => return Err(LatchError::Missing { at: at() }),
            _ => return Err(LatchError::Deleted { at: at() }),
        };
        last.get_or_init(AtomicU64::default).store(state.remaining, Ordering::Relaxed);
        if state.remaining == 0 || first.is_some_and(|first| state.opened > first.opened) {
            return Ok(());
        }
        watching.changed(engine).await;
    }
}
