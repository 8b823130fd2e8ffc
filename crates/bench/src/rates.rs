//! W1, W2, W3: how many acquisitions in a second, and the time and price of each.

use crate::{
    Failure,
    bench::Bench,
    judge::{Limit, Median, Verdict},
    quorum, redis,
    rounds::{Contestant, Load, Raced, Round, fairness, interleaved},
    table::Row,
    workload::{Pace, Workload},
};

/// One task, one name: nothing but an acquisition and its release.
pub(crate) async fn w1(bench: &Bench) -> Result<Vec<Row>, Failure> {
    uncontended(bench, Workload::W1, vec![bench.usual()], 1).await
}

/// 64 tasks with a name each: requests travel together. Guards are dropped, as most programs do; beside it, each
/// release is waited for.
pub(crate) async fn w2(bench: &Bench) -> Result<Vec<Row>, Failure> {
    uncontended(bench, Workload::W2, vec![bench.dropped(), bench.usual()], 64).await
}

async fn uncontended(
    bench: &Bench,
    workload: Workload,
    ours: Vec<&dyn Contestant>,
    tasks: usize,
) -> Result<Vec<Row>, Failure> {
    let load = Load::new(workload, tasks, tasks, bench.pace.length);
    let count = ours.len();
    let results = race(bench, ours, &load).await?;
    let mut rows: Vec<Row> = results.iter().flat_map(|result| speed(workload, result)).collect();
    rows.extend(ratios(workload, &results, count, &bench.pace));
    let rows = quorum::judged(workload, rows, &results, &bench.pace);
    Ok(redis::judged(workload, rows, &results, &bench.pace))
}

/// 16 tasks, one name.
///
/// The critical section is a counter and the number of the last task, read and written; no await.
/// That is enough for the tasks to contend: two of them run at once, a task that finds the lock taken
/// queues up, and from then on the lock always has a queue. The share of acquisitions that came right
/// after another task's is part of the result; it shows whether that was so.
pub(crate) async fn w3(bench: &Bench) -> Result<Vec<Row>, Failure> {
    let load = Load::new(Workload::W3, 16, 1, bench.pace.length);
    let results = race(bench, vec![bench.usual(), bench.fifo()], &load).await?;
    let fairness_goals = [Limit::AtLeast(0.95), Limit::AtLeast(0.99)];
    let mut rows = Vec::new();
    for (index, result) in results.iter().enumerate() {
        let (contestant, rounds) = result;
        rows.extend(speed(Workload::W3, result));
        let passed = median(rounds, |round| 100.0 * round.passed as f64 / round.acquired());
        rows.push(Row::median(Workload::W3, contestant.name(), "passed to another task, %", passed));
        // Shares are counts; the most unfair round is the one that is judged.
        let lowest = rounds.iter().map(fairness).fold(1.0, f64::min);
        let row = Row::new(Workload::W3, contestant.name(), "Jain's index, lowest of all rounds", lowest);
        rows.push(match fairness_goals.get(index).copied() {
            // In a short round one stalled worker thread is most of the difference.
            Some(limit) if !bench.pace.is_enough() => row.goal(limit, Verdict::TooShort),
            Some(limit) => row.goal(limit, limit.judge(lowest)),
            None => row,
        });
    }
    rows.extend(ratios(Workload::W3, &results, 2, &bench.pace));
    Ok(rows)
}

/// Rounds of `ours` and of all peers of the store, in turn.
async fn race<'a>(
    bench: &'a Bench,
    ours: Vec<&'a dyn Contestant>,
    load: &Load,
) -> Result<Vec<Raced<'a>>, Failure> {
    let contestants: Vec<_> = ours.into_iter().chain(bench.peers(load.workload)).collect();
    let results = interleaved(&contestants, load, bench.pace.rounds).await?;
    Ok(contestants.into_iter().zip(results).collect())
}

/// Rate, times and cost of one contestant.
fn speed(workload: Workload, (contestant, rounds): &Raced<'_>) -> Vec<Row> {
    let row = |what, median| Row::median(workload, contestant.name(), what, median);
    let mut rows = vec![
        row("lock+release/s", median(rounds, Round::rate)),
        row("p50, µs", median(rounds, |round| round.micros_at(0.5))),
        row("p99, µs", median(rounds, |round| round.micros_at(0.99))),
        row("client CPU, µs each", median(rounds, Round::cpu_micros)),
    ];
    let requests: Option<Vec<f64>> = rounds.iter().map(Round::requests_each).collect();
    rows.extend(requests.map(|requests| row("requests each", Median::of(requests))));
    let commands: Option<Vec<f64>> = rounds.iter().map(Round::commands_each).collect();
    rows.extend(commands.map(|commands| row("commands each", Median::of(commands))));
    let busy: Option<Vec<f64>> = rounds.iter().map(Round::server_micros).collect();
    rows.extend(busy.map(|busy| row("server, µs each", Median::of(busy))));
    rows
}

/// The rates of the first `ours`, divided by those of each peer. The first is Lockkeeper as it
/// comes, and the one that most goals are for; in W3 the second is `.fifo()`.
fn ratios(workload: Workload, results: &[Raced<'_>], ours: usize, pace: &Pace) -> Vec<Row> {
    let (ours, peers) = results.split_at(ours);
    let mut rows = Vec::new();
    for (peer, theirs) in peers {
        for (index, (contestant, rounds)) in ours.iter().enumerate() {
            let ratio = ratio(rounds, theirs);
            let what = format!("rate / {}", peer.name());
            let row = Row::median(workload, contestant.name(), what, ratio);
            let limit = match index {
                0 => peer.goal(workload),
                _ if workload == Workload::W3 => peer.fifo_goal(workload),
                _ => None,
            };
            rows.push(match limit {
                Some(limit) if !pace.is_enough() => row.goal(limit, Verdict::TooShort),
                Some(limit) => row.goal(limit, limit.judge_rate(&ratio)),
                None => row,
            });
        }
    }
    rows
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
    use crate::peers::TokioPeer;

    fn round(acquired: u64) -> Round {
        Round {
            elapsed: Duration::from_secs(2),
            cpu: Duration::from_millis(10),
            shares: vec![acquired / 2, acquired / 2],
            passed: acquired,
            requests: Some(2 * acquired),
            served: None,
            times: Histogram::new(3).expect("three digits"),
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
        assert_eq!(round.requests_each(), Some(2.0));
        assert_eq!(fairness(&round), 1.0);
    }

    #[test]
    fn only_the_first_is_judged_and_only_at_full_pace() {
        let tokio = TokioPeer::default();
        let verdicts = |ours: u64, pace: &Pace| {
            let raced = |acquired| (&tokio as &dyn Contestant, vec![round(acquired); 15]);
            let rows = ratios(Workload::W3, &[raced(ours), raced(1), raced(1000)], 2, pace);
            rows.iter().map(Row::verdict).collect::<Vec<_>>()
        };
        assert_eq!(verdicts(260, &Pace::FULL), [Some(Verdict::Met), None]);
        assert_eq!(verdicts(240, &Pace::FULL), [Some(Verdict::Missed), None]);
        assert_eq!(verdicts(240, &Pace::QUICK), [Some(Verdict::TooShort), None]);
    }
}
