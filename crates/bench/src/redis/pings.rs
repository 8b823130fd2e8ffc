//! W3p on Redis: sixteen processes, one name; beside it as many processes that wake each other in a ring, with a script
//! that does nothing but publish, and as many that pass the barest lock that two scripts can make.

use std::{
    pin::Pin,
    time::{Duration, Instant},
};

use futures_core::Stream as _;
use redis::{
    Client, Cmd, Script,
    aio::{MultiplexedConnection, PubSubStream},
};

use super::{Served, Server};
use crate::{
    Failure,
    judge::{self, Limit, Median, Verdict},
    processes::{ChildProcess, PROCESSES, ProcessRound, keepers, now, race, wait_for_go},
    table::Row,
    workload::{Pace, Workload},
};

/// A claim and a release each, and now and then one that asks again.
const COMMANDS: Limit = Limit::AtMost(2.05);
/// A release is this much slower at most than the message that it sends.
const HAND_OFF: Limit = Limit::AtMost(1.5);
/// The server's work as a multiple of that for a lock without lease, token, clock, queue that outlives crashed waiters,
/// and claims that may arrive twice.
const SERVER: Limit = Limit::AtMost(6.0);
const FAIRNESS: Limit = Limit::AtLeast(0.99);

/// The rounds to compare: Lockkeeper and the barest lock, each with its price for the server, and bare messages.
struct Comparison {
    ours: ProcessRound,
    our_cost: Served,
    barest: ProcessRound,
    barest_cost: Served,
    bare: ProcessRound,
}

impl Comparison {
    fn new(server: &Server, length: Duration) -> Result<Self, Failure> {
        let (url, millis) = (server.url(), length.as_millis().to_string());
        let started = server.served()?;
        let ours = keepers(url, length)?;
        let between = server.served()?;
        let all = |start: &dyn Fn(usize) -> Result<ChildProcess, Failure>| {
            race((0..PROCESSES).map(start).collect::<Result<_, _>>()?, length)
        };
        let barest = all(&|own| ChildProcess::start(&["barest", url, &own.to_string(), &millis]));
        let ended = server.served()?;
        server.forget(&BAREST)?;
        let bare = all(&|own| {
            let next = (own + 1) % PROCESSES;
            ChildProcess::start(&["ping", url, &own.to_string(), &next.to_string(), &millis])
        })?;
        let (our_cost, barest_cost) = (between.since(started), ended.since(between));
        Ok(Self { ours, our_cost, barest: barest?, barest_cost, bare })
    }
}

/// Sixteen processes, one name.
pub(crate) async fn w3p(server: &Server, pace: &Pace) -> Result<Vec<Row>, Failure> {
    let (server, pace) = (server.clone(), *pace);
    let rounds = tokio::task::spawn_blocking(move || {
        (0..pace.rounds).map(|_| Comparison::new(&server, pace.length)).collect::<Result<Vec<_>, _>>()
    })
    .await??;
    let micros = |passed: &ProcessRound, quantile| passed.hand_offs.value_at_quantile(quantile) as f64 / 1e3;
    let median = |figure: &dyn Fn(&Comparison) -> f64| Median::of(rounds.iter().map(figure));
    let row = |who, what, figure: &dyn Fn(&Comparison) -> f64| {
        Row::median(Workload::W3p, who, what, median(figure))
    };
    let judged = |row: Row, limit: Limit, verdict: Verdict| {
        row.goal(limit, if pace.is_enough() { verdict } else { Verdict::TooShort })
    };
    let acquired = |passed: &ProcessRound| passed.shares.iter().sum::<u64>() as f64;
    let each = |round: &Comparison| {
        round.our_cost.commands.map_or(f64::NAN, |commands| commands as f64) / acquired(&round.ours)
    };
    let ours_busy = |round: &Comparison| round.our_cost.busy.as_secs_f64() * 1e6 / acquired(&round.ours);
    let barest_busy =
        |round: &Comparison| round.barest_cost.busy.as_secs_f64() * 1e6 / acquired(&round.barest);
    let busier = |round: &Comparison| ours_busy(round) / barest_busy(round);
    let ratio = |round: &Comparison| micros(&round.ours, 0.5) / micros(&round.bare, 0.5);
    let fairness = rounds.iter().map(|round| judge::jain(&round.ours.shares)).fold(1.0, f64::min);
    Ok(vec![
        row("lockkeeper", "lock+release/s", &|round| round.ours.rate),
        row("barest lock", "lock+release/s", &|round| round.barest.rate),
        judged(row("lockkeeper", "commands each", &each), COMMANDS, COMMANDS.judge(median(&each).value)),
        row("lockkeeper", "server, µs each", &ours_busy),
        row("barest lock", "server, µs each", &barest_busy),
        judged(
            row("lockkeeper", "server µs / barest lock", &busier),
            SERVER,
            SERVER.judge_rate(&median(&busier)),
        ),
        row("lockkeeper", "hand-off p50, µs", &|round| micros(&round.ours, 0.5)),
        row("lockkeeper", "hand-off p99, µs", &|round| micros(&round.ours, 0.99)),
        row("barest lock", "hand-off p50, µs", &|round| micros(&round.barest, 0.5)),
        row("barest lock", "hand-off p99, µs", &|round| micros(&round.barest, 0.99)),
        row("bare publish", "hand-off p50, µs", &|round| micros(&round.bare, 0.5)),
        row("bare publish", "hand-off p99, µs", &|round| micros(&round.bare, 0.99)),
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

/// A process's connection, and the messages that are published to it.
struct Subscriber {
    connection: MultiplexedConnection,
    messages: PubSubStream,
}

impl Subscriber {
    async fn open(url: &str, own: &str) -> Result<Self, Failure> {
        let client = Client::open(super::plain(url))?;
        let connection = client.get_multiplexed_async_connection().await?;
        let (mut sink, messages) = client.get_async_pubsub().await?.split();
        sink.subscribe(channel(own)).await?;
        Ok(Self { connection, messages })
    }

    /// A call of a script by its digest.
    async fn script(&mut self, text: &str, keys: &[&str], words: &[&str]) -> Result<Cmd, Failure> {
        let digest: String = Script::new(text).prepare_invoke().load_async(&mut self.connection).await?;
        let mut command = redis::cmd("EVALSHA");
        command.arg(digest).arg(keys.len()).arg(keys).arg(words);
        Ok(command)
    }

    /// Waits for a message; `false` if none comes in time.
    async fn hears_within(&mut self, left: Duration) -> bool {
        let message = std::future::poll_fn(|context| Pin::new(&mut self.messages).poll_next(context));
        tokio::time::timeout(left, message).await.is_ok()
    }
}

fn channel(of: &str) -> String {
    format!("bench/ping/{of}")
}

/// One process of the ring: waits for a message, then has a script send one to the next.
pub(crate) async fn ping(
    url: &str,
    own: &str,
    next: &str,
    length: Duration,
) -> Result<Vec<(u64, u64)>, Failure> {
    let mut subscriber = Subscriber::open(url, own).await?;
    let publish =
        subscriber.script("return redis.call('PUBLISH', ARGV[1], 'go')", &[], &[&channel(next)]).await?;
    let started = wait_for_go()?;
    if own == "0" {
        // All are subscribed, or nobody would have said go.
        publish.query_async::<()>(&mut subscriber.connection).await?;
    }
    let mut times = Vec::new();
    while let Some(left) = left(started, length) {
        if !subscriber.hears_within(left).await {
            break;
        }
        times.push((now(), now()));
        publish.query_async::<()>(&mut subscriber.connection).await?;
    }
    Ok(times)
}

/// The key of the barest lock, and that of its queue.
const BAREST: [&str; 2] = ["bench/barest", "bench/barest/line"];

const TAKE_OR_QUEUE: &str = "if redis.call('SET', KEYS[1], ARGV[1], 'NX') then return 1 end \
                             redis.call('RPUSH', KEYS[2], ARGV[1]) return 0";
const HAND_ON: &str = "local next = redis.call('LPOP', KEYS[2]) \
                       if not next then return redis.call('DEL', KEYS[1]) end \
                       redis.call('SET', KEYS[1], next) return redis.call('PUBLISH', next, 'go')";

/// One process with the barest lock there is: two scripts and a message, as Lockkeeper has. A process that crashes blocks
/// the lock or its queue for ever, there is no token, and anybody can release it.
pub(crate) async fn barest(url: &str, own: &str, length: Duration) -> Result<Vec<(u64, u64)>, Failure> {
    let mut subscriber = Subscriber::open(url, own).await?;
    let take = subscriber.script(TAKE_OR_QUEUE, &BAREST, &[&channel(own)]).await?;
    let hand_on = subscriber.script(HAND_ON, &BAREST, &[]).await?;
    let started = wait_for_go()?;
    let mut times = Vec::new();
    while let Some(left) = left(started, length) {
        let taken: bool = take.query_async(&mut subscriber.connection).await?;
        if !taken && !subscriber.hears_within(left).await {
            break;
        }
        times.push((now(), now()));
        hand_on.query_async::<()>(&mut subscriber.connection).await?;
    }
    Ok(times)
}

fn left(started: Instant, length: Duration) -> Option<Duration> {
    length.checked_sub(started.elapsed()).filter(|left| !left.is_zero())
}
