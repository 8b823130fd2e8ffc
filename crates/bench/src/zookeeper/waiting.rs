//! The server's price for waiting, and the order in which waiters are served.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use lockkeeper::support;
use tokio::task::JoinSet;

use super::{LOCKKEEPER, ZooKeeper};
use crate::{
    Failure,
    bench::Bench,
    judge::Limit,
    peer::{Lock, Peer as _},
    table::Row,
    workload::Workload,
};

const WAITERS: usize = 64;

/// How many queue up to be served in order.
const IN_ORDER: usize = 100;

/// Requests are counted after this part of the waiting time, when all have queued up.
const SETTLE_PART: u32 = 10;

/// A sign of life or a renewal may fall on one side or the other of the moment at which the counting ends;
/// 64 waiters that asked even once would be far above it.
const ADDED: Limit = Limit::AtMost(2.0);

impl ZooKeeper {
    pub(crate) async fn waiting(&self, bench: &Bench) -> Result<Vec<Row>, Failure> {
        let mut rows = self.requests_while_waiting(bench).await?;
        rows.extend(order(bench).await?);
        Ok(rows)
    }

    /// The requests that the server receives within a time from each, and how many of them are due to waiters: the same
    /// time is counted with and without them. All contestants at once, since each has a session of its own.
    async fn requests_while_waiting(&self, bench: &Bench) -> Result<Vec<Row>, Failure> {
        let recipe = self.recipe.as_ref().ok_or("there are no peers yet")?;
        // Each waits in the store's own queue.
        let ours = bench.keeper.mutex("bench/waiting").fifo();
        let theirs = recipe.lock("waiting");
        let (held, theirs_held) = (ours.lock().await?, theirs.acquire().await?);
        let path = "/bench/curator/waiting";
        if let Some(curator) = &self.curator {
            curator.ask(format!("hold {path}")).await?;
        }
        let held_only = self.received_within(bench.pace.wait).await?;
        let mut tasks = JoinSet::new();
        let_wait(&mut tasks, &ours);
        let_wait(&mut tasks, &theirs);
        if let Some(curator) = &self.curator {
            curator.ask(format!("wait {WAITERS} {path}")).await?;
        }
        let waited_for = self.received_within(bench.pace.wait).await?;
        if tasks.try_join_next().is_some() {
            return Err("a waiter did not wait for the holder".into());
        }
        held.release().await?;
        drop(theirs_held);
        if let Some(curator) = &self.curator {
            curator.ask("release".into()).await?;
        }
        while let Some(done) = tasks.join_next().await {
            done??;
        }
        let mut rows = Vec::new();
        for who in self.counted() {
            let of = |counts: &HashMap<&str, u64>| counts.get(who).copied().unwrap_or(0) as f64;
            let seconds = bench.pace.wait.as_secs_f64();
            let row = |what: String, value| Row::new(Workload::W4, who, what, value);
            rows.push(row(format!("requests at the server in {seconds} s, held only"), of(&held_only)));
            let added = of(&waited_for) - of(&held_only);
            let row = row(format!("requests at the server in {seconds} s, added by 64 who wait"), added);
            rows.push(if who == LOCKKEEPER { row.goal(ADDED, ADDED.judge(added)) } else { row });
        }
        Ok(rows)
    }

    /// The requests that the server receives from each within `wait`, once all is settled.
    async fn received_within(&self, wait: Duration) -> Result<HashMap<&'static str, u64>, Failure> {
        let count = || -> Result<HashMap<&'static str, u64>, Failure> {
            self.counted().map(|who| Ok((who, self.received_of(who)?))).collect()
        };
        tokio::time::sleep(wait / SETTLE_PART).await;
        let before = count()?;
        tokio::time::sleep(wait).await;
        Ok(count()?.into_iter().map(|(who, after)| (who, after - before[who])).collect())
    }
}

/// Starts tasks that wait for a lock, acquire it once and release it.
fn let_wait<L: Lock>(tasks: &mut JoinSet<Result<(), Failure>>, lock: &L) {
    for _ in 0..WAITERS {
        let lock = lock.clone();
        tasks.spawn(async move { L::release(lock.acquire().await?).await });
    }
}

/// A hundred waiters that came one after the other, and the order in which they were served.
async fn order(bench: &Bench) -> Result<Vec<Row>, Failure> {
    let name = "bench/order";
    let mutex = bench.keeper.mutex(name).fifo();
    let held = mutex.lock().await?;
    let served = Arc::new(Mutex::new(Vec::new()));
    let mut tasks = JoinSet::new();
    for index in 0..IN_ORDER {
        let (mutex, served) = (mutex.clone(), served.clone());
        tasks.spawn(async move {
            let guard = mutex.lock().await?;
            support::lock(&served).push(index);
            guard.release().await?;
            Ok::<_, Failure>(())
        });
        // The next one comes when this one is in the queue.
        while bench.keeper.inspect(name).await?.is_none_or(|view| view.waiters.len() <= index) {
            tokio::task::yield_now().await;
        }
    }
    let released = Instant::now();
    held.release().await?;
    while let Some(done) = tasks.join_next().await {
        done??;
    }
    let millis = released.elapsed().as_secs_f64() * 1e3;
    let served = support::lock(&served).clone();
    let in_order = served.iter().enumerate().filter(|(index, served)| index == *served).count();
    let all = Limit::AtLeast(IN_ORDER as f64);
    let row = |what, value| Row::new(Workload::W4, "lockkeeper fifo", what, value);
    Ok(vec![
        row("of 100 waiters served in their order", in_order as f64).goal(all, all.judge(in_order as f64)),
        row("drain of 100 waiters, ms", millis),
    ])
}
