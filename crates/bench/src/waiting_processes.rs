//! W4p: 64 processes wait for one lock, one waiter each. Measures the price for all of them together while nothing
//! happens, and how fast they get through once it is free.

use std::time::{Duration, Instant};

use crate::{
    Failure,
    bench::Bench,
    judge::{Limit, Median},
    measure,
    processes::{ChildProcess, Dialogue},
    table::Row,
    workload::Workload,
};

const PROCESSES: usize = 64;
const NAME: &str = "bench/w4p";

/// Much longer than any wait: the holder is the same all along.
const PATIENCE: Duration = Duration::from_secs(600);

const SQLITE_GOALS: [(&str, Limit); 1] =
    [("client CPU while 64 processes wait, % of a core", Limit::Below(1.0))];

/// Asks a waiting process for its CPU time so far, exact to the nanosecond.
fn cpu_of(waiter: &mut Dialogue) -> Result<Duration, Failure> {
    let answer = waiter.ask("cpu")?;
    let nanos = answer.parse().map_err(|_| format!("a waiter said {answer:?} instead of waiting"))?;
    Ok(Duration::from_nanos(nanos))
}

fn cpu_of_all(waiters: &mut [Dialogue]) -> Result<Duration, Failure> {
    waiters.iter_mut().map(cpu_of).sum()
}

/// The figures of a round.
struct ProcessDrain {
    cpu_percent: f64,
    drained: Duration,
}

async fn drain(bench: &Bench) -> Result<ProcessDrain, Failure> {
    let held = bench.keeper.mutex(NAME).lock_within(PATIENCE).await?;
    let url = bench.keeper.url().to_owned();
    let mut waiters = Vec::new();
    for _ in 0..PROCESSES {
        let mut waiter = Dialogue::new(ChildProcess::start(&["waiter", &url])?)?;
        waiter.receive()?;
        waiters.push(waiter);
    }
    for waiter in &mut waiters {
        waiter.send("go")?;
    }
    while bench.keeper.inspect(NAME).await?.is_none_or(|view| view.waiters.len() < PROCESSES) {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    // The first waiters have settled by now; the others soon will have.
    tokio::time::sleep(bench.pace.wait / 10).await;
    let (before, asleep) = (cpu_of_all(&mut waiters)?, Instant::now());
    tokio::time::sleep(bench.pace.wait).await;
    let cpu_percent = measure::percent(cpu_of_all(&mut waiters)?.saturating_sub(before), asleep.elapsed());
    let released = Instant::now();
    held.release().await?;
    let drained = tokio::task::spawn_blocking(move || {
        for waiter in &mut waiters {
            let told = waiter.receive()?;
            if told != "done" {
                return Err(format!("a waiter said {told:?}").into());
            }
        }
        Ok::<_, Failure>(released.elapsed())
    });
    Ok(ProcessDrain { cpu_percent, drained: drained.await?? })
}

/// 64 processes, one name that is held.
pub(crate) async fn w4p(bench: &Bench) -> Result<Vec<Row>, Failure> {
    if !bench.keeper.capability().between_processes {
        return Ok(Vec::new());
    }
    let mut drains = Vec::new();
    for _ in 0..bench.pace.waits {
        drains.push(drain(bench).await?);
    }
    let row = |what, figure: fn(&ProcessDrain) -> f64| {
        Row::median(Workload::W4p, "lockkeeper", what, Median::of(drains.iter().map(figure)))
    };
    let rows = [
        row("client CPU while 64 processes wait, % of a core", |drain| drain.cpu_percent),
        row("drain of 64 processes, ms", |drain| drain.drained.as_secs_f64() * 1e3),
    ];
    let goals: &[_] = if bench.keeper.capability().store == "sqlite" { &SQLITE_GOALS } else { &[] };
    Ok(rows.map(|row| row.held_to("lockkeeper", goals)).into())
}

/// The child's part: waits once told to go, and tells its CPU time whenever it is asked.
pub(crate) fn waiter(url: &str) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let keeper = lockkeeper::connect(url).await?;
        println!("ready");
        std::io::stdin().read_line(&mut String::new())?;
        std::thread::spawn(|| {
            for _ in std::io::stdin().lines().map_while(Result::ok) {
                println!("{}", measure::cpu().as_nanos());
            }
        });
        keeper.mutex(NAME).lock().await?.release().await?;
        println!("done");
        keeper.close().await;
        Ok(())
    })
}
