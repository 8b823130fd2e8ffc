//! The command line: subcommands, options and their help. It only describes; other files act.

use std::{ffi::OsString, path::PathBuf, time::Duration};

use clap::{Args, Parser, Subcommand};
use clap_complete::Shell;
use lockkeeper::{Token, support::duration};

const EXIT_CODES: &str = "\
Exit codes: CMD's own, or 128 + signal; 75 held by others or timed out (-E changes it, --skip-ok makes it 0); \
79 lost while running; 64 wrong usage or store URL; 69 store out of reach, also when -w runs out \
while the store does not answer; 70 internal error; 126 CMD cannot be executed; 127 CMD not found; 128 + signal when interrupted while waiting.";

/// Distributed locks at a shell, on the stores people already run.
#[derive(Parser, Debug)]
#[command(name = "lockkeeper", version, about, after_help = EXIT_CODES, max_term_width = 100)]
#[command(subcommand_required = true, arg_required_else_help = false, disable_help_subcommand = true)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) store: StoreArgs,
    #[command(subcommand)]
    pub(crate) action: Action,
}

/// Options of every subcommand. In its help, these come after the options of its own.
#[derive(Args, Debug)]
pub(crate) struct StoreArgs {
    /// The store's URL, such as sqlite:PATH. Others can see it in the list of processes, so put a
    /// URL with a password into a --store-file or LOCKKEEPER_STORE. Default: LOCKKEEPER_STORE, else
    /// a SQLite file of this user
    #[arg(long, global = true, value_name = "URL", conflicts_with = "store_file", display_order = 900)]
    pub(crate) store: Option<String>,
    /// A file whose first line is the store's URL
    #[arg(long, global = true, value_name = "FILE", display_order = 901)]
    pub(crate) store_file: Option<PathBuf>,
    /// Print what happens, and on which store
    #[arg(short = 'v', long, global = true, display_order = 902)]
    pub(crate) verbose: bool,
}

#[derive(Subcommand, Debug)]
pub(crate) enum Action {
    /// Hold NAME while CMD runs
    #[command(after_help = EXIT_CODES)]
    Run(RunArgs),
    /// Acquire NAME and print a lease that later commands renew and release
    Acquire(AcquireArgs),
    /// Extend a lease that `acquire` printed
    Renew(RenewArgs),
    /// Release a lease that `acquire` printed
    Release(ReleaseArgs),
    /// Run CMD while leading the election NAME, or print who leads
    #[command(after_help = EXIT_CODES)]
    Elect(ElectArgs),
    /// Create, count down and await a latch
    Latch(LatchArgs),
    /// List all names that are held or waited for
    List(ListArgs),
    /// Show who holds NAME and who waits for it
    Show(ShowArgs),
    /// Show the list live in the terminal; q ends it
    Watch(WatchArgs),
    /// Evict the holders of NAME
    Evict(EvictArgs),
    /// Check whether the store is fit for locks, and say what to do if not
    Doctor(DoctorArgs),
    /// Print the SQL that makes the store's tables and gives its user the rights, for users who may not make tables
    Schema,
    /// Look at the members of a quorum, have them vote, or replace one
    #[cfg(feature = "quorum")]
    Quorum(QuorumArgs),
    /// Serve locks over HTTP, for programs in every language
    #[cfg(feature = "serve")]
    Serve(ServeArgs),
    /// Print a completion script for a shell
    #[command(hide = true)]
    Completions { shell: Shell },
    /// Print the manual page
    #[command(hide = true)]
    Man,
}

/// Options for the wait and for the output.
#[derive(Args, Debug)]
pub(crate) struct WaitArgs {
    /// Do not wait: give up at once if NAME is held
    #[arg(short = 'n', long, conflicts_with = "wait")]
    pub(crate) nonblock: bool,
    /// Wait at most this long, such as 500ms, 30s, 5m or 1h30m; a bare number is seconds
    #[arg(short = 'w', long, value_name = "TIME", value_parser = duration::parse)]
    pub(crate) wait: Option<Duration>,
    /// Exit with CODE instead of 75 when NAME is held or the wait is over
    #[arg(short = 'E', long, value_name = "CODE")]
    pub(crate) conflict_exit_code: Option<u8>,
    /// Exit with 0 when NAME is held or the wait is over, and say nothing: somebody else does the work
    #[arg(long, conflicts_with = "conflict_exit_code")]
    pub(crate) skip_ok: bool,
    /// Length of the lease: how long NAME stays held after a crash. Default: lease= of the store's URL, else 30s
    #[arg(long, value_name = "TIME", value_parser = duration::parse)]
    pub(crate) lease: Option<Duration>,
    /// Text that is shown with the holder. Default: the file name of CMD
    #[arg(long, value_name = "TEXT")]
    pub(crate) label: Option<String>,
    /// Print nothing but errors
    #[arg(short = 'q', long, conflicts_with = "verbose")]
    pub(crate) quiet: bool,
}

/// How much of the lock to hold.
#[derive(Args, Debug)]
pub(crate) struct ShareArgs {
    /// Hold NAME together with others that hold it shared
    #[arg(short = 's', long, conflicts_with = "permits")]
    pub(crate) shared: bool,
    /// Hold K of N permits, such as 1/4; all callers must give the same N
    #[arg(long, value_name = "K/N", value_parser = permits)]
    pub(crate) permits: Option<(u32, u32)>,
    /// Serve waiters in exact order of arrival
    #[arg(long)]
    pub(crate) fifo: bool,
}

/// How long to hold the lock.
#[derive(Args, Debug)]
pub(crate) struct HoldArgs {
    /// End CMD after this long
    #[arg(long, value_name = "TIME", value_parser = duration::parse)]
    pub(crate) max_hold: Option<Duration>,
    /// Hold NAME at least this long, even if CMD ends earlier
    #[arg(long, value_name = "TIME", value_parser = duration::parse)]
    pub(crate) min_hold: Option<Duration>,
}

#[derive(Args, Debug)]
pub(crate) struct RunArgs {
    /// The name of the lock
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) wait: WaitArgs,
    #[command(flatten)]
    pub(crate) share: ShareArgs,
    #[command(flatten)]
    pub(crate) hold: HoldArgs,
    /// The program and its arguments
    #[arg(last = true, required = true, value_name = "CMD")]
    pub(crate) command: Vec<OsString>,
}

#[derive(Args, Debug)]
pub(crate) struct AcquireArgs {
    /// The name of the lock
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) wait: WaitArgs,
    #[command(flatten)]
    pub(crate) share: ShareArgs,
    /// Print an object with name, token, lease and expires_in_ms
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct RenewArgs {
    /// The line that `acquire` printed, or - to read it from stdin
    pub(crate) lease: String,
    /// Make it last at least this long from now; never less than what `acquire` was given
    #[arg(long = "lease", value_name = "TIME", value_parser = duration::parse)]
    pub(crate) length: Option<Duration>,
}

#[derive(Args, Debug)]
pub(crate) struct ReleaseArgs {
    /// The line that `acquire` printed, or - to read it from stdin
    pub(crate) lease: String,
}

#[derive(Args, Debug)]
pub(crate) struct ElectArgs {
    /// The name of the election
    pub(crate) name: String,
    /// The text that the leader publishes, such as its address
    #[arg(long, value_name = "TEXT", conflicts_with = "observe")]
    pub(crate) value: Option<String>,
    /// Do not campaign: print one JSON line now and at each change of the leader
    #[arg(long, conflicts_with_all = ["command", "nonblock", "wait", "max_hold", "min_hold"])]
    pub(crate) observe: bool,
    #[command(flatten)]
    pub(crate) wait: WaitArgs,
    #[command(flatten)]
    pub(crate) hold: HoldArgs,
    /// The program and its arguments
    #[arg(last = true, required_unless_present = "observe", value_name = "CMD")]
    pub(crate) command: Vec<OsString>,
}

#[derive(Args, Debug)]
pub(crate) struct LatchArgs {
    /// The name of the latch
    pub(crate) name: String,
    #[command(subcommand)]
    pub(crate) action: LatchAction,
}

#[derive(Subcommand, Debug)]
pub(crate) enum LatchAction {
    /// Create it with this count
    Create { count: u64 },
    /// Count down, and print what is left
    Down {
        #[arg(default_value_t = 1)]
        count: u64,
    },
    /// Wait until it has counted to zero
    Wait {
        /// Wait at most this long
        #[arg(short = 'w', long, value_name = "TIME", value_parser = duration::parse)]
        wait: Option<Duration>,
    },
    /// Print what is left, and the count that it was created with
    Show,
    /// Set it back to the count that it was created with
    Reset,
    /// Delete it
    Delete,
}

#[cfg(feature = "quorum")]
#[derive(Args, Debug)]
pub(crate) struct QuorumArgs {
    #[command(subcommand)]
    pub(crate) action: QuorumAction,
}

#[cfg(feature = "quorum")]
#[derive(Subcommand, Debug)]
pub(crate) enum QuorumAction {
    /// Watch all members of a new quorum for the longest lease, and have them vote
    Found {
        /// Have them vote at once: no client has used these servers as members for the longest lease
        #[arg(long)]
        fresh: bool,
    },
    /// Watch members that may have lost their data for the longest lease, and have them vote again
    Rejoin,
    /// Have the server NEW take the place of OLD, which is dead or about to go
    Replace {
        /// The member to replace: its URL, or its number in the quorum's URL
        old: String,
        /// The URL of the new server
        new: String,
    },
    /// Print for each member whether it votes, what is wrong with it, and how far its clock is off
    Show {
        /// Print one array of objects
        #[arg(long)]
        json: bool,
    },
}

#[derive(Args, Debug)]
pub(crate) struct ListArgs {
    /// Only names that start with this
    #[arg(default_value = "")]
    pub(crate) prefix: String,
    /// Print one array of objects
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct ShowArgs {
    /// The name of the lock
    pub(crate) name: String,
    /// Print one object
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct WatchArgs {
    /// Only names that start with this
    #[arg(default_value = "")]
    pub(crate) prefix: String,
}

#[derive(Args, Debug)]
pub(crate) struct EvictArgs {
    /// The name of the lock
    pub(crate) name: String,
    /// Evict only the holder with this token; without it, every holder
    #[arg(long)]
    pub(crate) token: Option<Token>,
    /// The reason, for the record and for the holder
    #[arg(long, value_name = "TEXT", required = true)]
    pub(crate) reason: String,
    /// Grant to the next waiter at once, although the holder may still work: safe only with fencing
    #[arg(long)]
    pub(crate) now: bool,
    /// Do not ask
    #[arg(long)]
    pub(crate) yes: bool,
}

#[derive(Args, Debug)]
pub(crate) struct DoctorArgs {
    /// Print one object
    #[arg(long)]
    pub(crate) json: bool,
}

#[cfg(feature = "serve")]
#[derive(Args, Debug)]
pub(crate) struct ServeArgs {
    /// The address to listen on: ADDRESS:PORT, or unix:PATH
    #[arg(long, value_name = "WHERE", default_value_t)]
    pub(crate) listen: lockkeeper_serve::Listen,
    /// A file of lines ROLE TOKEN [NAME [PREFIX…]] with the roles look, use and administer; read again when it changes.
    /// Without it, one administer token is made and printed once
    #[arg(long, value_name = "FILE")]
    pub(crate) token_file: Option<PathBuf>,
    /// A chain of certificates (PEM); read again when it changes
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub(crate) tls_cert: Option<PathBuf>,
    /// The key of the certificate (PEM)
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub(crate) tls_key: Option<PathBuf>,
    /// Only a proxy that speaks TLS reaches this server; its X-Forwarded-For is believed
    #[arg(long)]
    pub(crate) behind_proxy: bool,
    /// A name by which this server is called, besides those of loopback; may be given several times
    #[arg(long, value_name = "NAME")]
    pub(crate) host: Vec<String>,
    /// Limits of alarms (TOML); read again when it changes. Without it, sound limits hold
    #[arg(long, value_name = "FILE")]
    pub(crate) alarms: Option<PathBuf>,
    /// Show a demo instead of a store: locks in memory with a lively hour behind them
    #[arg(long)]
    pub(crate) demo: bool,
    /// Name the N locks with the most waiters in /metrics
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) hottest: usize,
    /// The most connections; beyond it, the longest idle one is closed for a new one. Default: 8192
    #[arg(long, value_name = "N")]
    pub(crate) connections: Option<usize>,
    /// The most requests that wait. Default: 4096, and 32 on ZooKeeper, where each is a session
    #[arg(long, value_name = "N")]
    pub(crate) waiting: Option<usize>,
    /// The longest wait of a request. Default: 10m
    #[arg(long, value_name = "TIME", value_parser = duration::parse)]
    pub(crate) longest_wait: Option<Duration>,
    /// How many requests a second one token may make. Default: 2000
    #[arg(long, value_name = "N")]
    pub(crate) rate: Option<u32>,
    /// How long a client may take for a request, for reading an answer, and between two requests. Default: 30s
    #[arg(long, value_name = "TIME", value_parser = duration::parse)]
    pub(crate) patience: Option<Duration>,
}

fn permits(text: &str) -> Result<(u32, u32), String> {
    let parsed = text.split_once('/').and_then(|(k, n)| Some((k.parse().ok()?, n.parse().ok()?)));
    match parsed {
        Some((k, n)) if 1 <= k && k <= n => Ok((k, n)),
        _ => Err("give K/N with 1 <= K <= N, such as 1/4".into()),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    fn parse(line: &str) -> Result<Cli, clap::Error> {
        Cli::try_parse_from(line.split(' '))
    }

    #[test]
    fn the_definition_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn options_stand_before_or_after_the_name() {
        for line in [
            "lockkeeper run -n --lease 5s x -- echo -n -- hi",
            "lockkeeper run x -n --lease 5s -- echo -n -- hi",
            "lockkeeper --store memory: run -n x --lease 5 -- echo -n -- hi",
        ] {
            let Ok(Cli { action: Action::Run(run), .. }) = parse(line) else { panic!("{line}") };
            assert!(run.wait.nonblock && run.name == "x", "{line}");
            assert_eq!(run.wait.lease, Some(Duration::from_secs(5)));
            assert_eq!(run.command, ["echo", "-n", "--", "hi"]);
        }
    }

    #[test]
    fn contradictions_are_refused() {
        for line in [
            "lockkeeper",
            "lockkeeper run x",
            "lockkeeper run x echo",
            "lockkeeper run x --",
            "lockkeeper run x -n -w 3 -- y",
            "lockkeeper run x -s --permits 1/2 -- y",
            "lockkeeper run x --permits 3/2 -- y",
            "lockkeeper run x --permits 0/2 -- y",
            "lockkeeper run x -E 256 -- y",
            "lockkeeper run x -q -v -- y",
            "lockkeeper elect x",
            "lockkeeper elect x --observe -- y",
            "lockkeeper evict x",
            "lockkeeper --store memory: --store-file f list",
        ] {
            assert!(parse(line).is_err(), "{line}");
        }
    }

    #[test]
    fn help_has_the_options_of_a_subcommand_before_those_of_all() {
        let mut all = Cli::command();
        all.build();
        for name in ["run", "acquire", "list", "evict"] {
            let help = all.find_subcommand_mut(name).expect(name).render_long_help().to_string();
            let (_, common) = help.split_once("--store ").expect(name);
            let left: Vec<&str> =
                common.lines().map(str::trim).filter(|line| line.starts_with('-')).collect();
            assert!(left.len() == 3 && left[0].starts_with("--store-file"), "{name}: {left:?}");
        }
    }
}
