//! Signals from outside, as a stream.
//!
//! A signal that was ignored when this program started stays ignored, for CMD too: `nohup` and the background jobs
//! of a script protect themselves in this way.

use nix::sys::signal::Signal;
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::mpsc,
};

use crate::exit::Failure;

/// The signals that end a wait, and that are passed on to CMD.
const HEARD: [Signal; 6] =
    [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGQUIT, Signal::SIGUSR1, Signal::SIGUSR2];

/// The signals that arrived and were not taken yet.
pub(crate) struct Signals {
    arrived: mpsc::UnboundedReceiver<Signal>,
}

impl Signals {
    /// Listens from now on; the default action of these signals no longer happens.
    pub(crate) fn listen() -> Result<Self, Failure> {
        let ignored = ignored();
        let (sender, arrived) = mpsc::unbounded_channel();
        for heard in HEARD {
            if ignored & (1 << (heard as i32 - 1)) != 0 {
                continue;
            }
            let mut stream = signal(SignalKind::from_raw(heard as i32))
                .map_err(|error| Failure::internal("cannot listen for signals", error))?;
            let sender = sender.clone();
            tokio::spawn(async move { while stream.recv().await.is_some() && sender.send(heard).is_ok() {} });
        }
        Ok(Self { arrived })
    }

    /// Waits for the next signal.
    pub(crate) async fn next(&mut self) -> Signal {
        match self.arrived.recv().await {
            Some(signal) => signal,
            // All of them are ignored.
            None => std::future::pending().await,
        }
    }
}

/// Returns the signals that this process ignores, one bit each, the first signal lowest. Where the system does not
/// tell, these are none.
fn ignored() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}
