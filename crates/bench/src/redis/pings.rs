//! W3p on Redis: sixteen processes, one name; beside it as many processes that wake each other in a ring, with a script
//! that does nothing but publish.

use std::{
    pin::Pin,
    time::{Duration, Instant},
};

use futures_core::Stream as _;
use redis::{Client, Script};

use super::Server;
use crate::{
    Failure,
    bench::{Pace, Workload},
    judge::{self, Limit, Median, Verdict},
    processes::{Hand, PROCESSES, Passed, keepers, now, race, wait_for_go},
    table::Row,
};

/// A claim and a release each, and now and then one that asks again.
const COMMANDS: Limit = Limit::AtMost(2.05);
/// A release is this much slower at most than the message that it sends.
const HAND_OFF: Limit = Limit::AtMost(1.2);
const FAIRNESS: Limit = Limit::AtLeast(0.99);

fn pings(url: &str, length: Duration) -> Result<Passed, Failure> {
    let millis = length.as_millis().to_string();
    let start = |own: usize| {
        let (own, next) = (own.to_string(), ((own + 1) % PROCESSES).to_string());
        Hand::start(&["ping", url, &own, &next, &millis])
    };
    race((0..PROCESSES).map(start).collect::<Result<_, _>>()?, length)
}

/// Sixteen processes, one name.
pub(crate) async fn w3p(server: &Server, pace: &Pace) -> Result<Vec<Row>, Failure> {
    let (server, pace) = (server.clone(), *pace);
    let rounds = tokio::task::spawn_blocking(move || {
        let mut rounds = Vec::new();
        for _ in 0..pace.rounds {
            let before = server.served()?.commands;
            let ours = keepers(server.url(), pace.length)?;
            let commands = server.served()?.commands - before;
            rounds.push((ours, commands, pings(server.url(), pace.length)?));
        }
        Ok::<_, Failure>(rounds)
    })
    .await??;
    let micros = |passed: &Passed, quantile| passed.hand_offs.value_at_quantile(quantile) as f64 / 1e3;
    let median = |figure: &dyn Fn(&(Passed, u64, Passed)) -> f64| Median::of(rounds.iter().map(figure));
    let row = |who, what, figure: &dyn Fn(&(Passed, u64, Passed)) -> f64| {
        Row::median(Workload::W3p, who, what, median(figure))
    };
    let judged = |row: Row, limit: Limit, verdict: Verdict| {
        row.goal(limit, if pace.is_enough() { verdict } else { Verdict::TooShort })
    };
    let each = |(ours, commands, _): &(Passed, u64, Passed)| {
        *commands as f64 / ours.shares.iter().sum::<u64>() as f64
    };
    let ratio = |(ours, _, bare): &(Passed, u64, Passed)| micros(ours, 0.5) / micros(bare, 0.5);
    let fairness = rounds.iter().map(|(ours, ..)| judge::jain(&ours.shares)).fold(1.0, f64::min);
    Ok(vec![
        row("lockkeeper", "lock+release/s", &|(ours, ..)| ours.rate),
        judged(row("lockkeeper", "commands each", &each), COMMANDS, COMMANDS.judge(median(&each).value)),
        row("lockkeeper", "hand-off p50, µs", &|(ours, ..)| micros(ours, 0.5)),
        row("lockkeeper", "hand-off p99, µs", &|(ours, ..)| micros(ours, 0.99)),
        row("bare publish", "hand-off p50, µs", &|(.., bare)| micros(bare, 0.5)),
        row("bare publish", "hand-off p99, µs", &|(.., bare)| micros(bare, 0.99)),
        judged(
            row("lockkeeper", "hand-off p50 / bare publish", &ratio),
            HAND_OFF,
            HAND_OFF.judge_rate(&median(&ratio)),
        ),
        judged(
            Row::new(Workload::W3p, "lockkeeper", "Jain's index, lowest of all rounds", fairness),
            FAIRNESS,
            FAIRNESS.judge(fairness),
        ),
    ])
}

/// One process of the ring: waits for a message, then has a script send one to the next.
pub(crate) fn ping(url: &str, own: &str, next: &str, length: Duration) -> Result<Vec<(u64, u64)>, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let client = Client::open(super::plain(url))?;
        let mut connection = client.get_multiplexed_async_connection().await?;
        let (mut sink, mut messages) = client.get_async_pubsub().await?.split();
        sink.subscribe(format!("bench/ping/{own}")).await?;
        let script = Script::new("return redis.call('PUBLISH', ARGV[1], 'go')");
        let digest: String = script.prepare_invoke().load_async(&mut connection).await?;
        let mut publish = redis::cmd("EVALSHA");
        publish.arg(digest).arg(0).arg(format!("bench/ping/{next}"));
        let started = wait_for_go()?;
        if own == "0" {
            // All are subscribed, or nobody would have said go.
            publish.query_async::<()>(&mut connection).await?;
        }
        let mut times = Vec::new();
        while let Some(left) = left(started, length) {
            let message = std::future::poll_fn(|context| Pin::new(&mut messages).poll_next(context));
            if tokio::time::timeout(left, message).await.is_err() {
                break;
            }
            let woken = now();
            times.push((woken, now()));
            publish.query_async::<()>(&mut connection).await?;
        }
        Ok(times)
    })
}

fn left(started: Instant, length: Duration) -> Option<Duration> {
    length.checked_sub(started.elapsed()).filter(|left| !left.is_zero())
}
