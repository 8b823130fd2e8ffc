//! Compares a store with the model over random steps: `refinement URL [--seeds N] [--steps N]`.
//!
//! Time is real here, so most leases outlast the run. `LOCKKEEPER_SEED` runs one seed again.

use std::{env, process::ExitCode};

use lockkeeper_store_tests::refinement::{self, Subject, Tally};

const USAGE: &str = "usage: refinement URL [--seeds N] [--steps N]";

struct Options {
    url: String,
    seeds: u64,
    steps: usize,
}

fn options() -> Result<Options, String> {
    let mut arguments = env::args().skip(1);
    let url = arguments.next().ok_or(USAGE)?;
    // Every keeper of a run connects anew, so the memory store needs a name.
    let url = if url == "memory:" { "memory:refinement".to_owned() } else { url };
    let mut options = Options { url, seeds: 20, steps: 100 };
    while let Some(option) = arguments.next() {
        let value = arguments.next().and_then(|text| text.parse::<u64>().ok()).filter(|number| *number > 0);
        match (option.as_str(), value) {
            ("--seeds", Some(number)) => options.seeds = number,
            ("--steps", Some(number)) => options.steps = usize::try_from(number).map_err(|_| USAGE)?,
            _ => return Err(USAGE.to_owned()),
        }
    }
    Ok(options)
}

#[tokio::main]
async fn main() -> ExitCode {
    let Options { url, seeds, steps } = match options() {
        Ok(options) => options,
        Err(message) => {
            eprintln!("{message}");
            return ExitCode::from(2);
        }
    };
    let only = env::var("LOCKKEEPER_SEED").ok().and_then(|text| text.parse::<u64>().ok());
    let seeds = only.map_or(0..seeds, |seed| seed..seed + 1);
    let by_itself = url.starts_with("zookeeper:");
    let subject = Subject::in_real_time(move || lockkeeper::url::connector(&url));
    let subject = if by_itself { subject.settles_by_itself() } else { subject };
    let mut sum = Tally::default();
    for seed in seeds.clone() {
        match refinement::check(&subject, seed, steps).await {
            Ok(tally) => sum += tally,
            Err(failure) => {
                eprintln!("{failure}");
                return ExitCode::FAILURE;
            }
        }
    }
    println!("{} seeds of {steps} steps: the store and the model agree\n{sum:#?}", seeds.count());
    ExitCode::SUCCESS
}
