//! Hears of the deaths of processes that somebody here waits behind.
//!
//! The kernel tells through a process descriptor. That is only a hint to look at the life file:
//! an id may mean another process in another namespace, and a life line may outlive its process.

use std::{
    collections::HashMap,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::Duration,
};

use lockkeeper_core::KeeperId;
use rustix::process::{Pid, PidfdFlags};
use tokio::{io::unix::AsyncFd, runtime::Handle, time::Instant};

use crate::life::{self, Pulse};

/// How long a process is watched after it was last seen in the way.
const INTEREST: Duration = Duration::from_secs(300);

/// How often a life file is looked at whose process has ended, but which somebody keeps alive.
const OUTLIVED: Duration = Duration::from_millis(100);

/// Which keepers' processes are being watched.
pub(crate) struct Deaths {
    keepers: PathBuf,
    background: Handle,
    watched: Mutex<HashMap<KeeperId, Instant>>,
    report: OnDeath,
}

/// Called with each keeper that is found dead.
pub(crate) type OnDeath = Box<dyn Fn(KeeperId) + Send + Sync>;

impl Deaths {
    /// Watches through `background`.
    pub(crate) fn new(keepers: &Path, background: Handle, report: OnDeath) -> Arc<Self> {
        Arc::new(Self { keepers: keepers.to_owned(), background, watched: Mutex::default(), report })
    }

    fn watched(&self) -> MutexGuard<'_, HashMap<KeeperId, Instant>> {
        self.watched.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// These keepers' deaths matter from now on.
    pub(crate) fn watch(self: &Arc<Self>, ahead: HashMap<KeeperId, u32>) {
        if ahead.is_empty() {
            return;
        }
        let (own, now) = (std::process::id(), Instant::now());
        for (keeper, pid) in ahead {
            // Keepers of this process do not die before it does.
            if pid == own || self.watched().insert(keeper, now).is_some() {
                continue;
            }
            self.background.spawn(until_dead(Arc::downgrade(self), keeper, pid));
        }
    }

    /// Whether somebody still cares, as of less than a while ago; if not, it is watched no more.
    fn still_of_interest(&self, keeper: KeeperId) -> bool {
        let mut watched = self.watched();
        let fresh = watched.get(&keeper).is_some_and(|seen| seen.elapsed() < INTEREST);
        if !fresh {
            watched.remove(&keeper);
        }
        fresh
    }
}

async fn until_dead(deaths: Weak<Deaths>, keeper: KeeperId, pid: u32) {
    let process = open(pid);
    loop {
        let silent = match &process {
            // An error is no reason not to look.
            Some(process) => tokio::time::timeout(INTEREST, process.readable()).await.is_err(),
            None => false,
        };
        let Some(deaths) = deaths.upgrade() else { return };
        if silent && deaths.still_of_interest(keeper) {
            continue;
        }
        match life::pulse(&deaths.keepers, keeper) {
            Pulse::Dead => (deaths.report)(keeper),
            Pulse::Alive if deaths.still_of_interest(keeper) => {
                drop(deaths);
                tokio::time::sleep(OUTLIVED).await;
                continue;
            }
            Pulse::Alive | Pulse::Unknown => {}
        }
        deaths.watched().remove(&keeper);
        return;
    }
}

/// A descriptor that becomes readable when the process ends; `None` if there is no such process.
fn open(pid: u32) -> Option<AsyncFd<OwnedFd>> {
    let pid = Pid::from_raw(i32::try_from(pid).ok()?)?;
    let process = rustix::process::pidfd_open(pid, PidfdFlags::NONBLOCK).ok()?;
    #[expect(deprecated, reason = "its successor is unsafe code; what that asks for, an `OwnedFd` ensures")]
    AsyncFd::new(process).ok()
}
