//! A pseudo-terminal with a program in it, typed to and read from as a person would.

use std::{
    fs::File,
    io::{Read, Write},
    os::fd::OwnedFd,
    process::{Child, Command},
    sync::{Arc, Mutex},
};

use nix::pty::{Winsize, openpty};

use crate::world::eventually;

/// The terminal, seen from the person's side.
pub(crate) struct Screen {
    child: Child,
    keys: File,
    seen: Arc<Mutex<Vec<u8>>>,
}

impl Screen {
    /// Starts `command` as the first process of a session with this terminal.
    pub(crate) fn start(command: &Command) -> Self {
        let size = Winsize { ws_row: 24, ws_col: 160, ws_xpixel: 0, ws_ypixel: 0 };
        let pty = openpty(Some(&size), None).expect("a pseudo-terminal");
        let end = || pty.slave.try_clone().expect("a second handle");
        let mut session = Command::new("setsid");
        session.args(["--ctty", "--wait"]).arg(command.get_program()).args(command.get_args());
        if let Some(folder) = command.get_current_dir() {
            session.current_dir(folder);
        }
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => session.env(name, value),
                None => session.env_remove(name),
            };
        }
        session.env("TERM", "xterm").stdin(end()).stdout(end()).stderr(end());
        let child = session.spawn().expect("setsid runs");
        drop(session);
        drop(pty.slave);
        let seen = Arc::default();
        read_along(pty.master.try_clone().expect("a second handle"), Arc::clone(&seen));
        Self { child, keys: File::from(pty.master), seen }
    }

    pub(crate) fn keys(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).expect("the terminal takes keys");
    }

    /// Returns all text shown so far.
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.seen.lock().expect("not poisoned")).into_owned()
    }

    /// Waits until `text` has been shown.
    pub(crate) fn expect(&self, text: &str) {
        eventually(&format!("{text:?} in {:?}", self.text()), || self.text().contains(text).then_some(()));
    }

    /// Waits for the end of the program.
    pub(crate) fn code(&mut self) -> Option<i32> {
        eventually("the end of the session", || self.child.try_wait().expect("our child")).code()
    }
}

/// Reads until the terminal is gone; otherwise programs would wait for their output to be read.
fn read_along(master: OwnedFd, seen: Arc<Mutex<Vec<u8>>>) {
    let mut master = File::from(master);
    std::thread::spawn(move || {
        let mut buffer = [0; 4096];
        while let Ok(count) = master.read(&mut buffer) {
            if count == 0 {
                return;
            }
            seen.lock().expect("not poisoned").extend(&buffer[..count]);
        }
    });
}

impl Drop for Screen {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            drop(self.child.kill());
            drop(self.child.wait());
        }
    }
}
