//! CMD: started in a process group of its own, and only after the guardian knows that group.
//!
//! The new process is this program again. It stops itself, `lockkeeper run` tells the guardian,
//! gives it the terminal and lets it go on, and only then does it become CMD. So there is no
//! moment in which CMD runs and nobody would end it. If `lockkeeper run` dies in between, the
//! process dies too.

use std::{
    ffi::OsString,
    io,
    os::unix::process::CommandExt,
    process::{Child, Command},
};

use lockkeeper::Token;
use nix::{
    sys::signal::{Signal, kill, killpg},
    unistd::{Pid, getpid, getppid},
};
use rustix::process::{WaitId, WaitIdOptions, WaitIdStatus, waitid};
use tokio::signal::unix::{SignalKind, signal};

use crate::{
    exit::{self, Failure},
    group::Crew,
    guardian::own_program,
    processes, text,
};

/// The first argument that makes this program the one that becomes CMD.
pub(crate) const ROLE: &str = "__start";

/// CMD, or the process that is to become it.
pub(crate) struct Job {
    process: Child,
    crew: Crew,
    changes: tokio::signal::unix::Signal,
}

/// A change of CMD's state.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Change {
    /// It stopped by this signal, and may go on.
    Stopped(Signal),
    /// It ended by itself.
    Exited(u8),
    /// A signal ended it.
    Killed(Signal),
}

impl Change {
    fn of(status: &WaitIdStatus) -> Option<Self> {
        let known = |signal| Signal::try_from(signal).ok();
        let exited = status.exit_status().map(|code| Self::Exited((code & 0xff) as u8));
        let killed = || {
            status
                .terminating_signal()
                .map(|signal| known(signal).map_or(Self::Exited(exit::of_signal(signal)), Self::Killed))
        };
        let stopped = || status.stopping_signal().and_then(known).map(Self::Stopped);
        exited.or_else(killed).or_else(stopped)
    }

    /// Returns the exit code, if CMD ended.
    pub(crate) fn code(self) -> Option<u8> {
        match self {
            Self::Stopped(_) => None,
            Self::Exited(code) => Some(code),
            Self::Killed(signal) => Some(exit::of_signal(signal as i32)),
        }
    }
}

/// Facts about the lock that CMD gets in its environment.
pub(crate) struct LockFacts<'a> {
    pub(crate) name: &'a str,
    pub(crate) token: Token,
    pub(crate) floor: Token,
}

impl Job {
    /// Starts the process in a group of its own. It stops itself until [`go_on`](Self::go_on).
    pub(crate) fn start(command: &[OsString], facts: &LockFacts<'_>) -> io::Result<Self> {
        // Before the process exists, so that no change is missed.
        let changes = signal(SignalKind::child())?;
        // No two holds have the same token on one store, and no two processes the same id at a time.
        let mark = format!("{}-{}", facts.token, getpid());
        let outer = std::env::var(processes::MARK).map_or_else(|_| String::new(), |outer| outer + " ");
        let process = own_program()
            .arg(ROLE)
            .arg(getpid().to_string())
            .args(command)
            .env("LOCKKEEPER_NAME", facts.name)
            .env("LOCKKEEPER_TOKEN", facts.token.to_string())
            .env("LOCKKEEPER_FLOOR", facts.floor.to_string())
            .env(processes::MARK, outer + &mark)
            .process_group(0)
            .spawn()?;
        let pid = Pid::from_raw(i32::try_from(process.id()).map_err(io::Error::other)?);
        Ok(Self { process, crew: Crew { group: pid, mark }, changes })
    }

    /// Returns its process group, whose id is that of the process.
    pub(crate) fn group(&self) -> Pid {
        self.crew.group
    }

    /// Returns all processes of CMD.
    pub(crate) fn crew(&self) -> &Crew {
        &self.crew
    }

    /// Waits for the next change. Dropping the future loses nothing.
    pub(crate) async fn change(&mut self) -> Change {
        loop {
            if let Some(change) = self.look() {
                return change;
            }
            self.changes.recv().await;
        }
    }

    /// Returns a change that was not returned yet. An end is returned again and again: the process is not collected
    /// before [`collect`](Self::collect), so that its group's id cannot pass to strangers.
    fn look(&self) -> Option<Change> {
        let pid = rustix::process::Pid::from_child(&self.process);
        let wait = |options| waitid(WaitId::Pid(pid), options | WaitIdOptions::NOHANG).ok().flatten();
        let ended = wait(WaitIdOptions::EXITED | WaitIdOptions::NOWAIT);
        let stopped = || wait(WaitIdOptions::STOPPED);
        ended.and_then(|status| Change::of(&status)).or_else(|| Change::of(&stopped()?))
    }

    /// Waits until the new process is ready to become CMD; fails if it ended instead.
    pub(crate) async fn ready(&mut self) -> Result<(), Change> {
        match self.change().await {
            Change::Stopped(_) => Ok(()),
            ended => Err(ended),
        }
    }

    /// Lets the stopped process go on.
    pub(crate) fn go_on(&self) {
        // One that has ended needs nothing.
        let _ = killpg(self.group(), Signal::SIGCONT);
    }

    /// Collects the ended process.
    pub(crate) fn collect(mut self) {
        drop(self.process.wait());
    }
}

/// Waits for `lockkeeper run` and becomes CMD; returns the exit code if it cannot.
pub(crate) fn main(args: &[OsString]) -> u8 {
    let internal = "the process for CMD is started by `lockkeeper run` only; use that";
    let parent = args.first().and_then(|arg| arg.to_str()?.parse().ok()).map(Pid::from_raw);
    let (Some(parent), Some(program)) = (parent, args.get(1)) else {
        text::say(internal);
        return exit::INTERNAL;
    };
    if !wait_for_go(parent) {
        return exit::INTERNAL;
    }
    let error = Command::new(program).args(&args[2..]).exec();
    let program = program.to_string_lossy();
    if error.kind() == io::ErrorKind::NotFound {
        text::say(&format!("{program}: not found; check its name and PATH"));
        exit::NOT_FOUND
    } else {
        text::say(&format!("{program}: cannot be executed: {error}; check its permissions and format"));
        exit::NOT_EXECUTABLE
    }
}

/// Stops until `lockkeeper run` says so; false if that has died.
fn wait_for_go(parent: Pid) -> bool {
    #[cfg(target_os = "linux")]
    let die_with_parent = |signal: Option<Signal>| nix::sys::prctl::set_pdeathsig(signal).is_ok();
    #[cfg(not(target_os = "linux"))]
    let die_with_parent = |_: Option<Signal>| true;

    die_with_parent(Some(Signal::SIGKILL))
        && getppid() == parent
        && kill(getpid(), Signal::SIGSTOP).is_ok()
        && getppid() == parent
        && die_with_parent(None)
}

/// Returns the failure for a process that could not be started.
pub(crate) fn not_started(error: &io::Error) -> Failure {
    Failure::new(exit::INTERNAL, format!("cannot start a process: {error}; check the system's limits"))
}
