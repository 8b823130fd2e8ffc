//! Hears of the deaths of processes that somebody here waits behind.
//!
//! The kernel tells through a process descriptor. That is only a hint to look at the life file,
//! since a life line may outlive its process. A process of another container has no id here, so
//! its life file is looked at now and then.

use lockkeeper_core::support;
use std::{
    collections::{BTreeSet, HashMap},
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, Weak},
    time::Duration,
};

use lockkeeper_core::KeeperId;
use rustix::process::{Pid, PidfdFlags};
use tokio::{io::unix::AsyncFd, runtime::Handle, task::AbortHandle, time::Instant};

use crate::liveness::{self, Liveness};

/// How long a process is watched after it was last seen in the way. Who waits asks more often.
const INTEREST: Duration = Duration::from_secs(30);

/// How often a life file is looked at whose process has no descriptor here.
const LOOK: Duration = Duration::from_millis(250);

/// How many processes are watched at most: each takes a descriptor, of which a program may not have
/// many. Polls find the deaths of others.
const MOST: usize = 32;

/// Which keepers' processes are being watched.
pub(crate) struct CrashMonitor {
    keepers: PathBuf,
    background: Handle,
    watched: Mutex<HashMap<KeeperId, Monitored>>,
    report: OnCrash,
}

/// A keeper whose process is being watched.
struct Monitored {
    /// When it was last in the way.
    seen: Instant,
    task: AbortHandle,
}

/// Called with each keeper that is found dead.
pub(crate) type OnCrash = Box<dyn Fn(KeeperId) + Send + Sync>;

impl CrashMonitor {
    /// Watches through `background`.
    pub(crate) fn new(keepers: &Path, background: Handle, report: OnCrash) -> Arc<Self> {
        Arc::new(Self { keepers: keepers.to_owned(), background, watched: Mutex::default(), report })
    }

    fn watched(&self) -> MutexGuard<'_, HashMap<KeeperId, Monitored>> {
        support::lock(&self.watched)
    }

    /// These keepers' deaths matter from now on.
    pub(crate) fn watch(self: &Arc<Self>, ahead: BTreeSet<KeeperId>) {
        if ahead.is_empty() {
            return;
        }
        let (seen, mut watched) = (Instant::now(), self.watched());
        // Keepers of this process do not die before it does.
        for keeper in ahead.into_iter().filter(|keeper| !liveness::is_of_this_process(*keeper)) {
            if let Some(known) = watched.get_mut(&keeper) {
                known.seen = seen;
                continue;
            }
            if watched.len() >= MOST {
                let oldest = watched.iter().min_by_key(|(_, known)| known.seen).map(|(keeper, _)| *keeper);
                if let Some(old) = oldest.and_then(|keeper| watched.remove(&keeper)) {
                    old.task.abort();
                }
            }
            // It cannot end before it is entered here: that takes the lock.
            let task = self.background.spawn(until_crash(Arc::downgrade(self), keeper)).abort_handle();
            watched.insert(keeper, Monitored { seen, task });
        }
    }

    /// Whether somebody still cares, as of less than a while ago.
    fn is_of_interest(&self, keeper: KeeperId) -> bool {
        self.watched().get(&keeper).is_some_and(|known| known.seen.elapsed() < INTEREST)
    }
}

async fn until_crash(monitor: Weak<CrashMonitor>, keeper: KeeperId) {
    let process = |monitor: Arc<CrashMonitor>| liveness::process_of(&monitor.keepers, keeper).and_then(open);
    let Some(mut process) = monitor.upgrade().map(process) else { return };
    loop {
        let Some(all) = monitor.upgrade() else { return };
        // After its process was opened, too: before that it may have ended, and its id be another's.
        let pulse = liveness::of(&all.keepers, keeper);
        if pulse != Liveness::Alive || !all.is_of_interest(keeper) {
            all.watched().remove(&keeper);
            if pulse == Liveness::Crashed {
                (all.report)(keeper);
            }
            return;
        }
        drop(all);
        match &process {
            None => tokio::time::sleep(LOOK).await,
            Some(running) => {
                let ended = tokio::time::timeout(INTEREST, running.readable()).await.is_ok();
                // Should its life line outlive it, that is looked at from now on.
                process = process.filter(|_| !ended);
            }
        }
    }
}

/// A descriptor that becomes readable when the process ends; `None` if there is no such process.
fn open(pid: u32) -> Option<AsyncFd<OwnedFd>> {
    let pid = Pid::from_raw(i32::try_from(pid).ok()?)?;
    let process = rustix::process::pidfd_open(pid, PidfdFlags::NONBLOCK).ok()?;
    #[expect(deprecated, reason = "its successor is unsafe code; what that asks for, an `OwnedFd` ensures")]
    AsyncFd::new(process).ok()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::liveness::tests::{begin_as_another, beside_this, elsewhere};

    fn open_processes() -> usize {
        let links = fs::read_dir("/proc/self/fd").expect("listed").flatten();
        links.filter_map(|entry| fs::read_link(entry.path()).ok()).filter(|link| is_process(link)).count()
    }

    fn is_process(link: &Path) -> bool {
        link.to_string_lossy().contains("pidfd")
    }

    /// A thousand processes wait ahead. The program that waits here has other uses for its descriptors.
    #[tokio::test]
    async fn a_thousand_processes_ahead_take_few_descriptors() {
        let folder = tempfile::tempdir().expect("a folder");
        let monitor = CrashMonitor::new(folder.path(), Handle::current(), Box::new(|_| {}));
        let mut lives = Vec::new();
        for keeper in (1..=1000).map(KeeperId::from_u128) {
            lives.push(begin_as_another(folder.path(), keeper, &beside_this()));
            monitor.watch(BTreeSet::from([keeper]));
            tokio::task::yield_now().await;
        }
        assert!((1..=MOST).contains(&open_processes()), "{}", open_processes());
    }

    /// Two that are the first process of their container are not one.
    #[tokio::test]
    async fn the_death_of_a_process_elsewhere_is_heard_of() {
        let folder = tempfile::tempdir().expect("a folder");
        let keeper = KeeperId::random();
        let life = begin_as_another(folder.path(), keeper, &elsewhere());
        let (tell, mut dead) = tokio::sync::mpsc::unbounded_channel();
        let report = Box::new(move |keeper| tell.send(keeper).expect("heard"));
        let monitor = CrashMonitor::new(folder.path(), Handle::current(), report);
        monitor.watch(BTreeSet::from([keeper]));
        tokio::task::yield_now().await;
        assert!(dead.is_empty(), "it lives");
        drop(life);
        let heard = tokio::time::timeout(Duration::from_secs(20), dead.recv()).await;
        assert_eq!(heard, Ok(Some(keeper)));
    }
}
