//! Held: what many locks cost while they are only held.

use std::time::{Duration, Instant};

use lockkeeper::Guard;

use crate::{Bench, Failure, judge::Limit, measure, table::Row};

/// Taken before memory is first looked at, so that what is set up once, and the allocator's first
/// pages, are not counted as the price of a lock.
const FIRST: usize = 10_000;

/// The locks whose memory is measured, and then those that are kept.
const LOCKS: usize = 100_000;

/// Each lease is renewed at a third of it, so three times in the window.
const LEASE: Duration = Duration::from_secs(30);
const WINDOW: Duration = Duration::from_secs(30);

/// Bytes of resident memory for each lock, the store's part included when it is in this process.
const BYTES_EACH: Limit = Limit::AtMost(1024.0);

/// CPU of this process while all of them are renewed, in per cent of a core.
const CPU_PERCENT: Limit = Limit::Below(5.0);

/// Holds a hundred thousand locks.
pub(crate) async fn held(bench: &Bench) -> Result<Vec<Row>, Failure> {
    let mut guards = Vec::with_capacity(FIRST + LOCKS);
    take(bench, &mut guards, FIRST).await?;
    let before = measure::resident()?;
    take(bench, &mut guards, FIRST + LOCKS).await?;
    let bytes = measure::resident()?.saturating_sub(before) as f64 / LOCKS as f64;

    // Exactly as many as promised; what giving back costs is over before the window begins.
    for guard in guards.drain(..FIRST) {
        guard.release().await?;
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    let (cpu, started) = (measure::cpu(), Instant::now());
    tokio::time::sleep(WINDOW).await;
    let used = measure::percent(measure::cpu().saturating_sub(cpu), started.elapsed());
    // A lease that was not renewed has ended by now, since the window is as long as it.
    let lost = guards.iter().filter(|guard| !guard.is_held()).count();

    let started = Instant::now();
    let count = guards.len();
    for guard in guards {
        guard.release().await?;
    }
    let each = started.elapsed().as_secs_f64() * 1e6 / count as f64;
    Ok(vec![
        Row::new("held", "lockkeeper", "resident memory, bytes per lock", bytes).counted(BYTES_EACH),
        Row::new("held", "lockkeeper", "client CPU while renewed, % of a core", used).counted(CPU_PERCENT),
        Row::new("held", "lockkeeper", "lost of 100,000 in 30 s", lost as f64).counted(Limit::AtMost(0.0)),
        Row::new("held", "lockkeeper", "release with 100,000 held, µs", each),
    ])
}

/// Takes locks until there are `count`.
async fn take(bench: &Bench, guards: &mut Vec<Guard>, count: usize) -> Result<(), Failure> {
    while guards.len() < count {
        let mutex = bench.keeper.mutex(&format!("bench/held/{:06}", guards.len())).lease(LEASE);
        guards.push(mutex.lock().await?);
    }
    Ok(())
}
