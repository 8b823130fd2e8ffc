//! W1, W2, W3: how many acquisitions in a second, how long each takes, what it costs.

use crate::{
    Bench, Failure,
    judge::{Limit, Median},
    peer::{KeeperPeer, TokioPeer},
    rounds::{Contestant, Load, Round, fairness, interleaved},
    table::Row,
};

/// At least this share of the rate of tokio's mutex, when a lock is handed on inside a process.
const OF_TOKIO: Limit = Limit::AtLeast(0.25);

/// One task, one name: nothing but an acquisition and its release.
pub(crate) async fn w1(bench: &Bench) -> Result<Vec<Row>, Failure> {
    uncontended(bench, "W1", 1).await
}

/// 64 tasks with a name each: requests travel together.
pub(crate) async fn w2(bench: &Bench) -> Result<Vec<Row>, Failure> {
    uncontended(bench, "W2", 64).await
}

async fn uncontended(bench: &Bench, workload: &'static str, tasks: usize) -> Result<Vec<Row>, Failure> {
    let load = Load::new(workload, tasks, tasks, bench.length);
    let (ours, tokio) = (KeeperPeer::usual(&bench.keeper), TokioPeer::default());
    let mut contestants: Vec<&dyn Contestant> = vec![&ours];
    if bench.is_local() {
        contestants.push(&tokio);
    }
    let results = interleaved(&contestants, &load, bench.rounds).await?;
    let each = contestants.iter().zip(&results);
    Ok(each.flat_map(|(contestant, rounds)| speed(workload, contestant.name(), rounds)).collect())
}

/// 16 tasks, one name.
///
/// The critical section is a counter and the number of the last task, read and written; no await.
/// That is enough for the tasks to contend: two of them run at once, whoever finds the lock taken
/// stands in line, and from then on the lock always has a line. The share of acquisitions that
/// came right after another task's is part of the result; it shows whether that was so.
pub(crate) async fn w3(bench: &Bench) -> Result<Vec<Row>, Failure> {
    let load = Load::new("W3", 16, 1, bench.length);
    let (usual, fifo) = (KeeperPeer::usual(&bench.keeper), KeeperPeer::fifo(&bench.keeper));
    let tokio = TokioPeer::default();
    let mut contestants: Vec<&dyn Contestant> = vec![&usual, &fifo];
    if bench.is_local() {
        contestants.push(&tokio);
    }
    let results = interleaved(&contestants, &load, bench.rounds).await?;
    let mut rows = Vec::new();
    let limits = [Some(Limit::AtLeast(0.95)), Some(Limit::AtLeast(0.99)), None];
    for ((contestant, rounds), limit) in contestants.iter().zip(&results).zip(limits) {
        let name = contestant.name();
        rows.extend(speed("W3", name, rounds));
        let passed = median(rounds, |round| 100.0 * round.passed as f64 / round.acquired());
        rows.push(Row::median("W3", name, "passed to another task, %", passed));
        // Shares are counts; the most unfair round is the one that is judged.
        let index = rounds.iter().map(fairness).fold(1.0, f64::min);
        let row = Row::new("W3", name, "Jain index, lowest of all rounds", index);
        rows.push(limit.map_or(row.clone(), |limit| row.counted(limit)));
    }
    if let [usual, fifo, tokio] = results.as_slice() {
        let ratio = ratio(usual, tokio);
        let verdict = OF_TOKIO.judge_rate(&ratio, bench.rounds, bench.length);
        rows.push(Row::median("W3", "lockkeeper", "rate / tokio Mutex", ratio).judged(OF_TOKIO, verdict));
        rows.push(Row::median("W3", "lockkeeper fifo", "rate / tokio Mutex", self::ratio(fifo, tokio)));
    }
    Ok(rows)
}

/// Rate, times and cost of one contestant.
fn speed(workload: &'static str, who: &'static str, rounds: &[Round]) -> Vec<Row> {
    vec![
        Row::median(workload, who, "acquire+release/s", median(rounds, Round::rate)),
        Row::median(workload, who, "p50, µs", median(rounds, |round| round.micros_at(0.5))),
        Row::median(workload, who, "p99, µs", median(rounds, |round| round.micros_at(0.99))),
        Row::median(workload, who, "client CPU, µs each", median(rounds, Round::cpu_micros)),
    ]
}

fn median(rounds: &[Round], figure: impl Fn(&Round) -> f64) -> Median {
    Median::of(rounds.iter().map(figure))
}

/// The ratio of two rates, round by round: both of a pair met the same machine.
fn ratio(ours: &[Round], theirs: &[Round]) -> Median {
    Median::of(ours.iter().zip(theirs).map(|(ours, theirs)| ours.rate() / theirs.rate()))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use hdrhistogram::Histogram;

    use super::*;

    fn round(acquired: u64) -> Round {
        Round {
            elapsed: Duration::from_secs(2),
            cpu: Duration::from_millis(10),
            shares: vec![acquired / 2, acquired / 2],
            passed: acquired,
            times: Histogram::new(3).unwrap(),
        }
    }

    #[test]
    fn ratios_are_taken_round_by_round() {
        let ours = [round(100), round(200), round(1000)];
        let theirs = [round(200), round(400), round(2000)];
        assert_eq!(ratio(&ours, &theirs), Median { value: 0.5, low: 0.5, high: 0.5 });
    }

    #[test]
    fn figures_of_a_round() {
        let round = round(1000);
        assert_eq!(round.rate(), 500.0);
        assert_eq!(round.cpu_micros(), 10.0);
        assert_eq!(fairness(&round), 1.0);
        assert_eq!(speed("W1", "x", &[round]).len(), 4);
    }
}
