//! The processes of this machine, as far as the system shows them.

use std::fs;

use nix::sys::signal::Signal;

/// The variable whose words name the runs that a process belongs to, the innermost last.
pub(crate) const MARK: &str = "LOCKKEEPER_RUN";
/// Its value in a guardian, which belongs to no CMD: it outlives the one it watches over.
pub(crate) const GUARDIAN: &str = "guardian";

/// A process at the moment of the look.
pub(crate) struct Process {
    pub(crate) id: i32,
    pub(crate) parent: i32,
    pub(crate) group: i32,
    pub(crate) session: i32,
    /// Its start, in ticks since boot: no two processes have the same id and start.
    pub(crate) start: u64,
    state: char,
    threads: u32,
}

/// Returns all processes; `None` where the system does not show them.
pub(crate) fn all() -> Option<Vec<Process>> {
    // Others end while we look, and other folders are no processes.
    let ids =
        fs::read_dir("/proc").ok()?.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let all: Vec<Process> = ids.filter_map(Process::read).collect();
    // A list without this process is not one of all processes.
    let own = i32::try_from(std::process::id()).ok()?;
    all.iter().any(|process| process.id == own).then_some(all)
}

impl Process {
    fn read(id: i32) -> Option<Self> {
        Self::parse(id, &fs::read_to_string(format!("/proc/{id}/stat")).ok()?)
    }

    fn parse(id: i32, stat: &str) -> Option<Self> {
        // The name in brackets may hold anything; after it come state, parent, group and session.
        let fields: Vec<&str> = stat.rsplit_once(") ")?.1.split(' ').collect();
        let number = |index: usize| fields.get(index)?.parse().ok();
        Some(Self {
            id,
            state: fields.first()?.chars().next()?,
            parent: number(1)?,
            group: number(2)?,
            session: number(3)?,
            threads: fields.get(17)?.parse().ok()?,
            start: fields.get(19)?.parse().ok()?,
        })
    }

    /// Whether it can still do something. The main thread may have ended before the others.
    pub(crate) fn is_alive(&self) -> bool {
        !matches!(self.state, 'Z' | 'X') || self.threads > 1
    }

    /// Whether the run with this mark started it, or a process that the run started, and so on.
    pub(crate) fn has_mark(&self, mark: &str) -> bool {
        self.marks().is_some_and(|marks| marks.split(' ').any(|word| word == mark))
    }

    pub(crate) fn is_guardian(&self) -> bool {
        self.marks().as_deref() == Some(GUARDIAN)
    }

    /// Returns the words of [`MARK`] in its environment. That is not readable if it has other rights than we have.
    fn marks(&self) -> Option<String> {
        let environment = fs::read(format!("/proc/{}/environ", self.id)).ok()?;
        let marks = environment
            .split(|byte| *byte == 0)
            .find_map(|variable| variable.strip_prefix(MARK.as_bytes())?.strip_prefix(b"="))?;
        String::from_utf8(marks.to_vec()).ok()
    }

    /// Sends `signal` to this very process: never to another one that has got its id since.
    #[cfg(target_os = "linux")]
    pub(crate) fn send(&self, signal: Signal) {
        use rustix::process::{Pid, PidfdFlags, Signal as Sent, pidfd_open, pidfd_send_signal};
        let opened = Pid::from_raw(self.id).and_then(|id| pidfd_open(id, PidfdFlags::empty()).ok());
        let same = || Self::read(self.id).is_some_and(|now| now.start == self.start);
        if let (Some(process), Some(signal)) = (opened, Sent::from_named_raw(signal as i32))
            && same()
        {
            // It may have ended by now.
            let _ = pidfd_send_signal(process, signal);
        }
    }

    #[cfg(not(target_os = "linux"))]
    pub(crate) fn send(&self, _: Signal) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_lives_while_one_of_its_threads_does() {
        let with = |state: char, threads: u32| {
            let stat = format!("7 (a) b) {state} 1 7 5 0 -1 0 0 0 0 0 0 0 0 0 20 0 {threads} 0 99 0");
            Process::parse(7, &stat).expect("parsed")
        };
        let process = with('Z', 2);
        assert_eq!((process.parent, process.group, process.session, process.start), (1, 7, 5, 99));
        assert!(process.is_alive() && with('S', 1).is_alive() && with('T', 1).is_alive());
        assert!(!with('Z', 1).is_alive() && !with('X', 1).is_alive());
    }

    #[test]
    fn this_process_is_among_all() {
        let own = i32::try_from(std::process::id()).expect("small");
        let Some(all) = all() else { return };
        assert!(all.iter().any(|process| process.id == own && process.is_alive() && !process.is_guardian()));
    }
}
