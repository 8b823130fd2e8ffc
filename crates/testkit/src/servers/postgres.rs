//! One PostgreSQL server, as the package `postgresql` of Debian has it (15). It writes every commit to disk before it
//! answers, as a server does by default.

use std::{
    fs, io,
    net::SocketAddr,
    os::unix::fs::{MetadataExt as _, chown},
    path::{Path, PathBuf},
    process::Command,
};

use rustix::process::{Pid, Signal};
use tempfile::TempDir;

use super::{Answer, Process, missing, program};
use crate::port::Port;

/// The owner of everything, which is also the name of the database.
const OWNER: &str = "lockkeeper";

/// Who the server runs as if this process belongs to root: the server refuses root.
const UNPRIVILEGED: &str = "postgres";

/// How a PostgreSQL server is set up. The default lets everybody of this machine in without a password.
#[derive(Clone, Debug, Default)]
pub struct PostgresOptions {
    password: Option<String>,
    settings: Vec<String>,
}

impl PostgresOptions {
    /// Everybody needs a password over TCP, and this is the owner's.
    #[must_use]
    pub fn password(mut self, password: &str) -> Self {
        self.password = Some(password.to_owned());
        self
    }

    /// One more line of its configuration, such as `max_connections = 10`.
    #[must_use]
    pub fn setting(mut self, line: impl Into<String>) -> Self {
        self.settings.push(line.into());
        self
    }

    /// Starts it.
    ///
    /// # Errors
    /// If it is not installed or does not get ready.
    pub fn start(self) -> io::Result<Postgres> {
        Postgres::start_with(self)
    }
}

/// How a server is told to end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PostgresEnd {
    /// It cuts all connections and writes everything down.
    Fast,
    /// It cuts all connections and writes nothing down: what a crash does. The next start recovers.
    Immediate,
}

/// A PostgreSQL server with a data folder of its own.
#[derive(Debug)]
pub struct Postgres {
    options: PostgresOptions,
    port: Port,
    programs: PathBuf,
    // Before the folder: it ends before its files are removed.
    process: Process,
    folder: TempDir,
}

impl Postgres {
    /// Starts one with the default options.
    ///
    /// # Errors
    /// If it is not installed or does not get ready.
    pub fn start() -> io::Result<Self> {
        Self::start_with(PostgresOptions::default())
    }

    fn start_with(options: PostgresOptions) -> io::Result<Self> {
        let (programs, port) = (programs()?, Port::free()?);
        let folder = tempfile::Builder::new().prefix("postgres-").tempdir()?;
        let user = User::of_server()?;
        user.take(folder.path())?;
        make_data(&programs, &folder.path().join("data"), &user)?;
        let process = Process::new(
            format!("PostgreSQL on port {}", port.number()),
            &programs.join("postgres"),
            folder.path().join("log"),
        )
        .privileges(user.privileges())
        .arguments(["-D".to_owned(), folder.path().join("data").display().to_string()]);
        let server = Self { options, port, programs, process, folder };
        server.write_settings()?;
        server.start_again()?;
        let password = server.options.password.as_ref();
        if let Some(password) = password {
            server.sql(&format!("ALTER ROLE {OWNER} PASSWORD '{}'", password.replace('\'', "''")))?;
        }
        Ok(server)
    }

    fn write_settings(&self) -> io::Result<()> {
        let data = self.folder.path().join("data");
        let mut lines = vec![
            format!("port = {}", self.port.number()),
            "listen_addresses = '127.0.0.1'".to_owned(),
            format!("unix_socket_directories = '{}'", self.folder.path().display()),
            "max_connections = 200".to_owned(),
            "shared_buffers = 32MB".to_owned(),
        ];
        lines.extend(self.options.settings.iter().cloned());
        fs::write(data.join("postgresql.auto.conf"), lines.join("\n") + "\n")?;
        let over_tcp = if self.options.password.is_some() { "scram-sha-256" } else { "trust" };
        fs::write(
            data.join("pg_hba.conf"),
            format!(
                "local all all trust\nlocal replication all trust\nhost all all 127.0.0.1/32 {over_tcp}\nhost \
                 replication all 127.0.0.1/32 trust\n"
            ),
        )
    }

    /// The lockkeeper URL of this server, as the owner of its database.
    pub fn url(&self) -> String {
        self.url_as(OWNER, self.options.password.as_deref())
    }

    /// The lockkeeper URL of this server, as another user.
    pub fn url_as(&self, user: &str, password: Option<&str>) -> String {
        let password = password.map(|password| format!(":{password}")).unwrap_or_default();
        format!("postgres://{user}{password}@{}/{OWNER}", self.address())
    }

    /// The lockkeeper URL of its unix socket.
    pub fn socket_url(&self) -> String {
        let folder = self.folder.path().display().to_string().replace('/', "%2F");
        format!("postgres://{OWNER}@{folder}:{}/{OWNER}", self.port.number())
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.port.address()
    }

    /// The folder of its unix socket, its log and its data.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The id of its first process, while it runs.
    pub fn id(&self) -> Option<u32> {
        self.process.id()
    }

    /// Runs SQL as the owner, and gives what it answers as text: a row per line, its columns with `|` between.
    ///
    /// # Errors
    /// If the server cannot be reached, or answers with an error.
    pub fn sql(&self, text: &str) -> io::Result<String> {
        let mut command = Command::new(self.programs.join("psql"));
        command.args(["--no-psqlrc", "--quiet", "--tuples-only", "--no-align", "--set", "ON_ERROR_STOP=1"]);
        command.arg("--host").arg(self.folder.path()).arg("--port").arg(self.port.number().to_string());
        let done = command.args(["--username", OWNER, "--dbname", OWNER, "--command", text]).output()?;
        if done.status.success() {
            return Ok(String::from_utf8_lossy(&done.stdout).trim_end().to_owned());
        }
        let why = String::from_utf8_lossy(&done.stderr);
        Err(io::Error::other(format!("{}: {text}: {}", self.address(), why.trim())))
    }

    /// Ends it, and returns when all its processes are gone.
    pub fn stop(&self, how: PostgresEnd) {
        self.resume();
        self.process.end(match how {
            PostgresEnd::Fast => Signal::INT,
            PostgresEnd::Immediate => Signal::QUIT,
        });
    }

    /// Starts it again after [`Self::stop`].
    ///
    /// # Errors
    /// If it does not start.
    pub fn start_again(&self) -> io::Result<()> {
        self.process.start()?;
        self.process.until_ready(|| {
            Ok(match self.ready() {
                Ok(()) => Answer::Yes,
                Err(error) => Answer::No(error.to_string()),
            })
        })
    }

    fn ready(&self) -> io::Result<()> {
        let made = self.sql("SELECT 1");
        match made {
            Err(error) if error.to_string().contains("does not exist") => self.make_database(),
            other => other.map(drop),
        }
    }

    fn make_database(&self) -> io::Result<()> {
        let mut command = Command::new(self.programs.join("createdb"));
        command.arg("--host").arg(self.folder.path()).arg("--port").arg(self.port.number().to_string());
        let done = command.args(["--username", OWNER, "--maintenance-db", "postgres", OWNER]).output()?;
        let why = || io::Error::other(String::from_utf8_lossy(&done.stderr).trim().to_owned());
        if done.status.success() { Ok(()) } else { Err(why()) }
    }

    /// Ends it and starts it again.
    ///
    /// # Errors
    /// If it does not start.
    pub fn restart(&self, how: PostgresEnd) -> io::Result<()> {
        self.stop(how);
        self.start_again()
    }

    /// Stops all its processes where they stand, with all their connections open (SIGSTOP).
    pub fn pause(&self) {
        self.signal_all(Signal::STOP);
    }

    /// Lets stopped processes go on (SIGCONT).
    pub fn resume(&self) {
        self.signal_all(Signal::CONT);
    }

    /// Each process of the server has a group of its own, so they are looked for by their parent.
    fn signal_all(&self, signal: Signal) {
        let Some(first) = self.id() else { return };
        for id in [first].into_iter().chain(children(first)) {
            if let Some(id) = i32::try_from(id).ok().and_then(Pid::from_raw) {
                // It may have ended by itself.
                rustix::process::kill_process(id, signal).ok();
            }
        }
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        self.stop(PostgresEnd::Immediate);
    }
}

/// The folder of the newest version that is installed.
fn programs() -> io::Result<PathBuf> {
    let installed = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().filter_map(Result::ok);
    let versions = installed.filter_map(|folder| folder.file_name().to_str()?.parse::<u32>().ok());
    let folder = |version: u32| PathBuf::from(format!("/usr/lib/postgresql/{version}/bin"));
    let mut whole: Vec<_> = versions.filter(|version| folder(*version).join("postgres").is_file()).collect();
    whole.sort_unstable();
    whole.last().map(|version| folder(*version)).ok_or_else(|| missing("postgres", "postgresql"))
}

fn make_data(programs: &Path, data: &Path, user: &User) -> io::Result<()> {
    let mut command = Command::new(program("setpriv", "util-linux")?);
    command.args(user.privileges()).arg("--").arg(programs.join("initdb"));
    // What it makes need not survive a crash of the machine. The server itself syncs, as it does by default.
    command.args(["--no-sync", "--no-instructions", "--auth", "trust", "--encoding", "UTF8"]);
    let done = command.args(["--locale", "C.UTF-8", "--username", OWNER, "--pgdata"]).arg(data).output()?;
    let why = || io::Error::other(format!("initdb: {}", String::from_utf8_lossy(&done.stderr).trim()));
    if done.status.success() { Ok(()) } else { Err(why()) }
}

/// The processes whose parent is this one.
fn children(parent: u32) -> Vec<u32> {
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

/// Who a server runs as.
struct User {
    /// The ids to change to; `None` if this process is unprivileged already.
    ids: Option<(u32, u32)>,
}

impl User {
    /// This process' own user, unless that is root.
    fn of_server() -> io::Result<Self> {
        if fs::metadata("/proc/self")?.uid() != 0 {
            return Ok(Self { ids: None });
        }
        let users = fs::read_to_string("/etc/passwd")?;
        let fields = users.lines().map(|line| line.split(':').collect::<Vec<_>>());
        let user = fields.into_iter().find(|fields| fields.first() == Some(&UNPRIVILEGED));
        let number = |at: usize| user.as_ref()?.get(at)?.parse::<u32>().ok();
        let ids = number(2).zip(number(3)).ok_or_else(|| missing("the user postgres", "postgresql"))?;
        Ok(Self { ids: Some(ids) })
    }

    /// Makes a folder of this process the server's.
    fn take(&self, folder: &Path) -> io::Result<()> {
        let Some((user, group)) = self.ids else { return Ok(()) };
        chown(folder, Some(user), Some(group))
    }

    /// The words that make `setpriv` run a program as this user.
    fn privileges(&self) -> Vec<String> {
        let Some((user, group)) = self.ids else { return Vec::new() };
        vec![format!("--reuid={user}"), format!("--regid={group}"), "--clear-groups".to_owned()]
    }
}
