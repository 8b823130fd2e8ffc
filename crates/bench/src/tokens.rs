//! W3p on SQLite: sixteen processes, one name; beside it a bare token that two processes pass to each other with as many
//! commits, over the same kind of socket and file.

use std::{os::unix::net::UnixDatagram, path::Path, time::Duration};

use rusqlite::{Connection, TransactionBehavior};

use crate::{
    Failure,
    bench::Bench,
    files,
    judge::{self, Limit, Median, Verdict},
    processes::{ChildProcess, ProcessRound, keepers, now, race, wait_for_go},
    table::Row,
    workload::Workload,
};

/// Sixteen processes, one name.
pub(crate) async fn w3p(bench: &Bench) -> Result<Vec<Row>, Failure> {
    let Some(folder) = bench.folder() else { return Ok(Vec::new()) };
    let (url, folder, pace) = (bench.keeper.url().to_owned(), folder.to_owned(), bench.pace);
    let (ours, bare) = tokio::task::spawn_blocking(move || {
        let (mut ours, mut bare) = (Vec::new(), Vec::new());
        for _ in 0..pace.rounds {
            ours.push(keepers(&url, pace.length)?);
            bare.push(tokens(&folder, pace.length)?);
        }
        Ok::<_, Failure>((ours, bare))
    })
    .await??;
    let judged = |row: Row, limit: Limit, verdict: Verdict| {
        row.goal(limit, if pace.is_enough() { verdict } else { Verdict::TooShort })
    };
    let row = |who, what: &str, figures: Vec<f64>| Row::median(Workload::W3p, who, what, Median::of(figures));
    let micros = |rounds: &[ProcessRound], quantile| {
        rounds
            .iter()
            .map(|round| round.hand_offs.value_at_quantile(quantile) as f64 / 1e3)
            .collect::<Vec<_>>()
    };
    let rates = |rounds: &[ProcessRound]| rounds.iter().map(|round| round.rate).collect::<Vec<_>>();
    let ratio = Median::of(ours.iter().zip(&bare).map(|(ours, bare)| ours.rate / bare.rate));
    let (p50, p99) = (Median::of(micros(&ours, 0.5)), Median::of(micros(&ours, 0.99)));
    let fairness = ours.iter().map(|round| judge::jain(&round.shares)).fold(1.0, f64::min);
    let half = Limit::AtLeast(0.5);
    let (soon, at_last, fair) = (Limit::AtMost(1000.0), Limit::AtMost(20_000.0), Limit::AtLeast(0.95));
    Ok(vec![
        row("lockkeeper", "lock+release/s", rates(&ours)),
        row("bare token", "passes/s", rates(&bare)),
        judged(
            Row::median(Workload::W3p, "lockkeeper", "rate / bare token", ratio),
            half,
            half.judge_rate(&ratio),
        ),
        judged(row("lockkeeper", "hand-off p50, µs", micros(&ours, 0.5)), soon, soon.judge(p50.value)),
        judged(row("lockkeeper", "hand-off p99, µs", micros(&ours, 0.99)), at_last, at_last.judge(p99.value)),
        row("bare token", "hand-off p50, µs", micros(&bare, 0.5)),
        row("bare token", "hand-off p99, µs", micros(&bare, 0.99)),
        judged(
            Row::new(Workload::W3p, "lockkeeper", "Jain's index, lowest of all rounds", fairness),
            fair,
            fair.judge(fairness),
        ),
    ])
}

fn tokens(folder: &Path, length: Duration) -> Result<ProcessRound, Failure> {
    // SQLite does not wait where two make the same file at once; and while it is open here, neither
    // is the last to close it.
    let _open = token_file(folder)?;
    let (millis, folder) = (length.as_millis().to_string(), folder.display().to_string());
    let children: Result<Vec<_>, _> =
        ["a", "b"].map(|own| ChildProcess::start(&["token", &folder, own, &millis])).into_iter().collect();
    race(children?, length)
}

fn token_file(folder: &Path) -> Result<Connection, Failure> {
    let connection = files::open(&folder.join("token.db"))?;
    connection.execute_batch("CREATE TABLE IF NOT EXISTS turn (n INTEGER PRIMARY KEY)")?;
    Ok(connection)
}

/// Two commits, then the token goes to the other: the least price of a claim and a release.
pub(crate) fn token(folder: &Path, own: &str, length: Duration) -> Result<Vec<(u64, u64)>, Failure> {
    let (mine, other) = (folder.join(own), folder.join(if own == "a" { "b" } else { "a" }));
    std::fs::remove_file(&mine).ok();
    let socket = UnixDatagram::bind(&mine)?;
    let mut connection = token_file(folder)?;
    let started = wait_for_go()?;
    if own == "a" {
        socket.send_to(b"token", &mine)?;
    }
    let mut times = Vec::new();
    let mut buffer = [0; 16];
    while let Some(left) = length.checked_sub(started.elapsed()).filter(|left| !left.is_zero()) {
        socket.set_read_timeout(Some(left))?;
        if socket.recv(&mut buffer).is_err() {
            break;
        }
        let granted = now();
        times.push((granted, now()));
        for _ in 0..2 {
            let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            transaction
                .prepare_cached("INSERT INTO turn SELECT ifnull(max(n), 0) + 1 FROM turn")?
                .execute([])?;
            transaction.prepare_cached("DELETE FROM turn WHERE n < (SELECT max(n) FROM turn)")?.execute([])?;
            transaction.commit()?;
        }
        if socket.send_to(b"token", &other).is_err() {
            break;
        }
    }
    Ok(times)
}
