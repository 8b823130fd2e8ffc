//! W4: many wait for one lock. What that costs while nothing happens, and how fast they get
//! through once it is free.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::{sync::Barrier, task::JoinSet};

use crate::{
    Bench, Failure,
    judge::Median,
    measure,
    peer::{KeeperPeer, Lock, Peer, TokioPeer},
    rounds::Contestant,
    table::Row,
};

const WAITERS: usize = 64;

/// How long they wait in each round: several of the polls that a waiter makes when no wake comes.
const WAIT: Duration = Duration::from_secs(5);

/// How long they are given to stand in line before anything is measured.
const SETTLE: Duration = Duration::from_millis(500);

/// A round takes long and its figures are counts or nearly so: fewer do.
const ROUNDS: usize = 5;

/// What a round brought.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Drain {
    /// Client CPU while waiting, in per cent of a core.
    pub(crate) cpu_percent: f64,
    /// From the release until all have had the lock and released it.
    pub(crate) drained: Duration,
    /// Client CPU of that, all together.
    pub(crate) cpu: Duration,
}

pub(crate) async fn w4(bench: &Bench) -> Result<Vec<Row>, Failure> {
    let (usual, fifo) = (KeeperPeer::usual(&bench.keeper), KeeperPeer::fifo(&bench.keeper));
    let tokio = TokioPeer::default();
    let mut contestants: Vec<&dyn Contestant> = vec![&usual, &fifo];
    if bench.is_local() {
        contestants.push(&tokio);
    }
    let mut results = vec![Vec::new(); contestants.len()];
    for _ in 0..ROUNDS.min(bench.rounds) {
        for (contestant, results) in contestants.iter().zip(&mut results) {
            results.push(contestant.drain(WAITERS, WAIT).await?);
        }
    }
    let mut rows = Vec::new();
    for (contestant, drains) in contestants.iter().zip(&results) {
        let median = |figure: fn(&Drain) -> f64| Median::of(drains.iter().map(figure));
        let mut row = |what, median| rows.push(Row::median("W4", contestant.name(), what, median));
        row("client CPU while waiting, % of a core", median(|drain| drain.cpu_percent));
        row("drain of 64 waiters, ms", median(|drain| drain.drained.as_secs_f64() * 1e3));
        row("client CPU of the drain, ms", median(|drain| drain.cpu.as_secs_f64() * 1e3));
    }
    Ok(rows)
}

/// Holds a lock while `waiters` tasks wait for it, then lets them through.
pub(crate) async fn drain<P: Peer>(peer: &P, waiters: usize, wait: Duration) -> Result<Drain, Failure> {
    let lock = peer.lock("W4/0");
    let held = lock.acquire().await?;
    let start = Arc::new(Barrier::new(waiters + 1));
    let mut tasks = JoinSet::new();
    for _ in 0..waiters {
        let (lock, start) = (lock.clone(), start.clone());
        tasks.spawn(async move {
            start.wait().await;
            P::Lock::release(lock.acquire().await?).await
        });
    }
    start.wait().await;
    tokio::time::sleep(SETTLE).await;
    let (before, asleep) = (measure::cpu(), Instant::now());
    tokio::time::sleep(wait).await;
    let cpu_percent = measure::percent(measure::cpu().saturating_sub(before), asleep.elapsed());
    if tasks.try_join_next().is_some() {
        return Err(format!("{}: a waiter did not wait for the holder", Peer::name(peer)).into());
    }
    let (before, released) = (measure::cpu(), Instant::now());
    P::Lock::release(held).await?;
    while let Some(done) = tasks.join_next().await {
        done??;
    }
    Ok(Drain { cpu_percent, drained: released.elapsed(), cpu: measure::cpu().saturating_sub(before) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn waiters_wait_and_then_drain() {
        let drain = TokioPeer::default().drain(4, Duration::from_millis(50)).await.unwrap();
        assert!(drain.cpu_percent < 100.0);
        assert!(drain.drained < Duration::from_secs(5));
    }
}
