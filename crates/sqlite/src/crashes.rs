//! Notices crashed keepers that a waiter of this process waits behind.
//!
//! The kernel tells through a process descriptor that a process has ended. That is only a hint to look at the life
//! file, because a life line may outlive its process. A process of another container has no id here, so its life file
//! is looked at four times a second.

use std::{
    collections::{BTreeSet, HashMap},
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, Weak},
    time::Duration,
};

use lockkeeper_core::{KeeperId, support};
use rustix::process::{Pid, PidfdFlags};
use tokio::{io::unix::AsyncFd, runtime::Handle, task::AbortHandle, time::Instant};

use crate::liveness::{self, Liveness};

/// How long a process is monitored after it was last seen ahead of a waiter. Waiters poll more often than that.
const INTEREST: Duration = Duration::from_secs(30);

/// The pause between two looks at a life file whose process has no descriptor here.
const LOOK: Duration = Duration::from_millis(250);

/// The most processes that are monitored. Each takes a descriptor, of which a program may not have many. Polls find the
/// crashes of the others.
const MOST: usize = 32;

/// Monitors the processes of other keepers.
pub(crate) struct CrashMonitor {
    keepers: PathBuf,
    background: Handle,
    monitored: Mutex<HashMap<KeeperId, Monitored>>,
    report: OnCrash,
}

/// A keeper whose process is being monitored.
struct Monitored {
    /// The last time at which it was ahead of a waiter.
    seen: Instant,
    task: AbortHandle,
}

/// Called with each keeper that is found crashed.
pub(crate) type OnCrash = Box<dyn Fn(KeeperId) + Send + Sync>;

impl CrashMonitor {
    /// A monitor whose tasks run on `background`.
    pub(crate) fn new(keepers: &Path, background: Handle, report: OnCrash) -> Arc<Self> {
        Arc::new(Self { keepers: keepers.to_owned(), background, monitored: Mutex::default(), report })
    }

    fn monitored(&self) -> MutexGuard<'_, HashMap<KeeperId, Monitored>> {
        support::lock(&self.monitored)
    }

    /// Monitors these keepers from now on.
    pub(crate) fn monitor(self: &Arc<Self>, blockers: BTreeSet<KeeperId>) {
        if blockers.is_empty() {
            return;
        }
        let (seen, mut monitored) = (Instant::now(), self.monitored());
        // Keepers of this process do not crash before it does.
        for keeper in blockers.into_iter().filter(|keeper| !liveness::is_of_this_process(*keeper)) {
            if let Some(known) = monitored.get_mut(&keeper) {
                known.seen = seen;
                continue;
            }
            if monitored.len() >= MOST {
                let oldest = monitored.iter().min_by_key(|(_, known)| known.seen).map(|(keeper, _)| *keeper);
                if let Some(old) = oldest.and_then(|keeper| monitored.remove(&keeper)) {
                    old.task.abort();
                }
            }
            // The task cannot end before it is entered here, because that takes the lock.
            let task = self.background.spawn(until_crash(Arc::downgrade(self), keeper)).abort_handle();
            monitored.insert(keeper, Monitored { seen, task });
        }
    }

    /// Whether the keeper was ahead of a waiter lately.
    fn is_of_interest(&self, keeper: KeeperId) -> bool {
        self.monitored().get(&keeper).is_some_and(|known| known.seen.elapsed() < INTEREST)
    }
}

async fn until_crash(monitor: Weak<CrashMonitor>, keeper: KeeperId) {
    let process = |monitor: Arc<CrashMonitor>| liveness::process_of(&monitor.keepers, keeper).and_then(open);
    let Some(mut process) = monitor.upgrade().map(process) else { return };
    loop {
        let Some(strong) = monitor.upgrade() else { return };
        // The first look comes after the descriptor was opened. Before that, the process may have ended and its id may
        // have gone to another.
        let state = liveness::of(&strong.keepers, keeper);
        if state != Liveness::Alive || !strong.is_of_interest(keeper) {
            strong.monitored().remove(&keeper);
            if state == Liveness::Crashed {
                (strong.report)(keeper);
            }
            return;
        }
        drop(strong);
        match &process {
            None => tokio::time::sleep(LOOK).await,
            Some(running) => {
                let ended = tokio::time::timeout(INTEREST, running.readable()).await.is_ok();
                // Its life line may outlive it, so from now on the life file is looked at.
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

    /// The program that waits here needs its descriptors for other things.
    #[tokio::test]
    async fn a_thousand_processes_ahead_take_few_descriptors() {
        let folder = tempfile::tempdir().expect("a folder");
        let monitor = CrashMonitor::new(folder.path(), Handle::current(), Box::new(|_| {}));
        let mut lives = Vec::new();
        for keeper in (1..=1000).map(KeeperId::from_u128) {
            lives.push(begin_as_another(folder.path(), keeper, &beside_this()));
            monitor.monitor(BTreeSet::from([keeper]));
            tokio::task::yield_now().await;
        }
        assert!((1..=MOST).contains(&open_processes()), "{}", open_processes());
    }

    /// Two processes with the id 1, in two containers, are not one.
    #[tokio::test]
    async fn the_crash_of_a_process_in_another_container_is_noticed() {
        let folder = tempfile::tempdir().expect("a folder");
        let keeper = KeeperId::random();
        let life = begin_as_another(folder.path(), keeper, &elsewhere());
        let (tell, mut crashed) = tokio::sync::mpsc::unbounded_channel();
        let report = Box::new(move |keeper| tell.send(keeper).expect("heard"));
        let monitor = CrashMonitor::new(folder.path(), Handle::current(), report);
        monitor.monitor(BTreeSet::from([keeper]));
        tokio::task::yield_now().await;
        assert!(crashed.is_empty(), "it is alive");
        drop(life);
        let heard = tokio::time::timeout(Duration::from_secs(20), crashed.recv()).await;
        assert_eq!(heard, Ok(Some(keeper)));
    }
}
