//! One MariaDB server, as the package `mariadb-server` of Debian has it (10.11). It writes every commit to disk before
//! it answers, as a server does by default.

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
    clock::WallClock,
    program, template,
    user::{User, run},
};
use crate::port::Port;

pub(super) const PACKAGE: &str = "mariadb-server";
const SERVER: &str = "mariadbd";

/// The owner of everything, which is also the name of the database.
pub(super) const OWNER: &str = "lockkeeper";

/// The setup of a MariaDB server. The default lets everybody of this machine in without a password.
#[derive(Clone, Debug, Default)]
pub struct MariaDbOptions {
    password: Option<String>,
    tls: bool,
    movable_clock: bool,
    binary_log: bool,
    settings: Vec<String>,
}

impl MariaDbOptions {
    /// The owner needs this password.
    #[must_use]
    pub fn password(mut self, password: &str) -> Self {
        self.password = Some(password.to_owned());
        self
    }

    /// It takes TLS only over TCP, and asks the owner for a certificate of the same authority.
    #[must_use]
    pub fn tls(mut self) -> Self {
        self.tls = true;
        self
    }

    /// Its wall clock can be moved: [`MariaDb::shift_clock`].
    #[must_use]
    pub fn movable_clock(mut self) -> Self {
        self.movable_clock = true;
        self
    }

    /// It keeps a binary log, which replicas follow: [`MariaDb::replica`]. A commit is on disk in that log, too.
    #[must_use]
    pub fn binary_log(mut self) -> Self {
        self.binary_log = true;
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
    pub fn start(self) -> io::Result<MariaDb> {
        MariaDb::start_with(self)
    }
}

/// A MariaDB server with a data folder of its own.
#[derive(Debug)]
pub struct MariaDb {
    options: MariaDbOptions,
    port: Port,
    server: PathBuf,
    client: PathBuf,
    user: User,
    clock: Option<WallClock>,
    certificates: Option<Certificates>,
    // Before the folder: it ends before its files are removed.
    process: Process,
    folder: TempDir,
}

impl MariaDb {
    /// Starts one with the default options.
    ///
    /// # Errors
    /// If it is not installed or does not get ready.
    pub fn start() -> io::Result<Self> {
        Self::start_with(MariaDbOptions::default())
    }

    fn start_with(options: MariaDbOptions) -> io::Result<Self> {
        let mut server = Self::without_data(options)?;
        if server.options.tls {
            server.certificates = Some(Certificates::make(server.folder())?);
        }
        server.start_empty()?;
        Ok(server)
    }

    /// A server that cannot be started yet.
    fn without_data(options: MariaDbOptions) -> io::Result<Self> {
        let (server, client) = (program(SERVER, PACKAGE)?, program("mariadb", PACKAGE)?);
        let (port, user) = (Port::free()?, User::of_server()?);
        let folder = user.folder("lockkeeper-mariadb-")?;
        let clock = options.movable_clock.then(|| WallClock::new(folder.path())).transpose()?;
        let name = format!("MariaDB on port {}", port.number());
        let process = Process::new(name, &server, folder.path().join("log"))
            .user(user)
            .arguments([format!("--defaults-file={}", folder.path().join("my.cnf").display())])
            .environment(clock.iter().flat_map(WallClock::environment));
        Ok(Self { options, port, server, client, user, clock, certificates: None, process, folder })
    }

    /// Whether others can follow it.
    pub(super) fn has_binary_log(&self) -> bool {
        self.options.binary_log
    }

    /// A server like this one that has the certificates of this one, but no data yet.
    pub(super) fn sibling(&self) -> io::Result<Self> {
        let mut sibling = Self::without_data(self.options.clone())?;
        sibling.certificates =
            self.certificates.as_ref().map(|made| made.copy(sibling.folder())).transpose()?;
        Ok(sibling)
    }

    /// Starts it with no data but its owner.
    pub(super) fn start_empty(&self) -> io::Result<()> {
        make_data(&self.server, &self.folder().join("data"), self.user)?;
        self.write_settings()?;
        self.start_again()?;
        self.make_owner()
    }

    fn write_settings(&self) -> io::Result<()> {
        let folder = self.folder().display();
        let mut lines = vec![
            "[mariadbd]".to_owned(),
            format!("datadir = {folder}/data"),
            format!("tmpdir = {folder}"),
            format!("pid_file = {folder}/pid"),
            format!("socket = {}", self.socket().display()),
            format!("port = {}", self.port.number()),
            "bind_address = 127.0.0.1".to_owned(),
            "skip_name_resolve".to_owned(),
            "max_connections = 200".to_owned(),
            "innodb_buffer_pool_size = 32M".to_owned(),
        ];
        if let Some(made) = &self.certificates {
            let (certificate, key) = made.server();
            self.user.take(&key)?;
            let files = [("ca", made.authority()), ("cert", certificate), ("key", key)];
            lines.extend(files.map(|(what, file)| format!("ssl_{what} = {}", file.display())));
            lines.push("require_secure_transport = ON".to_owned());
        }
        if self.options.binary_log {
            lines.push(format!("server_id = {}", self.port.number()));
            let log = ["log_bin = binary", "sync_binlog = 1", "log_slave_updates", "gtid_strict_mode"];
            lines.extend(log.map(str::to_owned));
        }
        lines.extend(self.options.settings.iter().cloned());
        self.user.write(&self.folder().join("my.cnf"), &(lines.join("\n") + "\n"))
    }

    /// Makes the database and its owner, which may do everything. After this, `root` is let in by the socket only.
    fn make_owner(&self) -> io::Result<()> {
        let password =
            self.options.password.as_deref().unwrap_or_default().replace('\\', "\\\\").replace('\'', "''");
        let require = if self.options.tls { "X509" } else { "NONE" };
        let statements = format!(
            "CREATE DATABASE {OWNER}; CREATE USER {OWNER}@'%' IDENTIFIED BY '{password}' REQUIRE {require}; GRANT ALL \
             ON *.* TO {OWNER}@'%' WITH GRANT OPTION; DROP USER IF EXISTS root@'127.0.0.1', root@'::1'"
        );
        self.ask(None, &statements).map(drop)
    }

    /// The lockkeeper URL of this server, as the owner of its database.
    pub fn url(&self) -> String {
        self.url_as(OWNER, self.options.password.as_deref())
    }

    /// The lockkeeper URL of this server, as another user.
    pub fn url_as(&self, user: &str, password: Option<&str>) -> String {
        let password = password.map(|password| format!(":{password}")).unwrap_or_default();
        let url = format!("mysql://{user}{password}@{}/{OWNER}", self.address());
        let Some(made) = &self.certificates else { return url };
        let (ca, (cert, key)) = (made.authority(), made.client());
        let (ca, cert, key) = (ca.display(), cert.display(), key.display());
        format!("{url}?ssl-mode=verify_identity&ssl-ca={ca}&ssl-cert={cert}&ssl-key={key}")
    }

    /// The address that it listens on.
    pub fn address(&self) -> SocketAddr {
        self.port.address()
    }

    /// Its unix socket.
    pub fn socket(&self) -> PathBuf {
        self.folder().join("socket")
    }

    /// The folder of its unix socket, its log and its data.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The certificates for TLS, if it was asked for.
    pub fn certificates(&self) -> Option<&Certificates> {
        self.certificates.as_ref()
    }

    /// Its process: to stop it, to let it go on, to kill it. Committed data outlives a kill.
    pub fn process(&self) -> &Process {
        &self.process
    }

    /// Runs SQL as `root`, and gives the answer as text: a row per line, its columns with tabs between.
    ///
    /// # Errors
    /// If the server cannot be reached, or answers with an error.
    pub fn sql(&self, text: &str) -> io::Result<String> {
        self.ask(Some(OWNER), text)
    }

    fn ask(&self, database: Option<&str>, text: &str) -> io::Result<String> {
        let mut command = self.as_root(&self.client);
        command.args(["--batch", "--raw", "--skip-column-names", "--execute", text]).args(database);
        let done = command.output()?;
        if done.status.success() {
            return Ok(String::from_utf8_lossy(&done.stdout).trim_end_matches('\n').to_owned());
        }
        let why = String::from_utf8_lossy(&done.stderr);
        Err(io::Error::other(format!("{}: {text}: {}", self.address(), why.trim())))
    }

    /// A program of MariaDB that connects to this server as `root`.
    pub(super) fn as_root(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        command.args(["--no-defaults", "--user=root"]);
        command.arg(format!("--socket={}", self.socket().display()));
        command
    }

    /// The program that asks a server.
    pub(super) fn client(&self) -> &Path {
        &self.client
    }

    /// Ends it in an orderly way, and returns when it is gone. It cuts all connections and writes everything down.
    pub fn stop(&self) {
        self.process.resume();
        self.process.end(Signal::TERM);
    }

    /// Starts it again after it was stopped or killed, with the data that it had.
    ///
    /// # Errors
    /// If it does not start.
    pub fn start_again(&self) -> io::Result<()> {
        self.process.start()?;
        self.process.until_ready(|| {
            Ok(match self.ask(None, "SELECT 1") {
                Ok(_) => Answer::Yes,
                Err(error) => Answer::No(error.to_string()),
            })
        })
    }

    /// Kills it and starts it again with no data at all, but for the owner.
    ///
    /// # Errors
    /// If its data folder cannot be made anew or it does not start.
    pub fn restart_empty(&self) -> io::Result<()> {
        self.process.kill();
        fs::remove_dir_all(self.folder().join("data"))?;
        self.start_empty()
    }

    /// Puts the wall clock off by this many seconds from now on.
    ///
    /// # Errors
    /// If it was started without [`MariaDbOptions::movable_clock`].
    pub fn shift_clock(&self, seconds: i64) -> io::Result<()> {
        let clock = self.clock.as_ref().ok_or_else(|| io::Error::other("started without a movable clock"))?;
        clock.shift(seconds)
    }

    /// Ends it in an orderly way and starts it again.
    ///
    /// # Errors
    /// If it does not start.
    pub fn restart(&self) -> io::Result<()> {
        self.stop();
        self.start_again()
    }
}

/// Makes the data folder of a server. It has the user `root` only, without a password.
fn make_data(server: &Path, data: &Path, user: User) -> io::Result<()> {
    let words = run(Command::new(server).args(["--no-defaults", "--version"]))?;
    let version = words.split_once("Ver ").and_then(|(_, rest)| rest.split_ascii_whitespace().next());
    let name = format!("mariadb-{}-1", version.unwrap_or("of-unknown-version"));
    template::fill(data, &name, user, |data| {
        let mut install = user.command(&program("mariadb-install-db", PACKAGE)?)?;
        install.args(["--no-defaults", "--auth-root-authentication-method=normal", "--skip-test-db"]);
        // A small log is copied faster. The server makes it as large as it is by default when it starts.
        install.args(["--skip-name-resolve", "--innodb-log-file-size=4M"]);
        run(install.arg(format!("--datadir={}", data.display()))).map(drop)
    })
}
