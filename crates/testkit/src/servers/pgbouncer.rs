//! A transaction pooler before a PostgreSQL server, as the package `pgbouncer` of Debian has it (1.18).

use std::{
    io,
    net::{SocketAddr, TcpStream},
};

use tempfile::TempDir;

use super::{Answer, Postgres, Process, postgres::url, postgres_data::OWNER, program, user::User};
use crate::port::Port;

/// The setup of a pooler. The default lets users in as its server does, in transaction mode.
#[derive(Clone, Debug, Default)]
pub struct PgBouncerOptions {
    settings: Vec<String>,
}

impl PgBouncerOptions {
    /// One more line of its configuration, such as `default_pool_size = 2`.
    #[must_use]
    pub fn setting(mut self, line: impl Into<String>) -> Self {
        self.settings.push(line.into());
        self
    }

    /// Starts it before this server, which must outlive it.
    ///
    /// # Errors
    /// If it is not installed or does not get ready.
    pub fn start_before(self, server: &Postgres) -> io::Result<PgBouncer> {
        let (port, user) = (Port::free()?, User::of_server()?);
        let folder = user.folder("lockkeeper-pgbouncer-")?;
        let file = folder.path().join("pgbouncer.ini");
        let process = Process::new(
            format!("pgbouncer on port {}", port.number()),
            &program("pgbouncer", "pgbouncer")?,
            folder.path().join("log"),
        )
        .user(user)
        .arguments([file.display().to_string()]);
        let users = folder.path().join("users");
        let password = server.password();
        user.write(
            &users,
            &format!("\"{OWNER}\" \"{}\"\n", password.unwrap_or_default().replace('"', "\"\"")),
        )?;
        let mut lines = vec![
            "[databases]".to_owned(),
            // By the socket, which lets everybody in: passwords of users other than the owner are not known here.
            format!(
                "* = host={} port={} auth_user={OWNER}",
                server.folder().display(),
                server.address().port()
            ),
            "[pgbouncer]".to_owned(),
            "pool_mode = transaction".to_owned(),
            "listen_addr = 127.0.0.1".to_owned(),
            format!("listen_port = {}", port.number()),
            "unix_socket_dir =".to_owned(),
            format!("auth_type = {}", if password.is_some() { "scram-sha-256" } else { "trust" }),
            format!("auth_file = {}", users.display()),
            format!("admin_users = {OWNER}"),
            "max_client_conn = 1000".to_owned(),
            // It asks a server that was restarted again after a second instead of fifteen.
            "server_login_retry = 1".to_owned(),
        ];
        lines.extend(self.settings);
        user.write(&file, &(lines.join("\n") + "\n"))?;
        let login = url(OWNER, password, port.address());
        let pooler = PgBouncer { url: login, port, process, _folder: folder };
        pooler.start_again()?;
        Ok(pooler)
    }
}

/// A transaction pooler: each transaction of a client may run on another connection of the server.
#[derive(Debug)]
pub struct PgBouncer {
    url: String,
    port: Port,
    // Before the folder: it ends before its files are removed.
    process: Process,
    _folder: TempDir,
}

impl PgBouncer {
    /// Starts one with the default options before this server, which must outlive it.
    ///
    /// # Errors
    /// If it is not installed or does not get ready.
    pub fn before(server: &Postgres) -> io::Result<Self> {
        PgBouncerOptions::default().start_before(server)
    }

    /// The lockkeeper URL of the server behind it, as the owner of its database.
    pub fn url(&self) -> String {
        self.url.clone()
    }

    /// The address that it listens on.
    pub fn address(&self) -> SocketAddr {
        self.port.address()
    }

    /// Its process: to stop it, to let it go on, to kill it.
    pub fn process(&self) -> &Process {
        &self.process
    }

    /// Starts it again after it was killed.
    ///
    /// # Errors
    /// If it does not start.
    pub fn start_again(&self) -> io::Result<()> {
        self.process.start()?;
        self.process.until_ready(|| {
            Ok(match TcpStream::connect(self.address()) {
                Ok(_) => Answer::Yes,
                Err(error) => Answer::No(error.to_string()),
            })
        })
    }

    /// Kills it and starts it again: it keeps nothing.
    ///
    /// # Errors
    /// If it does not start.
    pub fn restart(&self) -> io::Result<()> {
        self.process.kill();
        self.start_again()
    }
}
