//! The processes of CMD: whether any of them is alive, and their end, first asked for and then forced.

use std::{collections::HashMap, time::Duration};

use lockkeeper_core::clock::{BootTime, Clock};
use nix::{
    errno::Errno,
    sys::signal::{Signal, killpg},
    unistd::Pid,
};

use crate::processes::{self, Process};

/// The pause between two looks whether all are gone: no system tells when a whole group has ended.
const LOOK: Duration = Duration::from_millis(5);

/// How long before the end of its lease a group is told to end, and is forced to.
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

    /// Returns the moment at which TERM is due, so that the grace is over in time.
    pub(crate) fn term_at(self, deadline: BootTime) -> BootTime {
        deadline.before(self.reserve).before(self.grace)
    }

    /// Returns the moment at which KILL is due if TERM is sent at `now`.
    pub(crate) fn kill_at(self, now: BootTime, deadline: BootTime) -> BootTime {
        now.after(self.grace).min(deadline.before(self.reserve))
    }
}

/// The processes of CMD: its process group, and the processes that it started in other groups of the same session, as
/// `timeout` and shells with job control make them. A process that began a session of its own (a daemon, `setsid`) has
/// left on purpose: it is never ended.
#[derive(Clone, Debug)]
pub(crate) struct Crew {
    pub(crate) group: Pid,
    /// The word that CMD and all its children have in their environment, in [`processes::MARK`].
    pub(crate) mark: String,
}

/// Processes of a crew that were seen, by id, with their start times. Once seen, a process is known even if its parent
/// ends and its environment cannot be read.
pub(crate) type Seen = HashMap<i32, u64>;

/// The processes that are searched for the mark.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Scope {
    Session,
    System,
}

/// The living processes of a crew.
#[derive(Default)]
struct Living {
    /// Processes of CMD's session.
    members: Vec<Process>,
    /// Processes that have left that session.
    departed: Vec<Process>,
}

impl Crew {
    /// Whether one of its processes can still do something; one that only waits to be collected by its parent cannot.
    pub(crate) fn is_alive(&self) -> bool {
        self.has_members(self.look(Scope::Session, &mut Seen::new()).as_ref())
    }

    fn has_members(&self, living: Option<&Living>) -> bool {
        // Where the system does not show processes, it at least knows whether a group exists.
        living.map_or_else(|| group_exists(self.group), |living| !living.members.is_empty())
    }

    /// Whether it is certain that no process of CMD is alive, not even one that has left the session.
    pub(crate) fn is_certainly_gone(&self, seen: &mut Seen) -> bool {
        // The system does not show all processes at one moment. One that starts another and ends while we look could
        // be missed once.
        (0..2).all(|_| {
            let living = self.look(Scope::System, seen);
            living.is_some_and(|living| living.members.is_empty() && living.departed.is_empty())
        })
    }

    /// Sends `signal` to each of its processes. One that has ended needs none.
    pub(crate) fn send(&self, signal: Signal) {
        let living = self.look(Scope::Session, &mut Seen::new());
        self.send_to(living.as_ref(), signal);
    }

    fn send_to(&self, living: Option<&Living>, signal: Signal) {
        let _ = killpg(self.group, signal);
        let members = living.map_or(&[][..], |living| &living.members);
        for process in members.iter().filter(|process| process.group != self.group.as_raw()) {
            process.send(signal);
        }
    }

    /// Asks the processes to end, and forces them from `kill_at` on; returns when none of them is alive.
    pub(crate) async fn end(&self, kill_at: BootTime) -> Seen {
        let mut seen = Seen::new();
        let living = self.look(Scope::Session, &mut seen);
        self.send_to(living.as_ref(), Signal::SIGTERM);
        // A stopped process takes no TERM before it goes on.
        self.send_to(living.as_ref(), Signal::SIGCONT);
        self.force_seen(kill_at, &mut seen).await;
        seen
    }

    /// Kills, from `kill_at` on, the rest of a crew that was asked to end.
    pub(crate) async fn force(&self, kill_at: BootTime) {
        self.force_seen(kill_at, &mut Seen::new()).await;
    }

    async fn force_seen(&self, kill_at: BootTime, seen: &mut Seen) {
        let clock = Clock::boot();
        loop {
            let living = self.look(Scope::Session, seen);
            if !self.has_members(living.as_ref()) {
                return;
            }
            if clock.now() >= kill_at {
                self.send_to(living.as_ref(), Signal::SIGKILL);
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Looks through all processes; `None` where the system does not show them.
    fn look(&self, scope: Scope, seen: &mut Seen) -> Option<Living> {
        let all = processes::all()?;
        let group = self.group.as_raw();
        let session = nix::unistd::getsid(None).ok()?.as_raw();
        // If the group exists but none of its processes is in the list, the system hides them from us.
        if group_exists(self.group) && !all.iter().any(|process| process.group == group) {
            return None;
        }
        for process in &all {
            let known = seen.get(&process.id) == Some(&process.start);
            let searched = scope == Scope::System || process.session == session;
            if known || process.group == group || searched && process.has_mark(&self.mark) {
                seen.insert(process.id, process.start);
            } else {
                // Another process may have got the id of one that has ended.
                seen.remove(&process.id);
            }
        }
        self.add_children(&all, seen);
        let mut living = Living::default();
        for process in all.into_iter().filter(|process| seen.contains_key(&process.id) && process.is_alive())
        {
            if process.session == session {
                living.members.push(process);
            } else {
                living.departed.push(process);
            }
        }
        Some(living)
    }

    /// Adds the processes that the seen ones have started.
    fn add_children(&self, all: &[Process], seen: &mut Seen) {
        loop {
            let before = seen.len();
            for process in all {
                if seen.contains_key(&process.parent)
                    && !seen.contains_key(&process.id)
                    && !process.is_guardian()
                {
                    seen.insert(process.id, process.start);
                }
            }
            if seen.len() == before {
                return;
            }
        }
    }
}

fn group_exists(group: Pid) -> bool {
    killpg(group, None) != Err(Errno::ESRCH)
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
