//! The terminal: lent to CMD's process group while it runs in the foreground, and taken back.

use std::{fs::File, io::IsTerminal};

use nix::{
    sys::{
        signal::{SigSet, Signal, kill},
        termios::{SetArg, Termios, tcgetattr, tcsetattr},
    },
    unistd::{Pid, getpgrp, tcgetpgrp, tcsetpgrp},
};

/// The terminal that controls this session, if there is one.
pub(crate) struct Terminal {
    device: Option<File>,
    own: Pid,
    modes: Option<Termios>,
    /// Whether CMD should have it whenever we may lend it.
    wanted: bool,
}

impl Terminal {
    /// Returns the terminal as it is before CMD starts.
    pub(crate) fn find() -> Self {
        let device = File::open("/dev/tty").ok();
        let modes = device.as_ref().and_then(|device| tcgetattr(device).ok());
        // In a pipeline the terminal may belong to another part of it, such as a pager; then CMD
        // gets it only when it asks for it.
        let wanted = std::io::stdin().is_terminal() && std::io::stdout().is_terminal();
        Self { device, own: getpgrp(), modes, wanted }
    }

    /// Whether there is a terminal, and so perhaps a shell that continues stopped jobs.
    pub(crate) fn is_there(&self) -> bool {
        self.device.is_some()
    }

    fn has(&self, group: Pid) -> bool {
        self.device.as_ref().is_some_and(|device| tcgetpgrp(device) == Ok(group))
    }

    /// Makes `group` the foreground group, if CMD wants that and we are the foreground now.
    pub(crate) fn lend(&self, group: Pid) {
        if self.wanted && self.has(self.own) {
            self.give(group);
        }
    }

    /// Lends the terminal to a CMD that stopped because it used it in the background. True if CMD has it now.
    pub(crate) fn lend_on_demand(&mut self, group: Pid) -> bool {
        self.wanted = true;
        self.lend(group);
        self.has(group)
    }

    /// Becomes the foreground group again, if `group` is it. True if it was.
    pub(crate) fn take_back(&self, group: Pid) -> bool {
        let lent = self.has(group);
        if lent {
            self.give(self.own);
        }
        lent
    }

    /// Restores modes that a killed CMD left changed, such as no echo.
    pub(crate) fn restore_modes(&self) {
        if let (Some(device), Some(modes)) = (&self.device, &self.modes)
            && self.has(self.own)
        {
            // Of no use if the terminal is gone.
            let _ = tcsetattr(device, SetArg::TCSADRAIN, modes);
        }
    }

    /// Makes `group` the foreground group. From the background this raises SIGTTOU, which would stop us unless blocked.
    /// New processes inherit the mask, so only a thread that starts none has it.
    fn give(&self, group: Pid) {
        let Some(device) = &self.device else { return };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut mask = SigSet::empty();
                mask.add(Signal::SIGTTOU);
                if mask.thread_block().is_ok() {
                    // The group may have ended, or the terminal be gone.
                    let _ = tcsetpgrp(device, group);
                }
            });
        });
    }

    /// Stops this job as the terminal's stop key does, so that the shell takes over; returns
    /// when it is continued. Without a shell that could continue it, the system does nothing.
    pub(crate) fn stop_job() {
        let _ = kill(Pid::from_raw(0), Signal::SIGTSTP);
    }
}
