//! A disk that fails under one process: its system calls on files answer with an error, as they do when a disk is full,
//! broken or taken away. No other user of the same file notices.

use std::{
    io,
    process::{Child, Command, Stdio},
};

use rustix::process::{Pid, Signal};

/// A fault of a disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DiskFault {
    /// It has no room for new data.
    Full,
    /// It is broken or gone: nothing can be read, written or synced.
    Gone,
}

impl DiskFault {
    /// The words that make `strace` fail a process's calls, from the `from`th of each thread on. These are the
    /// calls that SQLite reads and writes with, and that nothing else in a worker uses.
    fn words(self, from: u64) -> [String; 7] {
        let (calls, error) = match self {
            Self::Full => ("pwrite64,ftruncate,fallocate", "ENOSPC"),
            Self::Gone => ("pread64,pwrite64,ftruncate,fdatasync,fsync", "EIO"),
        };
        let inject = format!("inject={calls}:error={error}:when={from}+");
        ["-f", "-qq", "-o", "/dev/null", "-e", &format!("trace={calls}"), &format!("--{inject}")]
            .map(str::to_owned)
    }
}

/// The disk is bad until this is dropped.
#[derive(Debug)]
pub(super) struct BadDisk(Child);

impl BadDisk {
    /// Breaks the disk of the process `pid`.
    pub(super) fn of(pid: Pid, fault: DiskFault, from: u64) -> io::Result<Self> {
        let mut command = Command::new("strace");
        command.args(fault.words(from)).args(["-p", &pid.as_raw_nonzero().to_string()]);
        command.stdin(Stdio::null()).spawn().map(Self)
    }

    /// Whether it has been bad all along; false if the process could not be reached, or has ended.
    pub(super) fn is_bad(&mut self) -> bool {
        matches!(self.0.try_wait(), Ok(None))
    }
}

impl Drop for BadDisk {
    fn drop(&mut self) {
        // Not killed: it takes its hands off the process first.
        if let Some(pid) = i32::try_from(self.0.id()).ok().and_then(Pid::from_raw) {
            rustix::process::kill_process(pid, Signal::TERM).ok();
        }
        self.0.wait().ok();
    }
}
