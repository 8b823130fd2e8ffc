//! W3p on databases: sixteen processes, one name. Guards are dropped, as most programs do. Beside it sixteen processes with a
//! lock table, and on PostgreSQL a bare token.

use std::time::Duration;

use super::{
    Kind, Server,
    peers::{POLL, TABLE},
    session::Session,
};
use crate::{
    Failure,
    judge::{self, Limit, Median, Verdict},
    processes::{ChildProcess, PROCESSES, ProcessRound, now, race, wait_for_go},
    table::Row,
    workload::{Pace, Workload},
};

const TOKEN: &str = "bare token";

/// Hand-offs as a share of the bare token's, and as a multiple of the lock table's.
const OF_TOKEN: Limit = Limit::AtLeast(0.6);
const OF_TABLE: Limit = Limit::AtLeast(2.0);
/// On a database that tells nobody anything.
const POLLED: Limit = Limit::AtMost(10_000.0);
const FAIRNESS: Limit = Limit::AtLeast(0.95);
/// Hand-offs after a minute as a share of those in the first seconds. They should be as many; rates of one and the same
/// program differ by a few per cent from second to second.
const LATER: Limit = Limit::AtLeast(0.9);

/// For how long tables may grow, and how long the windows at both ends are, in lengths of a round.
const LONG: u32 = 35;
const WINDOW: u32 = 5;

/// The rounds to compare.
struct Comparison {
    ours: ProcessRound,
    table: ProcessRound,
    token: Option<ProcessRound>,
}

fn all(start: impl Fn(usize) -> Result<ChildProcess, Failure>) -> Result<Vec<ChildProcess>, Failure> {
    (0..PROCESSES).map(start).collect()
}

fn keepers(url: &str, length: Duration) -> Result<Vec<ChildProcess>, Failure> {
    let millis = length.as_millis().to_string();
    all(|_| ChildProcess::start(&["sql-keeper", url, &millis]))
}

impl Comparison {
    fn new(url: &str, kind: Kind, length: Duration) -> Result<Self, Failure> {
        let millis = length.as_millis().to_string();
        let ours = race(keepers(url, length)?, length)?;
        let table = race(all(|_| ChildProcess::start(&["sql-table", url, &millis]))?, length)?;
        let token = match kind {
            Kind::MariaDb => None,
            Kind::Postgres => {
                let start = |own: usize| ChildProcess::start(&["sql-token", url, &own.to_string(), &millis]);
                Some(race(all(start)?, length)?)
            }
        };
        Ok(Self { ours, table, token })
    }
}

/// Hand-offs a second.
fn passed(round: &ProcessRound, length: Duration) -> f64 {
    round.hand_offs.len() as f64 / length.as_secs_f64()
}

/// Sixteen processes, one name.
pub(crate) async fn w3p(server: &Server, pace: &Pace) -> Result<Vec<Row>, Failure> {
    let (url, kind, pace) = (server.url(), server.kind(), *pace);
    let (rounds, later) = tokio::task::spawn_blocking(move || {
        let rounds = (0..pace.rounds).map(|_| Comparison::new(&url, kind, pace.length));
        let rounds = rounds.collect::<Result<Vec<_>, _>>()?;
        Ok::<_, Failure>((rounds, later(&url, pace.length)?))
    })
    .await??;
    Ok(rows(&rounds, later, kind, &pace))
}

/// Hand-offs at the end of a long run as a share of those at its beginning.
fn later(url: &str, unit: Duration) -> Result<f64, Failure> {
    let (length, window) = (unit * LONG, unit * WINDOW);
    let round = race(keepers(url, length)?, length)?;
    let (first, last) = (round.within(Duration::ZERO, window), round.within(length - window, length));
    Ok(last as f64 / first as f64)
}

fn rows(rounds: &[Comparison], later: f64, kind: Kind, pace: &Pace) -> Vec<Row> {
    let judged = |row: Row, limit: Limit, verdict: Verdict| {
        row.goal(limit, if pace.is_enough() { verdict } else { Verdict::TooShort })
    };
    let median = |figure: &dyn Fn(&Comparison) -> f64| Median::of(rounds.iter().map(figure));
    let row = |who, what: &str, median: Median| Row::median(Workload::W3p, who, what, median);
    let rate = |round: &ProcessRound| passed(round, pace.length);
    let micros = |round: &ProcessRound, quantile| round.hand_offs.value_at_quantile(quantile) as f64 / 1e3;
    let mut rows = Vec::new();
    let mut of = |who, get: &dyn Fn(&Comparison) -> Option<&ProcessRound>| {
        if rounds.iter().any(|round| get(round).is_none()) {
            return;
        }
        let figure = |figure: &dyn Fn(&ProcessRound) -> f64| {
            median(&|round: &Comparison| get(round).map_or(f64::NAN, figure))
        };
        let fairness = |round: &Comparison| get(round).map_or(f64::NAN, |round| judge::jain(&round.shares));
        let fairness = rounds.iter().map(fairness).fold(1.0, f64::min);
        rows.extend([
            row(who, "passed to another process/s", figure(&rate)),
            row(who, "hand-off p50, µs", figure(&|round| micros(round, 0.5))),
            row(who, "hand-off p99, µs", figure(&|round| micros(round, 0.99))),
            Row::new(Workload::W3p, who, "Jain's index, lowest of all rounds", fairness),
        ]);
    };
    of("lockkeeper", &|round| Some(&round.ours));
    of(TABLE, &|round| Some(&round.table));
    of(TOKEN, &|round| round.token.as_ref());
    let mut goals = vec![("Jain's index, lowest of all rounds", FAIRNESS)];
    goals.extend((kind == Kind::MariaDb).then_some(("hand-off p50, µs", POLLED)));
    if pace.is_enough() {
        rows = rows.into_iter().map(|row| row.held_to("lockkeeper", &goals)).collect();
    }
    let of_table = median(&|round| rate(&round.ours) / rate(&round.table));
    let of_token = median(&|round| rate(&round.ours) / round.token.as_ref().map_or(f64::NAN, rate));
    let what = "passed to another process";
    let table = row("lockkeeper", &format!("{what} / {TABLE}"), of_table);
    let later =
        Row::new(Workload::W3p, "lockkeeper", "hand-offs after a minute / in the first seconds", later);
    match kind {
        Kind::MariaDb => rows.extend([table, later]),
        Kind::Postgres => rows.extend([
            judged(table, OF_TABLE, OF_TABLE.judge_rate(&of_table)),
            judged(
                row("lockkeeper", &format!("{what} / {TOKEN}"), of_token),
                OF_TOKEN,
                OF_TOKEN.judge_rate(&of_token),
            ),
            judged(later.clone(), LATER, LATER.judge(later.value())),
        ]),
    }
    rows
}

/// A process with a keeper, which drops its guards.
pub(crate) async fn keeper(url: &str, length: Duration) -> Result<Vec<(u64, u64)>, Failure> {
    let keeper = lockkeeper::connect(url).await?;
    wait_once(&keeper).await?;
    let mutex = keeper.mutex("bench/w3p");
    let started = wait_for_go()?;
    let mut times = Vec::new();
    while let Some(left) = length.checked_sub(started.elapsed()) {
        let Ok(guard) = mutex.lock_within(left).await else { break };
        let granted = now();
        times.push((granted, now()));
        drop(guard);
    }
    keeper.close().await;
    Ok(times)
}

/// Waits for a lock that the keeper holds itself, so that the connection for waiters is open and proved before the round
/// begins: the others have all of theirs by then.
async fn wait_once(keeper: &lockkeeper::Keeper) -> Result<(), Failure> {
    let mutex = keeper.mutex(&format!("bench/w3p/{}", std::process::id())).fifo();
    let held = mutex.lock().await?;
    if mutex.lock_within(Duration::from_secs(1)).await.is_ok() {
        return Err("two guards of one lock".into());
    }
    Ok(held.release().await?)
}

/// A process with the lock table.
pub(crate) async fn table(url: &str, length: Duration) -> Result<Vec<(u64, u64)>, Failure> {
    let mut session = Session::connect(url).await?;
    let name = "w3p";
    let started = wait_for_go()?;
    let mut times = Vec::new();
    while started.elapsed() < length {
        if !session.insert(name).await? {
            tokio::time::sleep(POLL).await;
            continue;
        }
        let granted = now();
        times.push((granted, now()));
        session.delete(name).await?;
    }
    Ok(times)
}
