//! A process group: whether any of it is alive, and its end, first asked for and then forced.

use std::time::Duration;

use lockkeeper_core::clock::{BootTime, Clock};
use nix::{
    sys::signal::{Signal, killpg},
    unistd::Pid,
};

/// How often to look whether the group is gone: no system tells when a whole group has ended.
const LOOK: Duration = Duration::from_millis(5);

/// How long before its lease ends a group is told to end, and when it is forced to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Notice {
    /// From TERM to KILL.
    pub(crate) grace: Duration,
    /// From KILL to the deadline: for the system to end the processes, and for a busy machine.
    pub(crate) reserve: Duration,
}

impl Notice {
    pub(crate) fn of_lease(lease: Duration) -> Self {
        Self {
            grace: (lease / 6).min(Duration::from_secs(5)),
            reserve: (lease / 10).clamp(Duration::from_millis(20), Duration::from_secs(1)),
        }
    }

    /// When TERM is due, so that the grace is over in time.
    pub(crate) fn term_at(self, deadline: BootTime) -> BootTime {
        deadline.before(self.reserve).before(self.grace)
    }

    /// When KILL is due if TERM is sent at `now`.
    pub(crate) fn kill_at(self, now: BootTime, deadline: BootTime) -> BootTime {
        now.after(self.grace).min(deadline.before(self.reserve))
    }
}

/// Sends `signal` to every process of the group. One that has ended needs none.
pub(crate) fn send(group: Pid, signal: Signal) {
    let _ = killpg(group, signal);
}

/// Asks the group to end, and forces it from `kill_at` on; returns when no process of it is alive.
pub(crate) async fn end(group: Pid, kill_at: BootTime) {
    send(group, Signal::SIGTERM);
    // A stopped process takes no TERM before it goes on.
    send(group, Signal::SIGCONT);
    force(group, kill_at).await;
}

/// Ends what is left of a group that was asked to end, from `kill_at` on.
pub(crate) async fn force(group: Pid, kill_at: BootTime) {
    let clock = Clock::boot();
    while is_alive(group) {
        if clock.now() >= kill_at {
            send(group, Signal::SIGKILL);
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// Whether a process of the group can still do something; those that only wait to be collected
/// by their parent cannot.
pub(crate) fn is_alive(group: Pid) -> bool {
    killpg(group, None) != Err(nix::errno::Errno::ESRCH) && living_member(group).unwrap_or(true)
}

/// Looks through all processes; `None` where the system does not show them.
#[cfg(target_os = "linux")]
fn living_member(group: Pid) -> Option<bool> {
    let mut seen = false;
    for process in std::fs::read_dir("/proc").ok()?.flatten() {
        // Others end while we look, and other folders are no processes.
        let Ok(stat) = std::fs::read_to_string(process.path().join("stat")) else { continue };
        // The name in brackets may hold anything; after it come state, parent and group.
        let Some((_, fields)) = stat.rsplit_once(") ") else { continue };
        let mut fields = fields.split(' ');
        let state = fields.next();
        if fields.nth(1).and_then(|field| field.parse().ok()) == Some(group.as_raw()) {
            seen = true;
            if !matches!(state, Some("Z" | "X")) {
                return Some(true);
            }
        }
    }
    // The group exists, so none of it in sight means that it is hidden from us.
    seen.then_some(false)
}

#[cfg(not(target_os = "linux"))]
fn living_member(_group: Pid) -> Option<bool> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_comes_before_the_deadline() {
        let start = BootTime(1_000_000_000_000);
        for lease in [50, 1000, 30_000, 3_600_000].map(Duration::from_millis) {
            let notice = Notice::of_lease(lease);
            let deadline = start.after(lease);
            let term = notice.term_at(deadline);
            assert!(notice.grace <= Duration::from_secs(5) && notice.grace <= lease / 6);
            assert!(term > start.after(lease / 3), "renewals have a chance before it");
            assert!(notice.kill_at(term, deadline) < deadline);
            // Told early: the whole grace, and no more.
            assert_eq!(notice.kill_at(start, deadline), start.after(notice.grace));
        }
    }
}
