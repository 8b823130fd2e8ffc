//! Locks over HTTP: `lockkeeper serve`, and its price for waiting, beside the least that a lock server on Redis can do.

mod bare;
mod load;
mod process;

use std::time::{Duration, Instant};

pub(crate) use self::{
    bare::serve as bare,
    process::{LOOKS, Server},
};
use crate::{
    Failure,
    bench::Bench,
    judge::{Limit, Median, Verdict},
    measure::percent,
    table::Row,
    workload::Workload,
};

/// The names of the two in the table.
const SERVE: &str = "lockkeeper serve";
const BARE: &str = "bare handlers";

const RATIO: Limit = Limit::AtLeast(0.5);
const CPU: Limit = Limit::Below(5.0);
const MEMORY: Limit = Limit::Below(64.0);

/// How many connections acquire and release.
const CONNECTIONS: usize = 64;
/// How many requests wait.
const WAITING: usize = 1000;

/// Measures acquire and release over HTTP, and 1,000 requests that wait.
pub(crate) async fn serve(bench: &Bench) -> Result<Vec<Row>, Failure> {
    let redis = bench.redis.as_ref().ok_or("serve is measured on redis:")?;
    process::raise_limit()?;
    let mut rows = {
        let (ours, bare) = (Server::ours(redis.url())?, Server::bare(redis.url())?);
        rates(bench, &ours, &bare).await?
    };
    // Another one: waiters would use memory that others gave back.
    rows.extend(waiting(bench, &Server::ours(redis.url())?).await?);
    Ok(rows)
}

async fn rates(bench: &Bench, ours: &Server, bare: &Server) -> Result<Vec<Row>, Failure> {
    let length = bench.pace.length;
    let (mut of_ours, mut of_bare, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    // Everything is warm before anything counts.
    ours.client.pairs(CONNECTIONS, length / 4).await?;
    bare.client.pairs(CONNECTIONS, length / 4).await?;
    for round in 0..bench.pace.rounds {
        // They take turns in going first.
        let (first, second) = if round % 2 == 0 { (ours, bare) } else { (bare, ours) };
        let (one, two) =
            (first.client.pairs(CONNECTIONS, length).await?, second.client.pairs(CONNECTIONS, length).await?);
        let (ours, bare) = if round % 2 == 0 { (one, two) } else { (two, one) };
        of_ours.push(ours);
        of_bare.push(bare);
        ratios.push(ours / bare);
    }
    let ratio = Median::of(ratios);
    let verdict = if bench.pace.is_enough() { RATIO.judge_rate(&ratio) } else { Verdict::TooShort };
    let what = "acquire + release over 64 connections, pairs/s";
    Ok(vec![
        Row::median(Workload::Serve, SERVE, what, Median::of(of_ours)),
        Row::median(Workload::Serve, BARE, what, Median::of(of_bare)),
        Row::median(Workload::Serve, SERVE, "its share of that of bare handlers", ratio).goal(RATIO, verdict),
    ])
}

async fn waiting(bench: &Bench, ours: &Server) -> Result<Vec<Row>, Failure> {
    let held = ours.client.acquire("waited-for").await?;
    let before = ours.resident()?;
    let waiters = ours.client.wait("waited-for", WAITING).await?;
    let all_wait = async {
        while bench.keeper.inspect("waited-for").await?.map_or(0, |view| view.waiters.len()) < WAITING {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Ok::<(), Failure>(())
    };
    tokio::time::timeout(Duration::from_secs(60), all_wait).await.map_err(|_| "they do not wait")??;
    let (cpu, start) = (ours.cpu()?, Instant::now());
    tokio::time::sleep(bench.pace.wait).await;
    let share = percent(ours.cpu()?.saturating_sub(cpu), start.elapsed());
    let each = ours.resident()?.saturating_sub(before) as f64 / WAITING as f64 / 1024.0;
    drop(waiters);
    ours.client.release(&held).await?;
    Ok(vec![
        Row::new(Workload::Serve, SERVE, "CPU while 1,000 requests wait, % of a core", share)
            .goal(CPU, CPU.judge(share)),
        Row::new(Workload::Serve, SERVE, "memory of a request that waits, KiB", each)
            .goal(MEMORY, MEMORY.judge(each)),
    ])
}
