//! Held: the price of many locks while they are only held.

use std::time::Instant;

use lockkeeper::Guard;

use crate::{
    Failure,
    bench::Bench,
    judge::{Limit, Verdict},
    measure, sql,
    table::Row,
    workload::Workload,
};

/// This part of the locks is taken before memory is first looked at, so that the allocator's first pages and memory
/// that is set up once are not counted as the price of a lock.
const FIRST_PART: usize = 10;

/// Bytes of resident memory for each lock, the store's part included when it is in this process.
const BYTES_EACH: Limit = Limit::AtMost(1024.0);

/// CPU of this process, and of the server, while all of them are renewed, in per cent of a core.
const CPU_PERCENT: Limit = Limit::Below(5.0);

/// Holds many locks, a hundred thousand in a full run, or ten thousand on a database.
pub(crate) async fn held(bench: &Bench) -> Result<Vec<Row>, Failure> {
    let (locks, lease) = (bench.pace.locks, bench.pace.lease);
    let first = locks / FIRST_PART;
    let mut guards = Vec::with_capacity(first + locks);
    take(bench, &mut guards, first).await?;
    let before = measure::resident()?;
    take(bench, &mut guards, first + locks).await?;
    let bytes = measure::resident()?.saturating_sub(before) as f64 / locks as f64;

    // Exactly as many as promised; the releases are over before the window begins.
    for guard in guards.drain(..first) {
        guard.release().await?;
    }
    tokio::time::sleep(lease / 30).await;
    let server = bench.server_cpu()?;
    let (cpu, requests, started) = (measure::cpu(), bench.requests.so_far(), Instant::now());
    // As long as a lease: each is renewed two or three times, and one that was not has ended.
    tokio::time::sleep(lease).await;
    let used = measure::percent(measure::cpu().saturating_sub(cpu), started.elapsed());
    let requests = bench.requests.so_far() - requests;
    let server = bench.server_cpu()?.zip(server);
    let server =
        server.map(|(after, before)| measure::percent(after.saturating_sub(before), started.elapsed()));
    let lost = guards.iter().filter(|guard| !guard.is_held()).count();

    let started = Instant::now();
    for guard in guards {
        // Lost ones are counted above.
        drop(guard.release().await);
    }
    let each = started.elapsed().as_secs_f64() * 1e6 / locks as f64;
    let row = |what, value| Row::new(Workload::Held, "lockkeeper", what, value);
    let judge = |limit: Limit, value| {
        if locks < bench.full_locks() { Verdict::TooShort } else { limit.judge(value) }
    };
    let goal = |what, value, limit| row(what, value).goal(limit, judge(limit, value));
    let mut rows = vec![
        row("locks", locks as f64),
        goal("resident memory, bytes per lock", bytes, BYTES_EACH),
        goal("client CPU while renewed, % of a core", used, CPU_PERCENT),
        goal("lost within one lease", lost as f64, Limit::AtMost(0.0)),
        row("requests/s while renewed", requests as f64 / lease.as_secs_f64()),
        row("release with all others held, µs", each),
    ];
    let what = "server CPU while renewed, % of a core";
    match &bench.sql {
        // It writes them to disk.
        Some(sql) => {
            rows.extend(server.map(|used| row(what, used)));
            rows.extend(sql::renew_all(&sql.server, locks).await?);
        }
        None => rows.extend(server.map(|used| goal(what, used, CPU_PERCENT))),
    }
    Ok(rows)
}

/// Takes locks until there are `count`.
async fn take(bench: &Bench, guards: &mut Vec<Guard>, count: usize) -> Result<(), Failure> {
    while guards.len() < count {
        let name = format!("bench/held/{:06}", guards.len());
        let mutex = bench.keeper.mutex(&name).lease(bench.pace.lease);
        guards.push(mutex.lock().await?);
    }
    Ok(())
}
