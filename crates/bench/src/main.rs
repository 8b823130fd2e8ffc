//! The load harness: speed and memory of Lockkeeper as ratios to a limit or to a peer that is measured in the same run.
//! `docs/benchmarks.md` explains the measurements and the reasons for them.
//!
//! It prints one table and a line for each goal. It ends with 0 if every goal is met, with 1 if
//! one is missed, with 2 if one stayed inconclusive or the harness could not run.

mod bench;
mod child;
mod console;
mod drain;
mod files;
mod given_up;
mod held;
mod judge;
mod measure;
mod metered;
mod peer;
mod peers;
mod processes;
mod quorum;
mod rates;
mod redis;
mod rounds;
mod serve;
mod sql;
mod table;
mod tokens;
mod waiting;
mod waiting_processes;
mod workload;
mod workloads;
mod zookeeper;

use std::{error::Error, process::ExitCode, time::Duration};

use bench::Bench;
use measure::Meter;
use table::Row;
use workload::{Pace, Workload};

/// The reason why something could not be measured.
type Failure = Box<dyn Error + Send + Sync>;

const USAGE: &str =
    "usage: lockkeeper-bench [STORE_URL] [w1 w2 w3 w3p w4 w4p held given_up ...] [--quick | --rounds N --waits N
  --seconds S]
  STORE_URL  the store to measure (default memory:); redis:, zookeeper:, postgres: and mysql: start a
             server, and peers; quorum: starts five Redis servers
  w1         one task, one name
  w2         64 tasks, 64 names
  w3         16 tasks, one name
  w3p        16 processes, one name (stores between processes)
  w4         64 tasks wait for a held name, then drain
  w4p        64 processes wait for a held name, then drain (stores between processes)
  held       100,000 locks held (10,000 on a database): memory and the watchdog's CPU
  given_up   10,000 tasks wait for a held name and time out within a second: CPU beyond their timers
  serve      lockkeeper serve on redis: against bare handlers, and 1,000 requests that wait; only if it is asked for, and
             with the server beside this program: cargo build --release -p lockkeeper-bench --features serve
  console    lockkeeper serve on redis: what pages cost that look at 10,000 locks; as serve, and with chromium
  --quick    only see that everything runs: a few seconds, nothing is judged
  --waits    rounds of w4 and w4p (default 2)
  --rounds   rounds per peer (default 15); fewer are measured but not judged
  --seconds  length of a round (default 2); shorter ones are measured but not judged";

/// How long the last requests may take.
const CLOSING: Duration = Duration::from_secs(10);

/// The options of the command line.
#[derive(PartialEq, Eq, Debug)]
struct Options {
    url: String,
    workloads: Vec<Workload>,
    pace: Pace,
    judged: bool,
}

impl Options {
    fn parse(words: impl IntoIterator<Item = String>) -> Result<Self, String> {
        let mut options =
            Self { url: "memory:".into(), workloads: Vec::new(), pace: Pace::FULL, judged: true };
        let mut words = words.into_iter();
        while let Some(word) = words.next() {
            let mut number = || words.next().and_then(|text| text.parse::<f64>().ok()).filter(|n| *n > 0.0);
            match word.as_str() {
                "--rounds" => {
                    let rounds = number().filter(|n| n.fract() == 0.0);
                    options.pace.rounds = rounds.ok_or("--rounds needs a whole number above zero")? as usize;
                }
                "--waits" => {
                    let waits = number().filter(|n| n.fract() == 0.0);
                    options.pace.waits = waits.ok_or("--waits needs a whole number above zero")? as usize;
                }
                "--seconds" => {
                    let seconds = number().and_then(|n| Duration::try_from_secs_f64(n).ok());
                    options.pace.length = seconds.ok_or("--seconds needs a number above zero")?;
                }
                "--quick" => (options.pace, options.judged) = (Pace::QUICK, false),
                url if url.contains(':') => options.url = url.to_owned(),
                word => {
                    let all = Workload::ALL.into_iter().chain(Workload::ON_DEMAND);
                    let known = all.into_iter().find(|workload| workload.word() == word);
                    options.workloads.push(known.ok_or_else(|| format!("there is no workload {word:?}"))?);
                }
            }
        }
        if options.workloads.is_empty() {
            options.workloads = Workload::ALL.to_vec();
        }
        let served = |workload| Workload::ON_DEMAND.contains(workload);
        if options.workloads.iter().all(served) && options.url == "memory:" {
            options.url = "redis:".into();
        }
        Ok(options)
    }

    /// How many threads the tasks have. Two, but a server on this machine needs a core of its own: else the figures
    /// would show how much the tasks keep it from working.
    fn workers(&self, cores: usize) -> usize {
        let alone = ["memory", "sqlite"].iter().any(|store| self.url.starts_with(store));
        if alone { 2 } else { cores.saturating_sub(1).clamp(1, 2) }
    }
}

/// The results of a run.
struct Measured {
    rows: Vec<Row>,
    /// The store they were measured on.
    store: String,
    /// The reason why there are not more of them.
    failure: Option<String>,
}

async fn measure(options: &Options) -> Result<Measured, Failure> {
    let bench = Bench::connect(&options.url, options.pace).await?;
    let (mut rows, mut failure) = (Vec::new(), None);
    for workload in &options.workloads {
        if let Err(why) = workloads::run(&bench, *workload, &mut rows).await {
            failure = Some(format!("{}: {why}", workload.word()));
            break;
        }
    }
    // After a failure the store may be out of reach.
    let closed = tokio::time::timeout(CLOSING, bench.keeper.close()).await;
    if closed.is_err() && failure.is_none() {
        failure = Some("the keeper could not be closed".into());
    }
    if !options.judged {
        rows = rows.into_iter().map(Row::unjudged).collect();
    }
    Ok(Measured { rows, store: bench.description(), failure })
}

/// Measures and prints, also the rows from before a failure.
fn run(options: &Options) -> Result<u8, Failure> {
    let workers = options.workers(std::thread::available_parallelism()?.get());
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(workers).enable_all().build()?;
    let meter = Meter::start()?;
    let Measured { rows, store, failure } = runtime.block_on(measure(options))?;
    println!("{}", table::markdown(&rows));
    println!(
        "Store {store}, {} rounds of {:?}, {workers} worker threads; {}.",
        options.pace.rounds,
        options.pace.length,
        meter.surroundings()?
    );
    println!("\n{}", table::verdicts(&rows));
    match failure {
        Some(why) => Err(why.into()),
        None => Ok(judge::exit_code(rows.iter().filter_map(Row::verdict))),
    }
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if let Some(("child", words)) = words.split_first().map(|(first, rest)| (first.as_str(), rest)) {
        return match child::main(words) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("a child failed: {error}");
                ExitCode::FAILURE
            }
        };
    }
    let options = match Options::parse(words) {
        Ok(options) => options,
        Err(why) => {
            eprintln!("{why}\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    match run(&options) {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            eprintln!("could not measure: {error}");
            ExitCode::from(2)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Options, String> {
        Options::parse(line.split_whitespace().map(str::to_owned))
    }

    #[test]
    fn nothing_means_everything_on_memory() {
        let options = parse("").expect("a good line");
        assert_eq!((options.url.as_str(), options.workloads.len()), ("memory:", Workload::ALL.len()));
        assert_eq!((options.pace, options.judged), (Pace::FULL, true));
    }

    #[test]
    fn words_come_in_any_order() {
        let options = parse("w3 --seconds 0.5 memory:bench held --rounds 3").expect("a good line");
        assert_eq!(options.url, "memory:bench");
        assert_eq!(options.workloads, [Workload::W3, Workload::Held]);
        assert_eq!((options.pace.rounds, options.pace.length), (3, Duration::from_millis(500)));
        assert!(options.judged);
    }

    #[test]
    fn a_server_has_a_core_of_its_own() {
        let workers = |line, cores| parse(line).expect("a good line").workers(cores);
        assert_eq!(["", "redis:", "zookeeper:", "postgres:"].map(|line| workers(line, 2)), [2, 1, 1, 1]);
        assert_eq!(["sqlite:x", "redis:"].map(|line| (workers(line, 1), workers(line, 8))), [(2, 2), (1, 2)]);
    }

    #[test]
    fn nonsense_is_refused() {
        for line in ["w9", "--rounds", "--rounds 0", "--rounds 1.5", "--seconds -1", "--seconds x"] {
            assert!(parse(line).is_err(), "{line}");
        }
    }
}
