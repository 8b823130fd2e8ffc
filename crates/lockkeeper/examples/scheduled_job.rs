//! cargo run -p lockkeeper --example scheduled_job [URL]
//!
//! Five workers have the same schedule, and each run of the job must happen once. Whoever is
//! first does it; the others skip. `min_hold` keeps the lock after a short job, so that a worker
//! whose clock is a little behind does not run it again.

use std::{
    sync::atomic::{AtomicU32, Ordering},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use lockkeeper::{Error, Keeper};

static RUNS: AtomicU32 = AtomicU32::new(0);

#[tokio::main]
async fn main() -> Result<(), Error> {
    let url = std::env::args().nth(1).map_or_else(lockkeeper::url::default_store, Ok)?;
    // The name holds the planned time, so the next run is another lock.
    let planned = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_millis();
    let run = format!("example/report/{planned}");

    let mut workers = Vec::new();
    for worker in 1..=5 {
        let (keeper, run) = (lockkeeper::connect(&url).await?, run.clone());
        workers.push(tokio::spawn(async move {
            // Clocks differ: nobody starts at exactly the same moment.
            tokio::time::sleep(Duration::from_millis(40 * worker)).await;
            at_the_planned_time(&keeper, &run, worker).await?;
            Ok::<Keeper, Error>(keeper)
        }));
    }
    let mut keepers = Vec::new();
    for worker in workers {
        keepers.push(worker.await.expect("no worker panics")?);
    }
    for keeper in keepers {
        keeper.close().await;
    }
    assert_eq!(RUNS.load(Ordering::Relaxed), 1, "the report was made once");
    Ok(())
}

async fn at_the_planned_time(keeper: &Keeper, run: &str, worker: u64) -> Result<(), Error> {
    match keeper.mutex(run).min_hold(Duration::from_secs(2)).try_lock().await? {
        Some(guard) => {
            println!("worker {worker}: makes the report");
            RUNS.fetch_add(1, Ordering::Relaxed);
            guard.release().await?;
        }
        None => println!("worker {worker}: somebody else makes it"),
    }
    Ok(())
}
