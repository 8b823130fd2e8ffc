//! One PostgreSQL server, as the package `postgresql` of Debian has it (15). It writes every commit to disk before it
//! answers, as a server does by default.

use std::{
    fs, io,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::Command,
};

use rustix::process::Signal;
use tempfile::TempDir;

use super::{
    Answer, Certificates, Process,
    postgres_data::{self, OWNER, SETTINGS, programs},
    process::{children, runs, signal},
    until,
    user::User,
};
use crate::port::Port;

/// The setup of a PostgreSQL server. The default lets everybody of this machine in without a password.
#[derive(Clone, Debug, Default)]
pub struct PostgresOptions {
    password: Option<String>,
    tls: bool,
    settings: Vec<String>,
}

impl PostgresOptions {
    /// Demands a password of everybody over TCP. This one is the owner's.
    #[must_use]
    pub fn password(mut self, password: &str) -> Self {
        self.password = Some(password.to_owned());
        self
    }

    /// It takes TLS only over TCP, and asks clients for a certificate of the same authority.
    #[must_use]
    pub fn tls(mut self) -> Self {
        self.tls = true;
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

/// The way in which a server is told to end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PostgresEnd {
    /// It cuts all connections and writes everything down.
    Fast,
    /// It cuts all connections and writes nothing down, as in a crash. The next start recovers.
    Immediate,
}

/// A PostgreSQL server with a data folder of its own.
#[derive(Debug)]
pub struct Postgres {
    options: PostgresOptions,
    port: Port,
    pub(super) programs: PathBuf,
    pub(super) user: User,
    certificates: Option<Certificates>,
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
        let mut server = Self::without_data(options)?;
        if server.options.tls {
            server.certificates = Some(Certificates::make(server.folder())?);
        }
        server.start_empty()?;
        Ok(server)
    }

    /// Starts it with a new database.
    fn start_empty(&self) -> io::Result<()> {
        postgres_data::make(&self.programs, &self.data(), self.user)?;
        self.configure_and_start()?;
        if let Some(password) = &self.options.password {
            self.sql(&format!("ALTER ROLE {OWNER} PASSWORD '{}'", password.replace('\'', "''")))?;
        }
        Ok(())
    }

    /// A server that cannot be started yet.
    fn without_data(options: PostgresOptions) -> io::Result<Self> {
        let (programs, port, user) = (programs()?, Port::free()?, User::of_server()?);
        let folder = user.folder("lockkeeper-postgres-")?;
        let data = folder.path().join("data").display().to_string();
        let process = Process::new(
            format!("PostgreSQL on port {}", port.number()),
            &programs.join("postgres"),
            folder.path().join("log"),
        )
        .user(user)
        // An immediate end. A server that is killed leaves its shared memory behind.
        .death_signal("QUIT")
        .arguments(["-D".to_owned(), data]);
        Ok(Self { options, port, programs, user, certificates: None, process, folder })
    }

    /// A server like this one that has the certificates of this one, but no data yet.
    pub(super) fn sibling(&self) -> io::Result<Self> {
        let mut sibling = Self::without_data(self.options.clone())?;
        sibling.certificates =
            self.certificates.as_ref().map(|made| made.copy(sibling.folder())).transpose()?;
        Ok(sibling)
    }

    /// Starts it for the first time, when it has data.
    pub(super) fn configure_and_start(&self) -> io::Result<()> {
        self.write_settings()?;
        self.write_access()?;
        self.start_again()
    }

    fn write_settings(&self) -> io::Result<()> {
        let mut lines = vec![
            format!("port = {}", self.port.number()),
            "listen_addresses = '127.0.0.1'".to_owned(),
            format!("unix_socket_directories = '{}'", self.folder().display()),
            "max_connections = 200".to_owned(),
            "shared_buffers = 32MB".to_owned(),
            // In the data folder, which is removed also if the server was killed.
            "dynamic_shared_memory_type = mmap".to_owned(),
        ];
        if let Some(made) = &self.certificates {
            let (certificate, key) = made.server();
            // It reads no key that belongs to somebody else.
            self.user.take(&key)?;
            let files = [("ca", made.authority()), ("cert", certificate), ("key", key)];
            lines.extend(files.map(|(what, file)| format!("ssl_{what}_file = '{}'", file.display())));
            lines.push("ssl = on".to_owned());
        }
        lines.extend(self.options.settings.iter().cloned());
        self.user.write(&self.data().join(SETTINGS), &(lines.join("\n") + "\n"))
    }

    /// Writes the server's rules for logins.
    fn write_access(&self) -> io::Result<()> {
        let (kind, certificate) = match self.certificates {
            None => ("host", ""),
            Some(_) => ("hostssl", " clientcert=verify-ca"),
        };
        let login = if self.options.password.is_some() { "scram-sha-256" } else { "trust" };
        let lines = [
            "local all all trust".to_owned(),
            "local replication all trust".to_owned(),
            format!("{kind} all all 127.0.0.1/32 {login}{certificate}"),
            format!("{kind} replication all 127.0.0.1/32 trust{certificate}"),
        ];
        self.user.write(&self.data().join("pg_hba.conf"), &(lines.join("\n") + "\n"))
    }

    /// The lockkeeper URL of this server, as the owner of its database.
    pub fn url(&self) -> String {
        self.url_as(OWNER, self.options.password.as_deref())
    }

    /// The lockkeeper URL of this server, as another user.
    pub fn url_as(&self, user: &str, password: Option<&str>) -> String {
        let url = url(user, password, self.address());
        let Some(made) = &self.certificates else { return url };
        let (ca, (cert, key)) = (made.authority(), made.client());
        let (ca, cert, key) = (ca.display(), cert.display(), key.display());
        format!("{url}?sslmode=verify-full&sslrootcert={ca}&sslcert={cert}&sslkey={key}")
    }

    /// The lockkeeper URL of its unix socket.
    pub fn socket_url(&self) -> String {
        let folder = self.folder().display().to_string().replace('/', "%2F");
        format!("postgres://{OWNER}@{folder}:{}/{OWNER}", self.port.number())
    }

    /// The address that it listens on.
    pub fn address(&self) -> SocketAddr {
        self.port.address()
    }

    /// The folder of its unix socket, its log and its data.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub(super) fn data(&self) -> PathBuf {
        self.folder().join("data")
    }

    pub(super) fn password(&self) -> Option<&str> {
        self.options.password.as_deref()
    }

    /// The certificates for TLS, if it was asked for.
    pub fn certificates(&self) -> Option<&Certificates> {
        self.certificates.as_ref()
    }

    /// The id of its first process, while it runs.
    pub fn id(&self) -> Option<u32> {
        self.process.id()
    }

    /// Runs SQL as the owner, and gives the answer as text: a row per line, its columns with `|` between.
    ///
    /// # Errors
    /// If the server cannot be reached, or answers with an error.
    pub fn sql(&self, text: &str) -> io::Result<String> {
        let mut command = Command::new(self.programs.join("psql"));
        command.args(["--no-psqlrc", "--quiet", "--tuples-only", "--no-align", "--set", "ON_ERROR_STOP=1"]);
        command.args(self.by_socket()).args(["--dbname", OWNER, "--command", text]);
        let done = command.output()?;
        if done.status.success() {
            return Ok(String::from_utf8_lossy(&done.stdout).trim_end().to_owned());
        }
        let why = String::from_utf8_lossy(&done.stderr);
        Err(io::Error::other(format!("{}: {text}: {}", self.address(), why.trim())))
    }

    /// The words that make a program of PostgreSQL connect to this server as the owner.
    pub(super) fn by_socket(&self) -> Vec<String> {
        let (folder, port) = (self.folder().display(), self.port.number());
        vec![format!("--host={folder}"), format!("--port={port}"), format!("--username={OWNER}")]
    }

    /// Ends it, and returns when all its processes are gone.
    pub fn stop(&self, how: PostgresEnd) {
        self.resume();
        self.process.end(match how {
            PostgresEnd::Fast => Signal::INT,
            PostgresEnd::Immediate => Signal::QUIT,
        });
    }

    /// Kills all its processes at once (SIGKILL), and returns when they are gone.
    pub fn kill(&self) {
        let Some(first) = self.id() else { return };
        // A stopped server cannot start another process, or tell one to end in an orderly way.
        self.pause();
        let others = children(first);
        for id in &others {
            signal(*id, Signal::KILL);
        }
        self.process.kill();
        // A new server refuses to start while they run.
        let ended = || Ok(Answer::when(!others.iter().any(|id| runs(*id)), "they run"));
        until("all processes of PostgreSQL end", ended).ok();
    }

    /// Starts it again after [`Self::stop`] or [`Self::kill`].
    ///
    /// # Errors
    /// If it does not start.
    pub fn start_again(&self) -> io::Result<()> {
        self.process.start()?;
        self.process.until_ready(|| {
            Ok(match self.sql("SELECT 1") {
                Ok(_) => Answer::Yes,
                Err(error) => Answer::No(error.to_string()),
            })
        })
    }

    /// Ends it and starts it again.
    ///
    /// # Errors
    /// If it does not start.
    pub fn restart(&self, how: PostgresEnd) -> io::Result<()> {
        self.stop(how);
        self.start_again()
    }

    /// Ends it and starts it again with no data at all.
    ///
    /// # Errors
    /// If its folder cannot be emptied or it does not start.
    pub fn restart_empty(&self) -> io::Result<()> {
        self.stop(PostgresEnd::Immediate);
        fs::remove_dir_all(self.data())?;
        self.start_empty()
    }

    /// Stops all its processes where they stand, with all their connections open (SIGSTOP).
    pub fn pause(&self) {
        self.signal_all(Signal::STOP);
    }

    /// Lets stopped processes go on (SIGCONT).
    pub fn resume(&self) {
        self.signal_all(Signal::CONT);
    }

    /// Signals all processes of the server. Each has a group of its own, so they are looked for by their parent. The
    /// parent gets its signal first: a stopped one starts no more of them.
    fn signal_all(&self, which: Signal) {
        let Some(first) = self.id() else { return };
        signal(first, which);
        for id in children(first) {
            signal(id, which);
        }
    }

    /// Removes the shared memory of a server that was killed and not started again. Its file says which it was.
    fn remove_shared_memory(&self) {
        let facts = fs::read_to_string(self.data().join("postmaster.pid")).unwrap_or_default();
        if let Some(id) = facts.lines().nth(6).and_then(|ids| ids.split_whitespace().nth(1)) {
            Command::new("ipcrm").args(["-m", id]).output().ok();
        }
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        self.stop(PostgresEnd::Immediate);
        self.remove_shared_memory();
    }
}

/// The URL of the database for this user at this address.
pub(super) fn url(user: &str, password: Option<&str>, address: SocketAddr) -> String {
    let password = password.map(|password| format!(":{password}")).unwrap_or_default();
    format!("postgres://{user}{password}@{address}/{OWNER}")
}
