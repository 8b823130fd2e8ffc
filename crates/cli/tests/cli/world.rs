//! A folder of its own for each test, the command in it, and processes that end with the test.

use std::{
    fs,
    io::Write,
    path::PathBuf,
    process::{Child, Command, Output, Stdio},
    sync::Once,
    time::{Duration, Instant},
};

use nix::{sys::signal::Signal, unistd::Pid};
use tokio::signal::unix::{SignalKind, signal};

/// How long anything may take before a test fails. Only a failing test waits so long.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

/// A folder with a store, gone when dropped.
pub(crate) struct World {
    folder: tempfile::TempDir,
}

/// The exit code and the output of a finished command.
#[derive(Debug)]
pub(crate) struct Done {
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl From<Output> for Done {
    fn from(output: Output) -> Self {
        Self {
            code: output.status.code(),
            out: String::from_utf8_lossy(&output.stdout).into_owned(),
            err: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}

impl World {
    pub(crate) fn new() -> Self {
        catch_what_is_ignored();
        Self { folder: tempfile::tempdir().expect("a temporary folder") }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Writes a file that only this user may read.
    pub(crate) fn write_private(&self, name: &str, text: &str) {
        use std::{io::Write as _, os::unix::fs::OpenOptionsExt as _};
        let mut options = fs::OpenOptions::new();
        let file = options.create(true).truncate(true).write(true).mode(0o600).open(self.path(name));
        file.expect("made").write_all(text.as_bytes()).expect("written");
    }

    pub(crate) fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap_or_default()
    }

    /// Waits until the file has a line of text in it.
    pub(crate) fn line(&self, name: &str) -> String {
        eventually(name, || Some(self.read(name)).filter(|text| text.ends_with('\n'))).trim().to_owned()
    }

    /// Returns the command `program`, which works in the folder with the folder's store.
    pub(crate) fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command
            .current_dir(self.folder.path())
            .env("LOCKKEEPER_STORE", format!("sqlite:{}", self.path("locks.db").display()))
            .env("L", env!("CARGO_BIN_EXE_lockkeeper"))
            .env("HOME", self.folder.path())
            .env_remove("XDG_STATE_HOME")
            .stdin(Stdio::null());
        command
    }

    pub(crate) fn lockkeeper(&self, args: &[&str]) -> Command {
        let mut command = self.command(env!("CARGO_BIN_EXE_lockkeeper"));
        command.args(args);
        command
    }

    /// Runs the command to its end.
    pub(crate) fn run(&self, args: &[&str]) -> Done {
        Running::spawn(self.lockkeeper(args)).done()
    }

    /// Runs the command with `input` on its stdin.
    pub(crate) fn run_with(&self, args: &[&str], input: &str) -> Done {
        let mut command = self.lockkeeper(args);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("the command starts");
        child.stdin.take().expect("piped").write_all(input.as_bytes()).expect("it reads");
        child.wait_with_output().expect("it ends").into()
    }

    /// Starts the command in a process group of its own, as a shell does.
    pub(crate) fn start(&self, args: &[&str]) -> Running {
        Running::spawn(self.lockkeeper(args))
    }

    /// Starts `lockkeeper run NAME OPTIONS -- sh -c SCRIPT`.
    pub(crate) fn start_run(&self, options: &[&str], script: &str) -> Running {
        let mut args = vec!["run"];
        args.extend(options);
        args.extend(["--", "sh", "-c", script]);
        self.start(&args)
    }

    /// Returns the object that `show --json` prints.
    pub(crate) fn show(&self, name: &str) -> serde_json::Value {
        let done = self.run(&["show", name, "--json"]);
        serde_json::from_str(&done.out).unwrap_or_else(|error| panic!("{error}: {done:?}"))
    }

    pub(crate) fn holders(&self, name: &str) -> usize {
        self.show(name)["holders"].as_array().map_or(0, Vec::len)
    }

    pub(crate) fn waiters(&self, name: &str) -> usize {
        self.show(name)["waiters"].as_array().map_or(0, Vec::len)
    }
}

/// Catches the signals that this process ignores. The tests may have been started with some ignored, as under `nohup`
/// or as a background job of a script. An ignored signal stays ignored in every new process. One that is caught does
/// not: there it has its usual action, from the first moment on.
fn catch_what_is_ignored() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap_or("0").trim();
        let mask = u64::from_str_radix(mask, 16).expect("a mask");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let _entered = runtime.enter();
        for ignored in Signal::iterator().filter(|signal| mask & (1 << (*signal as i32 - 1)) != 0) {
            // The handler stays when its stream is dropped.
            drop(signal(SignalKind::from_raw(ignored as i32)).expect("a signal that can be caught"));
        }
    });
}

/// A process that is killed, with its group, when the test forgets it.
pub(crate) struct Running {
    child: Child,
}

impl Running {
    pub(crate) fn spawn(mut command: Command) -> Self {
        use std::os::unix::process::CommandExt;
        command.process_group(0).stdout(Stdio::piped()).stderr(Stdio::piped());
        Self { child: command.spawn().expect("the command starts") }
    }

    pub(crate) fn pid(&self) -> Pid {
        Pid::from_raw(self.child.id() as i32)
    }

    /// Returns its stdout, to be read while it runs.
    #[cfg(feature = "serve")]
    pub(crate) fn stdout(&mut self) -> &mut std::process::ChildStdout {
        self.child.stdout.as_mut().expect("piped")
    }

    pub(crate) fn signal(&self, signal: Signal) {
        nix::sys::signal::kill(self.pid(), signal).expect("it lives");
    }

    /// Waits for its end, and returns its output.
    pub(crate) fn done(mut self) -> Done {
        use std::io::Read;
        let status = eventually("the end of a process", || self.child.try_wait().expect("our child"));
        let mut done = Done { code: status.code(), out: String::new(), err: String::new() };
        self.child.stdout.take().expect("piped").read_to_string(&mut done.out).expect("text");
        self.child.stderr.take().expect("piped").read_to_string(&mut done.err).expect("text");
        done
    }

    /// Returns the pids of its child processes whose command line holds `word`.
    pub(crate) fn children(&self, word: &str) -> Vec<Pid> {
        let list = Command::new("ps").args(["-o", "pid=,args=", "--ppid", &self.pid().to_string()]).output();
        let list = String::from_utf8_lossy(&list.expect("ps runs").stdout).into_owned();
        let wanted = list.lines().filter(|line| line.contains(word));
        wanted.filter_map(|line| line.split_whitespace().next()?.parse().ok()).map(Pid::from_raw).collect()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            // The guardian then ends the rest.
            drop(self.child.kill());
            drop(self.child.wait());
        }
    }
}

/// Asks until there is an answer.
pub(crate) fn eventually<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(start.elapsed() < LIMIT, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Whether a process of the group lives, by the system's own list.
pub(crate) fn group_lives(group: &str) -> bool {
    let list = Command::new("ps").args(["-eo", "pgid=,stat="]).output().expect("ps runs");
    String::from_utf8_lossy(&list.stdout).lines().any(|line| {
        let mut fields = line.split_whitespace();
        fields.next() == Some(group) && !fields.next().unwrap_or("Z").starts_with('Z')
    })
}

/// Keeps the whole store busy while it lives, as a disk that hangs would.
pub(crate) struct Blocked(rusqlite::Connection);

impl Blocked {
    pub(crate) fn new(world: &World) -> Self {
        let connection = rusqlite::Connection::open(world.path("locks.db")).expect("the store's file");
        connection.busy_timeout(Duration::from_secs(10)).expect("set");
        connection.execute_batch("BEGIN IMMEDIATE").expect("begun");
        Self(connection)
    }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        self.0.execute_batch("ROLLBACK").expect("ended");
    }
}
