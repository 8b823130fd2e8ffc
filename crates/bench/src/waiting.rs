//! W4: many wait for one lock. Measures the price of that while nothing happens, and how fast they get through once it
//! is free.

use crate::{
    Failure,
    bench::Bench,
    drain::Drain,
    judge::{Limit, Median},
    quorum, redis,
    rounds::Contestant,
    sql,
    table::Row,
    workload::Workload,
};

const WAITERS: usize = 64;

/// The name of the waiters' requests in the table.
const REQUESTS: &str = "requests/s while 64 wait";

/// The goals of waiting and draining between the processes of a host.
const SQLITE_GOALS: [(&str, Limit); 2] = [
    ("client CPU while 64 wait, % of a core", Limit::Below(1.0)),
    ("drain of 64 waiters, ms", Limit::AtMost(50.0)),
];

pub(crate) async fn w4(bench: &Bench) -> Result<Vec<Row>, Failure> {
    let usual = match &bench.sql {
        Some(sql) => &sql.relayed,
        None => bench.usual(),
    };
    let contestants: Vec<&dyn Contestant> =
        [usual, bench.fifo()].into_iter().chain(bench.peers(Workload::W4)).collect();
    let mut results = vec![Vec::new(); contestants.len()];
    for _ in 0..bench.pace.waits {
        for (contestant, results) in contestants.iter().zip(&mut results) {
            results.push(contestant.drain(WAITERS, bench.pace.wait).await?);
        }
    }
    let mut rows = Vec::new();
    for (index, (contestant, drains)) in contestants.iter().zip(&results).enumerate() {
        let mut row = |what, figure: fn(&Drain) -> Option<f64>| {
            let figures: Option<Vec<f64>> = drains.iter().map(figure).collect();
            rows.extend(
                figures
                    .map(|figures| Row::median(Workload::W4, contestant.name(), what, Median::of(figures))),
            );
        };
        row("client CPU while 64 wait, % of a core", |drain| Some(drain.cpu_percent));
        let at_the_server = index == 0 && bench.sql.is_some();
        let what = match bench.quorum {
            Some(_) => quorum::WAITING.0,
            None if at_the_server => sql::WAITING,
            None => REQUESTS,
        };
        row(what, |drain| drain.requests);
        row("drain of 64 waiters, ms", |drain| Some(drain.drained.as_secs_f64() * 1e3));
        row("client CPU of the drain, ms", |drain| Some(drain.cpu.as_secs_f64() * 1e3));
    }
    if let Some(sql) = &bench.sql {
        rows.extend(sql::drain_of_another(&bench.keeper, bench.pace, &sql.server).await?);
    }
    let sql_goals = bench.sql.as_ref().map(|sql| sql.server.waiting_goals());
    let goals: &[_] = match (bench.keeper.capability().store, &sql_goals) {
        (_, Some(goals)) => goals,
        ("sqlite", _) => &SQLITE_GOALS,
        ("redis", _) => &redis::WAITING_GOALS,
        ("quorum", _) => &[quorum::WAITING],
        _ => &[],
    };
    rows = rows.into_iter().map(|row| row.held_to("lockkeeper", goals)).collect();
    Ok(rows)
}
