//! Operations on latches: each is asked for again until its outcome is known, and counts once (invariant I13).

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use super::{
    Engine,
    heard::Heard,
    outages::{FailedRequest, Work},
    patience::Patience,
    watching::Watching,
};
use crate::{
    clock::BootTime,
    error::{At, LatchError, StoreError, StoreErrorKind},
    model::COUNT_MEMORY,
    name::Name,
    store::{Count, CountAction, Counted, Topic},
    support::{self, backoff::Backoff},
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
    count_telling(engine, name, action, operation, |_, _| {}).await
}

/// As [`count`], and tells `failed` of each failure after which it asks again, and when that request was sent.
async fn count_telling(
    engine: &Engine,
    name: &Name,
    action: CountAction,
    operation: &'static str,
    failed: impl Fn(BootTime, StoreError),
) -> Result<Counted, LatchError> {
    let at = || At::resource(engine.store().url(), name, operation);
    let (server, clock) = (engine.client.server_of(name), &engine.client.store_clock);
    let mut started = engine.clock().now();
    let not_after = clock.not_after(server, started);
    // A look may be repeated for as long as one likes. A change must end while the store remembers it.
    let changes = action != CountAction::Read;
    let limit = if changes { engine.outage_limit.min(COUNT_MEMORY / 2) } else { engine.outage_limit };
    let mut count = Count { name: name.clone(), op: engine.ids.next(), not_after, action };
    let mut backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(1));
    let (mut unknown, mut too_late) = (false, 0);
    loop {
        if engine.is_closed() {
            return Err(LatchError::Closed { at: at() });
        }
        let sent = engine.clock().now();
        let result = engine.ask(operation, engine.store().count(&count)).await;
        let now = engine.clock().now();
        engine.client.outages.heard(name, sent, &result);
        // An earlier copy may have counted, and a copy that comes this late may find that forgotten.
        let forgotten = changes && unknown && now.since(started) >= COUNT_MEMORY;
        let error = match result.map(|answers| (answers.now, answers.each.first().copied())) {
            Ok((_, Some(Counted::Stale))) if forgotten => return Err(forgotten_count().at(at()).into()),
            Ok((time, Some(Counted::Stale))) if too_late < LATE_COUNTS => {
                // The store remembers the operations that counted for longer than anybody asks again, so
                // this means that no copy counted or ever will: a new one is in order.
                clock.heard(server, now, time);
                too_late += 1;
                unknown = false;
                started = now;
                count.op = engine.ids.next();
                count.not_after = clock.not_after(server, now);
                continue;
            }
            Ok((_, None)) => unanswered_count(),
            Ok((_, Some(Counted::Stale))) => late_count(),
            Ok((time, Some(counted))) => {
                clock.heard(server, now, time);
                return Ok(counted);
            }
            Err(error) => error,
        };
        unknown |= error.maybe_applied();
        if !error.is_passing() || now.since(started) >= limit {
            let error = match action {
                CountAction::Read => error.not_applied(),
                _ if unknown => error.perhaps_applied(),
                _ => error,
            };
            return Err(error.at(at()).into());
        }
        failed(sent, error);
        engine.clock().sleep_until(now.after(backoff.pause())).await;
    }
}

fn forgotten_count() -> StoreError {
    let message = "the store has forgotten whether it counted; look at the latch before you ask again";
    StoreError::new(StoreErrorKind::Conflict, message).perhaps_applied()
}

/// It may have counted.
fn unanswered_count() -> StoreError {
    let message = "the store did not say whether it counted; check the store";
    StoreError::new(StoreErrorKind::Unreachable, message)
}

fn late_count() -> StoreError {
    let message = "requests keep arriving too late for the store's clock; check clocks and latency";
    StoreError::new(StoreErrorKind::Conflict, message)
}

/// The news of a wait for a latch so far.
#[derive(Default)]
struct LatchHeard {
    last: Heard,
    /// The count that remained at the latest look.
    remaining: u64,
}

/// Waits until the latch opens.
pub(crate) async fn wait(engine: &Arc<Engine>, name: &Name, patience: Patience) -> Result<(), LatchError> {
    let started = engine.clock().now();
    let heard = Mutex::new(LatchHeard::default());
    if let Some(opened) = patience.limit(engine.clock(), until_open(engine, name, &heard)).await {
        return opened;
    }
    engine.client.outages.wait_ended(|| engine.registry.counts().0);
    let at = At::resource(engine.store().url(), name, "wait");
    let waited = engine.clock().now().since(started);
    let LatchHeard { last, remaining } = std::mem::take(&mut *support::lock(&heard));
    Err(match last.failure(waited) {
        Some(error) => error.not_applied().at(at).into(),
        None => LatchError::TimedOut { at, waited, remaining },
    })
}

/// Waits until it opens or is deleted, and notes all news.
async fn until_open(engine: &Arc<Engine>, name: &Name, heard: &Mutex<LatchHeard>) -> Result<(), LatchError> {
    let at = || At::resource(engine.store().url(), name, "wait");
    let outages = &engine.client.outages;
    let failed = |sent, error: StoreError| {
        // This wait is not among the waiters of the registry.
        let request = FailedRequest { name, sent };
        outages.wait_goes_on(request, &error, || engine.registry.counts().0 + 1);
        support::lock(heard).last = Heard::Failure { error, since: sent };
    };
    let mut watching = Watching::new(Topic::Latch(name.clone()), POLL);
    let mut first = None;
    loop {
        watching.subscribed(engine).await;
        let counted = count_telling(engine, name, CountAction::Read, "wait", failed).await?;
        outages.answered(name, Work::Waits);
        let state = match (counted, first) {
            (Counted::State(state), None) => *first.insert(state),
            (Counted::State(state), Some(first)) if state.born == first.born => state,
            (_, None) => return Err(LatchError::Missing { at: at() }),
            _ => return Err(LatchError::Deleted { at: at() }),
        };
        *support::lock(heard) = LatchHeard { last: Heard::Answer, remaining: state.remaining };
        if state.remaining == 0 || first.is_some_and(|first| state.opened > first.opened) {
            return Ok(());
        }
        watching.changed(engine).await;
    }
}
