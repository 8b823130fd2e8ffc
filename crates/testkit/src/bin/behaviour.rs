//! Runs the behaviour suite against the store that a URL names.

use std::process::ExitCode;

use libtest_mimic::Arguments;
use lockkeeper::{store::KeeperId, url};
use lockkeeper_store_tests::{TEST_THREADS, behaviour};

const USAGE: &str = "\
usage: behaviour URL [FILTER] [OPTIONS]

URL names the store, such as memory: or sqlite:/tmp/locks.db; it may be shared with others.
FILTER and OPTIONS are those of cargo test:
  behaviour memory: --list
  behaviour memory: mutex::
  behaviour memory: --exact mutex::one_holder_at_a_time";

/// The command was used wrongly.
const EX_USAGE: u8 = 64;
/// The store cannot be reached.
const EX_UNAVAILABLE: u8 = 69;

fn main() -> ExitCode {
    let mut words = std::env::args();
    let program = words.next().unwrap_or_default();
    let url = match words.next() {
        Some(help) if help == "-h" || help == "--help" => {
            println!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        Some(url) if !url.starts_with('-') => url,
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::from(EX_USAGE);
        }
    };
    // A nameless memory store belongs to one keeper, and the suite needs several.
    let url = if url == "memory:" { format!("memory:behaviour-{}", KeeperId::random()) } else { url };
    if let Err(error) = url::connector(&url) {
        eprintln!("{error}");
        return ExitCode::from(EX_USAGE);
    }
    let connect = move || url::connector(&url).expect("a URL that was good stays good");
    let mut arguments = Arguments::from_iter(std::iter::once(program).chain(words));
    arguments.test_threads.get_or_insert(TEST_THREADS);
    match behaviour::trials(connect) {
        Ok(trials) => libtest_mimic::run(&arguments, trials).exit_code(),
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(EX_UNAVAILABLE)
        }
    }
}
