//! The load harness: speed and memory of Lockkeeper as ratios to a limit or to a peer that is
//! measured in the same run.
//!
//! `lockkeeper-bench [STORE_URL] [w1 w2 w3 w4 held ...] [--rounds N] [--seconds S]` prints one
//! table. It ends with 0 if every judged figure is met, with 1 if one is missed, with 2 if one
//! stayed inconclusive or the harness could not run.

mod held;
mod judge;
mod measure;
mod peer;
mod rates;
mod rounds;
mod table;
mod waiting;

use std::{error::Error, process::ExitCode, time::Duration};

use judge::Verdict;
use lockkeeper::Keeper;
use measure::Meter;
use table::Row;

/// Why something could not be measured.
type Failure = Box<dyn Error + Send + Sync>;

/// How often a workload is repeated until its rates are conclusive.
const TRIES: usize = 3;

const USAGE: &str = "usage: lockkeeper-bench [STORE_URL] [w1 w2 w3 w4 held ...] [--rounds N] [--seconds S]
  STORE_URL  the store to measure (default memory:)
  w1         one task, one name
  w2         64 tasks, 64 names
  w3         16 tasks, one name
  w4         64 tasks wait for a held name, then drain
  held       100,000 locks held: memory and the watchdog's CPU
  --rounds   rounds per peer (default 15); fewer are measured but not judged
  --seconds  length of a round (default 2); shorter ones are measured but not judged";

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Workload {
    W1,
    W2,
    W3,
    W4,
    Held,
}

impl Workload {
    const ALL: [Self; 5] = [Self::W1, Self::W2, Self::W3, Self::W4, Self::Held];

    fn word(self) -> &'static str {
        match self {
            Self::W1 => "w1",
            Self::W2 => "w2",
            Self::W3 => "w3",
            Self::W4 => "w4",
            Self::Held => "held",
        }
    }

    async fn run(self, bench: &Bench) -> Result<Vec<Row>, Failure> {
        match self {
            Self::W1 => rates::w1(bench).await,
            Self::W2 => rates::w2(bench).await,
            Self::W3 => rates::w3(bench).await,
            Self::W4 => waiting::w4(bench).await,
            Self::Held => held::held(bench).await,
        }
    }
}

/// What was asked for.
#[derive(PartialEq, Eq, Debug)]
struct Order {
    url: String,
    workloads: Vec<Workload>,
    rounds: usize,
    length: Duration,
}

impl Order {
    fn parse(words: impl IntoIterator<Item = String>) -> Result<Self, String> {
        let mut order =
            Self { url: "memory:".into(), workloads: Vec::new(), rounds: 15, length: Duration::from_secs(2) };
        let mut words = words.into_iter();
        while let Some(word) = words.next() {
            let mut number = || words.next().and_then(|text| text.parse::<f64>().ok()).filter(|n| *n > 0.0);
            match word.as_str() {
                "--rounds" => {
                    let rounds = number().filter(|n| n.fract() == 0.0);
                    order.rounds = rounds.ok_or("--rounds needs a whole number above zero")? as usize;
                }
                "--seconds" => {
                    let seconds = number().and_then(|n| Duration::try_from_secs_f64(n).ok());
                    order.length = seconds.ok_or("--seconds needs a number above zero")?;
                }
                url if url.contains(':') => order.url = url.to_owned(),
                word => {
                    let known = Workload::ALL.into_iter().find(|workload| workload.word() == word);
                    order.workloads.push(known.ok_or_else(|| format!("there is no workload {word:?}"))?);
                }
            }
        }
        if order.workloads.is_empty() {
            order.workloads = Workload::ALL.to_vec();
        }
        Ok(order)
    }
}

/// A store to measure and how.
struct Bench {
    keeper: Keeper,
    rounds: usize,
    length: Duration,
}

impl Bench {
    /// Whether the store lives in this process, so that its peers are this process's own locks.
    fn is_local(&self) -> bool {
        !self.keeper.capability().between_processes
    }

    /// Measures a workload, again if its rates were inconclusive.
    async fn run(&self, workload: Workload) -> Result<Vec<Row>, Failure> {
        let mut rows = Vec::new();
        for attempt in 1..=TRIES {
            eprintln!("{} ({attempt})", workload.word());
            rows = workload.run(self).await?;
            if rows.iter().all(|row| row.verdict != Some(Verdict::TooWide)) {
                break;
            }
        }
        Ok(rows)
    }
}

async fn measure(order: &Order) -> Result<Vec<Row>, Failure> {
    let keeper = lockkeeper::connect(&order.url).await?;
    let bench = Bench { keeper, rounds: order.rounds, length: order.length };
    let mut rows = Vec::new();
    for workload in &order.workloads {
        rows.extend(bench.run(*workload).await?);
    }
    bench.keeper.close().await;
    Ok(rows)
}

fn run(order: &Order) -> Result<Vec<Row>, Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let meter = Meter::start()?;
    let rows = runtime.block_on(measure(order))?;
    println!("{}", table::markdown(&rows));
    println!(
        "Store `{}`, {} rounds of {:?}, 2 worker threads; {}.",
        order.url,
        order.rounds,
        order.length,
        meter.surroundings()?
    );
    Ok(rows)
}

fn main() -> ExitCode {
    let order = match Order::parse(std::env::args().skip(1)) {
        Ok(order) => order,
        Err(why) => {
            eprintln!("{why}\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    match run(&order) {
        Ok(rows) => ExitCode::from(judge::exit_code(rows.iter().filter_map(|row| row.verdict))),
        Err(error) => {
            eprintln!("could not measure: {error}");
            ExitCode::from(2)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Order, String> {
        Order::parse(line.split_whitespace().map(str::to_owned))
    }

    #[test]
    fn nothing_means_everything_on_memory() {
        let order = parse("").unwrap();
        assert_eq!((order.url.as_str(), order.workloads.len()), ("memory:", Workload::ALL.len()));
        assert_eq!((order.rounds, order.length), (15, Duration::from_secs(2)));
    }

    #[test]
    fn words_come_in_any_order() {
        let order = parse("w3 --seconds 0.5 memory:bench held --rounds 3").unwrap();
        assert_eq!(order.url, "memory:bench");
        assert_eq!(order.workloads, [Workload::W3, Workload::Held]);
        assert_eq!((order.rounds, order.length), (3, Duration::from_millis(500)));
    }

    #[test]
    fn nonsense_is_refused() {
        for line in ["w9", "--rounds", "--rounds 0", "--rounds 1.5", "--seconds -1", "--seconds x"] {
            assert!(parse(line).is_err(), "{line}");
        }
    }
}
