//! One round of waiting and draining: many wait for a lock that is held, then get through once it is free.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::{sync::Barrier, task::JoinSet};

use crate::{
    Failure, measure,
    peer::{Lock, Peer},
};

/// The tasks get this part of the waiting time to queue up before it begins.
const SETTLE_PART: u32 = 10;

/// The figures of a round.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Drain {
    /// Client CPU while waiting, in per cent of a core.
    pub(crate) cpu_percent: f64,
    /// Requests per second while waiting, if they are counted.
    pub(crate) requests: Option<f64>,
    /// From the release until all have had the lock and released it.
    pub(crate) drained: Duration,
    /// Client CPU of that, all together.
    pub(crate) cpu: Duration,
}

/// Holds a lock while `waiters` tasks wait for it, then lets them through.
pub(crate) async fn drain<P: Peer>(peer: &P, waiters: usize, wait: Duration) -> Result<Drain, Failure> {
    let lock = peer.lock("w4/0");
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
    tokio::time::sleep(wait / SETTLE_PART).await;
    let (before, requests, asleep) = (measure::cpu(), peer.requests(), Instant::now());
    tokio::time::sleep(wait).await;
    let cpu_percent = measure::percent(measure::cpu().saturating_sub(before), asleep.elapsed());
    let requests = peer.requests().zip(requests).map(|(after, before)| (after - before) as f64);
    let requests = requests.map(|requests| requests / asleep.elapsed().as_secs_f64());
    if tasks.try_join_next().is_some() {
        return Err(format!("{}: a waiter did not wait for the holder", Peer::name(peer)).into());
    }
    let (before, released) = (measure::cpu(), Instant::now());
    P::Lock::release(held).await?;
    while let Some(done) = tasks.join_next().await {
        done??;
    }
    Ok(Drain {
        cpu_percent,
        requests,
        drained: released.elapsed(),
        cpu: measure::cpu().saturating_sub(before),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        peers::{TokioPeer, broken::Broken},
        rounds::Contestant as _,
    };

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn waiters_wait_and_then_drain() {
        let drain = TokioPeer::default().drain(4, Duration::from_millis(50)).await.expect("a round");
        assert!(drain.drained > Duration::ZERO && drain.requests.is_none());
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_lock_that_nobody_waits_for_is_found_out() {
        let error = Broken.drain(4, Duration::from_millis(300)).await.expect_err("nobody waited");
        assert!(error.to_string().contains("did not wait"), "{error}");
    }
}
