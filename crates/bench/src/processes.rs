//! W3p: sixteen processes, one name; beside it a bare token that two processes pass to each other
//! with as many commits, over the same kind of socket and file.

use std::{
    io::{BufRead as _, BufReader, Write as _},
    os::unix::net::UnixDatagram,
    path::Path,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use hdrhistogram::Histogram;
use rusqlite::{Connection, TransactionBehavior};
use rustix::time::{ClockId, clock_gettime};

use crate::{
    Failure,
    bench::{Bench, Workload},
    crowd, files,
    judge::{self, Limit, Median, Verdict},
    redis,
    table::Row,
    zookeeper,
};

pub(crate) const PROCESSES: usize = 16;

/// Nanoseconds on a clock that all processes share.
pub(crate) fn now() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_nsec.unsigned_abs()
}

/// What a round between processes brought.
pub(crate) struct Passed {
    pub(crate) rate: f64,
    pub(crate) shares: Vec<u64>,
    /// From the call to release to the next process's acquisition, in nanoseconds.
    pub(crate) hand_offs: Histogram<u64>,
}

impl Passed {
    /// Joins what each process tells of its acquisitions: when it had the lock, and when it began to
    /// give it back.
    pub(crate) fn of(times: &[Vec<(u64, u64)>], length: Duration) -> Result<Self, Failure> {
        let each = times.iter().enumerate();
        let mut all: Vec<(u64, u64, usize)> = each
            .flat_map(|(place, times)| {
                times.iter().map(move |(granted, released)| (*granted, *released, place))
            })
            .collect();
        all.sort_unstable();
        let mut hand_offs = Histogram::new_with_max(60_000_000_000, 3)?;
        for pair in all.windows(2) {
            if pair[1].0 < pair[0].1 {
                return Err("two processes held the lock at the same time".into());
            }
            if pair[0].2 != pair[1].2 {
                hand_offs.saturating_record(pair[1].0 - pair[0].1);
            }
        }
        let shares = times.iter().map(|times| times.len() as u64).collect();
        Ok(Self { rate: all.len() as f64 / length.as_secs_f64(), shares, hand_offs })
    }
}

/// What a process tells of one acquisition.
pub(crate) fn parse_times(line: &str) -> Result<(u64, u64), Failure> {
    let (granted, released) = line.split_once(' ').ok_or("half a line")?;
    Ok((granted.parse()?, released.parse()?))
}

/// A child process of this program.
pub(crate) struct Hand(pub(crate) Child);

impl Hand {
    pub(crate) fn start(words: &[&str]) -> Result<Self, Failure> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("child").args(words);
        Self::spawn(command)
    }

    /// Any program that is told what to do, and answers.
    pub(crate) fn spawn(mut command: Command) -> Result<Self, Failure> {
        Ok(Self(command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?))
    }
}

impl Drop for Hand {
    fn drop(&mut self) {
        // It has mostly ended by itself.
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// Lets the children run together and joins what they tell: a line per acquisition, with the
/// times at which it had it and at which it began to give it back.
pub(crate) fn race(mut hands: Vec<Hand>, length: Duration) -> Result<Passed, Failure> {
    let mut outputs = Vec::new();
    for hand in &mut hands {
        let mut output = BufReader::new(hand.0.stdout.take().ok_or("no output")?);
        let mut ready = String::new();
        output.read_line(&mut ready)?;
        outputs.push(output);
    }
    for hand in &mut hands {
        hand.0.stdin.as_mut().ok_or("no input")?.write_all(b"go\n")?;
    }
    let mut times = Vec::new();
    for output in outputs {
        times.push(output.lines().map(|line| parse_times(&line?)).collect::<Result<Vec<_>, Failure>>()?);
    }
    Passed::of(&times, length)
}

/// Sixteen processes with a keeper each.
pub(crate) fn keepers(url: &str, length: Duration) -> Result<Passed, Failure> {
    let millis = length.as_millis().to_string();
    let hands: Result<Vec<_>, _> = (0..PROCESSES).map(|_| Hand::start(&["keeper", url, &millis])).collect();
    race(hands?, length)
}

fn tokens(folder: &Path, length: Duration) -> Result<Passed, Failure> {
    // SQLite does not wait where two make the same file at once; and while it is open here, neither
    // is the last to close it.
    let _open = token_file(folder)?;
    let (millis, folder) = (length.as_millis().to_string(), folder.display().to_string());
    let hands: Result<Vec<_>, _> =
        ["a", "b"].map(|own| Hand::start(&["token", &folder, own, &millis])).into_iter().collect();
    race(hands?, length)
}

fn token_file(folder: &Path) -> Result<Connection, Failure> {
    let connection = files::open(&folder.join("token.db"))?;
    connection.execute_batch("CREATE TABLE IF NOT EXISTS turn (n INTEGER PRIMARY KEY)")?;
    Ok(connection)
}

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
    let micros = |rounds: &[Passed], quantile| {
        rounds
            .iter()
            .map(|round| round.hand_offs.value_at_quantile(quantile) as f64 / 1e3)
            .collect::<Vec<_>>()
    };
    let rates = |rounds: &[Passed]| rounds.iter().map(|round| round.rate).collect::<Vec<_>>();
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

/// What a child process does.
pub(crate) fn child(words: &[String]) -> Result<(), Failure> {
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let times = match words[..] {
        ["keeper", url, millis] => {
            runtime()?.block_on(keeper(url, Duration::from_millis(millis.parse()?)))?
        }
        ["token", folder, own, millis] => {
            token(Path::new(folder), own, Duration::from_millis(millis.parse()?))?
        }
        ["waiter", url] => return crowd::waiter(url),
        ["zookeeper", who, url] => return zookeeper::child(who, url),
        ["ring", servers, folder, own] => return zookeeper::ring_child(servers, folder, own.parse()?),
        ["ping", url, own, next, millis] => {
            let length = Duration::from_millis(millis.parse()?);
            runtime()?.block_on(redis::ping(url, own, next, length))?
        }
        ["barest", url, own, millis] => {
            runtime()?.block_on(redis::barest(url, own, Duration::from_millis(millis.parse()?)))?
        }
        _ => return Err("a child has other words".into()),
    };
    let lines: String = times.iter().map(|(granted, released)| format!("{granted} {released}\n")).collect();
    std::io::stdout().write_all(lines.as_bytes())?;
    Ok(())
}

pub(crate) fn runtime() -> std::io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()
}

pub(crate) fn wait_for_go() -> Result<Instant, Failure> {
    println!("ready");
    std::io::stdin().read_line(&mut String::new())?;
    Ok(Instant::now())
}

async fn keeper(url: &str, length: Duration) -> Result<Vec<(u64, u64)>, Failure> {
    let keeper = lockkeeper::connect(url).await?;
    let mutex = keeper.mutex("bench/w3p");
    let started = wait_for_go()?;
    let mut times = Vec::new();
    while let Some(left) = length.checked_sub(started.elapsed()) {
        let Ok(guard) = mutex.lock_within(left).await else { break };
        let granted = now();
        times.push((granted, now()));
        guard.release().await?;
    }
    keeper.close().await;
    Ok(times)
}

/// Two commits, then the token goes to the other: what a claim and a release cost at least.
fn token(folder: &Path, own: &str, length: Duration) -> Result<Vec<(u64, u64)>, Failure> {
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
