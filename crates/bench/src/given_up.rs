//! Given up: the price of many tasks that wait for a held name and time out within a second.

use std::time::Duration;

use lockkeeper::Mutex;
use tokio::time::sleep;

use crate::{
    Failure,
    bench::Bench,
    judge::{Limit, Verdict},
    measure,
    table::Row,
    workload::{Pace, Workload},
};

/// CPU time of all of them together, beyond that of as many tasks that only sleep for as long.
const CPU_MILLIS: Limit = Limit::Below(50.0);

/// The shortest and the longest wait.
const WAITS: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(1));

/// Has as many tasks as the pace says wait and give up, behind one entry at the store.
pub(crate) async fn given_up(bench: &Bench) -> Result<Vec<Row>, Failure> {
    let tasks = bench.pace.crowd;
    let mutex = bench.keeper.mutex("bench/given-up");
    let held = mutex.lock().await?;
    let timers = cost(tasks, |_, limit| sleep(limit), &mutex).await?;
    let waits = cost(
        tasks,
        |mutex, limit| async move {
            // It stays held, so all of them give up.
            drop(mutex.lock_within(limit).await);
        },
        &mutex,
    )
    .await?;
    held.release().await?;
    let millis = |time: Duration| time.as_secs_f64() * 1e3;
    let beyond = millis(waits.saturating_sub(timers));
    let row = |what, value| Row::new(Workload::GivenUp, "lockkeeper", what, value);
    let verdict = if tasks < Pace::FULL.crowd { Verdict::TooShort } else { CPU_MILLIS.judge(beyond) };
    Ok(vec![
        row("tasks", tasks as f64),
        row("CPU of their timers alone, ms", millis(timers)),
        row("CPU beyond their timers, ms", beyond).goal(CPU_MILLIS, verdict),
    ])
}

/// Measures the CPU time of this process while so many tasks wait, each for its own time.
async fn cost<F: Future<Output = ()> + Send + 'static>(
    tasks: usize,
    wait: impl Fn(Mutex, Duration) -> F,
    mutex: &Mutex,
) -> Result<Duration, Failure> {
    let (shortest, longest) = WAITS;
    let before = measure::cpu();
    let waiting: Vec<_> = (0..tasks)
        .map(|index| {
            let limit = shortest + (longest - shortest) * index as u32 / tasks as u32;
            tokio::spawn(wait(mutex.clone(), limit))
        })
        .collect();
    for task in waiting {
        task.await?;
    }
    Ok(measure::cpu().saturating_sub(before))
}
