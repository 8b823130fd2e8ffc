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
    /// The terminal as it is before CMD starts.
    pub(crate) fn find() -> Self {
        let device = File::open("/dev/tty").ok();
        let modes = device.as_ref().and_then(|device| tcgetattr(device).ok());
        // In a pipeline the terminal may belong to another part of it, such as a pager; then CMD
        // gets it only when it asks for it.
        let wanted = std::io::stdin().is_terminal() && std::io::stdout().is_terminal();
        Self { device, own: getpgrp(), modes, wanted }
    }

    /// Whether there is one, and so perhaps a shell that continues what was stopped.
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

    /// CMD stopped because it used the terminal in the background. True if it has it now.
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

    /// Undoes what a killed CMD left behind, such as no echo.
    pub(crate) fn restore_modes(&self) {
        if let (Some(device), Some(modes)) = (&self.device, &self.modes)
            && self.has(self.own)
        {
            // Of no use if the terminal is gone.
            let _ = tcsetattr(device, SetArg::TCSADRAIN, modes);
        }
    }

    /// From the background this raises SIGTTOU, which would stop us unless blocked. A mask is
    /// inherited by new processes, so only a thread that starts none has it.
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
