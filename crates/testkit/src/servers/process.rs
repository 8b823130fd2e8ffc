//! One server process: in a group of its own, killed with the group when dropped, and also when this process
//! is killed. May be stopped, continued, killed and started again.

use std::{
    fs::{self, OpenOptions},
    io,
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{LazyLock, Mutex, MutexGuard, mpsc},
    thread,
};

use lockkeeper_core::support;
use rustix::process::{Pid, Signal};

use super::{Answer, clock, program, until, user::User};

/// A server's process, or the place for one: it can be killed and started again.
#[derive(Debug)]
pub struct Process {
    name: String,
    program: PathBuf,
    arguments: Vec<String>,
    environment: Vec<(String, String)>,
    privileges: Vec<String>,
    death_signal: &'static str,
    log: PathBuf,
    child: Mutex<Option<Child>>,
}

impl Process {
    /// A process that is to be started. Its output is added to the file `log`.
    pub(super) fn new(name: impl Into<String>, program: &Path, log: PathBuf) -> Self {
        Self {
            name: name.into(),
            program: program.to_owned(),
            arguments: Vec::new(),
            environment: Vec::new(),
            privileges: Vec::new(),
            death_signal: "KILL",
            log,
            child: Mutex::new(None),
        }
    }

    pub(super) fn arguments<S: Into<String>>(mut self, words: impl IntoIterator<Item = S>) -> Self {
        self.arguments.extend(words.into_iter().map(Into::into));
        self
    }

    pub(super) fn environment(mut self, variables: impl IntoIterator<Item = (String, String)>) -> Self {
        self.environment.extend(variables);
        self
    }

    /// It runs as this user.
    pub(super) fn user(mut self, user: User) -> Self {
        self.privileges = user.privileges();
        self
    }

    /// The signal that it gets when this process is killed, instead of KILL.
    pub(super) fn death_signal(mut self, name: &'static str) -> Self {
        self.death_signal = name;
        self
    }

    /// Starts it; it is not ready yet.
    ///
    /// # Errors
    /// If it runs already or cannot be started.
    pub(super) fn start(&self) -> io::Result<()> {
        let mut child = self.child();
        if child.is_some() {
            return Err(io::Error::other(format!("{} runs already", self.name)));
        }
        *child = Some(self.spawn()?);
        Ok(())
    }

    /// Waits until it is ready.
    ///
    /// # Errors
    /// If it ends by itself or never gets ready; with the end of its log.
    pub(super) fn until_ready(&self, mut ready: impl FnMut() -> io::Result<Answer>) -> io::Result<()> {
        let watched = until(&format!("{} gets ready", self.name), || {
            let ended = self.child().as_mut().and_then(|child| child.try_wait().transpose()).transpose()?;
            match ended {
                Some(status) => Err(io::Error::other(format!("{} ended: {status}", self.name))),
                None => ready(),
            }
        });
        watched.map_err(|error| io::Error::new(error.kind(), format!("{error}\n{}", self.end_of_log())))
    }

    fn spawn(&self) -> io::Result<Child> {
        let log = OpenOptions::new().create(true).append(true).open(&self.log)?;
        // The kernel signals it when the thread that started it ends, and that one ends with this process.
        let mut command = Command::new(program("setpriv", "util-linux")?);
        command.args(["--pdeathsig", self.death_signal]).args(&self.privileges);
        if !self.privileges.is_empty() {
            // Another user may not be able to enter the folder of this process.
            command.current_dir("/");
        }
        command.arg("--");
        if !self.environment.is_empty() {
            // For the program alone: a library that is loaded into `setpriv` would make files that belong to root.
            command.arg(program("env", "coreutils")?);
            command.args(self.environment.iter().map(|(name, value)| format!("{name}={value}")));
        }
        command.arg(&self.program).args(&self.arguments);
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log).process_group(0);
        spawn_from_a_lasting_thread(command)
    }

    /// The last lines that it printed.
    pub(super) fn end_of_log(&self) -> String {
        let log = fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<_> = log.lines().collect();
        lines[lines.len().saturating_sub(20)..].join("\n")
    }

    /// Stops it where it stands, with all its connections open (SIGSTOP).
    pub fn pause(&self) {
        self.signal(Signal::STOP);
    }

    /// Lets a stopped one go on (SIGCONT).
    pub fn resume(&self) {
        self.signal(Signal::CONT);
    }

    /// Kills it and its children at once (SIGKILL); it is gone on return.
    pub fn kill(&self) {
        self.signal(Signal::KILL);
        self.forget();
    }

    fn forget(&self) {
        if let Some(mut child) = self.child().take() {
            // It cannot be a failure: the child is ours and nobody else waits for it.
            drop(child.wait());
            clock::tidy_up(child.id());
        }
    }

    /// Sends it a signal that ends it in an orderly way, and kills it if that takes too long; it is gone on return.
    pub(super) fn end(&self, signal: Signal) {
        self.signal(signal);
        let what = format!("{} ends", self.name);
        let ended = until(&what, || {
            let status = self.child().as_mut().map(Child::try_wait).transpose()?;
            Ok(Answer::when(!matches!(status, Some(None)), "it runs"))
        });
        if ended.is_err() {
            self.signal(Signal::KILL);
        }
        self.forget();
    }

    /// Its process id, unless it was killed.
    pub fn id(&self) -> Option<u32> {
        self.child().as_ref().map(Child::id)
    }

    fn signal(&self, signal: Signal) {
        let group = self.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?));
        if let Some(group) = group {
            // It may have ended by itself.
            rustix::process::kill_process_group(group, signal).ok();
        }
    }

    fn child(&self) -> MutexGuard<'_, Option<Child>> {
        support::lock(&self.child)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Starts a command from a thread that ends only with this process: the order to die with one's parent means
/// the thread of the parent, and that of a test may end before the server should.
fn spawn_from_a_lasting_thread(command: Command) -> io::Result<Child> {
    type Order = (Command, mpsc::Sender<io::Result<Child>>);
    static ORDERS: LazyLock<mpsc::Sender<Order>> = LazyLock::new(|| {
        let (orders, taken) = mpsc::channel::<Order>();
        thread::spawn(move || {
            for (mut command, reply) in taken {
                reply.send(command.spawn()).ok();
            }
        });
        orders
    });
    let gone = |_| io::Error::other("the thread that starts servers is gone");
    let (reply, child) = mpsc::channel();
    ORDERS.send((command, reply)).map_err(|_| gone(mpsc::RecvError))?;
    child.recv().map_err(gone)?
}

/// The processes whose parent is this one.
pub(super) fn children(parent: u32) -> Vec<u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().filter_map(Result::ok);
    let ids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let is_child = |id: &u32| {
        let stat = fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
        // The name of the program is in brackets and may hold anything; its state and its parent follow.
        let fields = stat.rsplit_once(')').map(|(_, rest)| rest).unwrap_or_default();
        fields.split_ascii_whitespace().nth(1).and_then(|word| word.parse().ok()) == Some(parent)
    };
    ids.filter(is_child).collect()
}

/// Sends one process a signal.
pub(super) fn signal(id: u32, which: Signal) {
    if let Some(id) = i32::try_from(id).ok().and_then(Pid::from_raw) {
        // It may have ended by itself.
        rustix::process::kill_process(id, which).ok();
    }
}

/// Whether this process has not ended.
pub(super) fn runs(id: u32) -> bool {
    // One that has ended and that nobody has waited for has no command line.
    fs::read(format!("/proc/{id}/cmdline")).is_ok_and(|words| !words.is_empty())
}
