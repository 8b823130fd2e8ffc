//! The console of `lockkeeper serve` on Redis: many locks that change all the time, and pages that look at them.

mod browser;

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use lockkeeper::{Guard, Keeper};
use tokio::{
    task::{JoinHandle, JoinSet},
    time::MissedTickBehavior,
};

use crate::{
    Failure,
    bench::Bench,
    judge::Limit,
    measure::percent,
    redis,
    serve::{LOOKS, Server},
    table::Row,
    workload::Workload,
};

const SERVE: &str = "lockkeeper serve";

const LOCKS: usize = 10_000;
/// A lock changes so often: 100 a second.
const CHANGE: Duration = Duration::from_millis(10);
/// How many pages are open.
const PAGES: usize = 50;
/// The figures are taken after this part of the time, when they have settled.
const SETTLE_PART: u32 = 10;

const ONE_PAGE: Limit = Limit::Below(15.0);
const MANY_PAGES: Limit = Limit::Below(25.0);
/// Commands that scan the store for a sample, as a multiple of those with one page. Keys come and go between samples.
const LISTINGS: Limit = Limit::AtMost(1.05);
const LONGEST_TASK: Limit = Limit::AtMost(100.0);

/// The queries of pages. Most show all locks, like the pages that an operator keeps open.
const QUERIES: [&str; 5] = [
    "view=locks",
    "view=locks&sort=name&page=3",
    "view=locks&sort=held",
    "view=hot&minutes=5",
    "view=lock&name=bench/console/000042",
];

/// The work of the server and the store while pages were open.
struct Looked {
    cpu_percent: f64,
    /// `SCAN` commands per sample.
    scans: f64,
    /// Seconds between two samples.
    every: f64,
}

/// Measures the price of showing ten thousand locks of which a hundred change each second.
pub(crate) async fn console(bench: &Bench) -> Result<Vec<Row>, Failure> {
    let redis = bench.redis.as_ref().ok_or("the console is measured on redis:")?;
    let locks = LOCKS.min(bench.pace.locks);
    let mut guards = Vec::with_capacity(locks);
    for index in 0..locks {
        guards.push(bench.keeper.mutex(&name(index)).lock().await?);
    }
    let (changed, since) = (Arc::new(AtomicU64::new(0)), Instant::now());
    let changes = tokio::spawn(change(bench.keeper.clone(), guards, changed.clone()));
    let server = Server::ours(redis.url())?;
    let one = look(&server, redis, 1, bench.pace.wait).await?;
    let many = look(&server, redis, PAGES, bench.pace.wait).await?;
    let task = longest_task(&server, bench.pace.wait / 2).await;
    let rate = changed.load(Ordering::Relaxed) as f64 / since.elapsed().as_secs_f64();
    drop(server);
    stop(changes).await?;

    let row = |what: &str, value| Row::new(Workload::Console, SERVE, what, value);
    let judged = |what: &str, value: f64, limit: Limit| row(what, value).goal(limit, limit.judge(value));
    let mut rows = vec![
        row("locks", locks as f64),
        row("changes/s", rate),
        judged("CPU with one page open, % of a core", one.cpu_percent, ONE_PAGE),
        judged("CPU with 50 pages open, % of a core", many.cpu_percent, MANY_PAGES),
        row("seconds between samples, 50 pages", many.every),
        row("SCAN commands a sample, one page", one.scans),
        row("SCAN commands a sample, 50 pages", many.scans),
        judged("SCAN commands a sample, 50 pages / one page", many.scans / one.scans, LISTINGS),
    ];
    match task {
        Ok(millis) => rows.push(judged("longest task in the page (0: below 50), ms", millis, LONGEST_TASK)),
        Err(error) => eprintln!("the page was not measured: {error}"),
    }
    Ok(rows)
}

fn name(index: usize) -> String {
    format!("bench/console/{index:06}")
}

/// Gives one lock after the other back and takes it again, for ever, and counts that.
async fn change(keeper: Keeper, mut guards: Vec<Guard>, changed: Arc<AtomicU64>) -> Result<(), Failure> {
    let mut ticks = tokio::time::interval(CHANGE);
    // On a machine that is late, they are made up for.
    ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
    loop {
        for index in 0..guards.len() {
            ticks.tick().await;
            let again = keeper.mutex(&name(index));
            let last = guards.len() - 1;
            guards.swap_remove(index).release().await?;
            guards.push(again.lock().await?);
            guards.swap(index, last);
            changed.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Ends the changes; they must not have ended by themselves.
async fn stop(changes: JoinHandle<Result<(), Failure>>) -> Result<(), Failure> {
    changes.abort();
    match changes.await {
        Err(error) if error.is_cancelled() => Ok(()),
        Err(error) => Err(error.into()),
        Ok(ended) => ended,
    }
}

/// Opens so many pages and looks for a while.
async fn look(
    server: &Server,
    redis: &redis::Server,
    pages: usize,
    wait: Duration,
) -> Result<Looked, Failure> {
    let client = server.looker();
    let mut open = JoinSet::new();
    for page in 0..pages {
        let stream = client.stream(&format!("/v1/console?{}", QUERIES[page % QUERIES.len()])).await?;
        open.spawn(stream.read());
    }
    tokio::time::sleep(wait / SETTLE_PART).await;
    let (cpu, samples, scans) = (server.cpu()?, client.samples().await?, redis.calls("scan")?);
    let started = Instant::now();
    tokio::time::sleep(wait).await;
    let (elapsed, used) = (started.elapsed(), server.cpu()?.saturating_sub(cpu));
    let (samples, scans) = (client.samples().await? - samples, redis.calls("scan")? - scans);
    if let Some(ended) = open.try_join_next() {
        return Err(format!("a page was closed: {:?}", ended?).into());
    }
    Ok(Looked {
        cpu_percent: percent(used, elapsed),
        scans: scans as f64 / samples as f64,
        every: elapsed.as_secs_f64() / samples as f64,
    })
}

/// The longest task of a real page, in milliseconds, while somebody uses it.
async fn longest_task(server: &Server, wait: Duration) -> Result<f64, Failure> {
    let url = format!("http://{}/#token={LOOKS}", server.looker().address);
    tokio::task::spawn_blocking(move || browser::longest_task(&url, wait)).await?
}
