//! W3p on a quorum: sixteen processes, one name; beside it as many processes with RedLock on the same servers.

use std::time::Duration;

use super::{Members, peers::RedlockPeer};
use crate::{
    Failure,
    judge::{self, Limit, Median, Verdict},
    peer::{Lock as _, Peer as _},
    processes::{ChildProcess, PROCESSES, ProcessRound, keepers, now, race, wait_for_go},
    table::Row,
    workload::{Pace, Workload},
};

/// How often the lock passes from one process to another, as a multiple of RedLock's.
const HAND_OFFS: Limit = Limit::AtLeast(10.0);
const FAIRNESS: Limit = Limit::AtLeast(0.95);
/// The acquisitions of the process that has the fewest.
const FEWEST: Limit = Limit::AtLeast(1.0);

/// Both, in turn.
struct Comparison {
    ours: ProcessRound,
    theirs: ProcessRound,
}

impl Comparison {
    fn new(members: &Members, round: usize, length: Duration) -> Result<Self, Failure> {
        let ours = keepers(&members.url(), length)?;
        // A process that gives up leaves something behind, so each round has a name of its own.
        let (urls, name) = (members.urls().join(","), format!("w3p/{round}"));
        let millis = length.as_millis().to_string();
        let start = |_| ChildProcess::start(&["redlock", &urls, &name, &millis]);
        let theirs = race((0..PROCESSES).map(start).collect::<Result<_, _>>()?, length)?;
        Ok(Self { ours, theirs })
    }
}

fn per_second(round: &ProcessRound, length: Duration) -> f64 {
    round.hand_offs.len() as f64 / length.as_secs_f64()
}

/// Sixteen processes, one name.
pub(crate) async fn w3p(members: &Members, pace: &Pace) -> Result<Vec<Row>, Failure> {
    let (members, pace) = (members.clone(), *pace);
    let rounds = tokio::task::spawn_blocking(move || {
        let rounds = (0..pace.rounds).map(|round| Comparison::new(&members, round, pace.length));
        rounds.collect::<Result<Vec<_>, _>>()
    })
    .await??;
    let row = |who, what, figure: &dyn Fn(&Comparison) -> f64| {
        Row::median(Workload::W3p, who, what, Median::of(rounds.iter().map(figure)))
    };
    let judged = |row: Row, limit: Limit, verdict: Verdict| {
        row.goal(limit, if pace.is_enough() { verdict } else { Verdict::TooShort })
    };
    let micros = |round: &ProcessRound, quantile| round.hand_offs.value_at_quantile(quantile) as f64 / 1e3;
    let passed = |round: &ProcessRound| per_second(round, pace.length);
    // RedLock may pass it on to nobody in a whole round.
    let ratio = rounds
        .iter()
        .map(|round| passed(&round.ours) / passed(&round.theirs).max(1.0 / pace.length.as_secs_f64()));
    let ratio = Median::of(ratio);
    let lowest = |side: fn(&Comparison) -> &ProcessRound| {
        rounds.iter().map(|round| judge::jain(&side(round).shares)).fold(1.0, f64::min)
    };
    let fairness = lowest(|round| &round.ours);
    let fewest = rounds.iter().flat_map(|round| &round.ours.shares).min().copied().unwrap_or_default() as f64;
    let single = |who, what, value| Row::new(Workload::W3p, who, what, value);
    Ok(vec![
        row("lockkeeper", "lock+release/s", &|round| round.ours.rate),
        row("rslock", "lock+release/s", &|round| round.theirs.rate),
        row("lockkeeper", "passed to another process/s", &|round| passed(&round.ours)),
        row("rslock", "passed to another process/s", &|round| passed(&round.theirs)),
        judged(
            Row::median(Workload::W3p, "lockkeeper", "passed to another process / rslock", ratio),
            HAND_OFFS,
            HAND_OFFS.judge_rate(&ratio),
        ),
        row("lockkeeper", "hand-off p50, µs", &|round| micros(&round.ours, 0.5)),
        row("lockkeeper", "hand-off p99, µs", &|round| micros(&round.ours, 0.99)),
        row("rslock", "hand-off p50, µs", &|round| micros(&round.theirs, 0.5)),
        judged(
            single("lockkeeper", "acquisitions of the last process, lowest of all rounds", fewest),
            FEWEST,
            FEWEST.judge(fewest),
        ),
        judged(
            single("lockkeeper", "Jain's index, lowest of all rounds", fairness),
            FAIRNESS,
            FAIRNESS.judge(fairness),
        ),
        single("rslock", "Jain's index, lowest of all rounds", lowest(|round| &round.theirs)),
    ])
}

/// A process with RedLock: acquires and releases until `length` is over.
pub(crate) async fn redlock(urls: &str, name: &str, length: Duration) -> Result<Vec<(u64, u64)>, Failure> {
    let urls: Vec<&str> = urls.split(',').collect();
    let lock = RedlockPeer::connect(&urls)?.lock(name);
    let started = wait_for_go()?;
    let mut times = Vec::new();
    while let Some(left) = length.checked_sub(started.elapsed()) {
        let Ok(held) = tokio::time::timeout(left, lock.acquire()).await else { break };
        let held = held?;
        let granted = now();
        times.push((granted, now()));
        held.release().await;
    }
    Ok(times)
}
