//! One Redis server, as the packages `redis-server` and `redis-tools` of Debian have it (7.0).

use std::{
    fs, io,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::Command,
};

use tempfile::TempDir;

use super::{Answer, Certificates, Process, clock::WallClock, program, until, user::write_private};
use crate::port::Port;

/// The setup of a Redis server. The default keeps everything in memory, without password or encryption.
#[derive(Clone, Debug, Default)]
pub struct RedisOptions {
    password: Option<String>,
    tls: bool,
    append_only: bool,
    movable_clock: bool,
    settings: Vec<String>,
}

impl RedisOptions {
    /// The default user needs this password.
    #[must_use]
    pub fn password(mut self, password: &str) -> Self {
        self.password = Some(password.to_owned());
        self
    }

    pub(super) fn secret(&self) -> Option<&str> {
        self.password.as_deref()
    }

    /// Adds a user with the rights that `rules` give, such as `~app:* &app:* +@all -@dangerous`.
    #[must_use]
    pub fn user(self, name: &str, password: &str, rules: &str) -> Self {
        self.setting(format!("user {name} on >{password} {rules}"))
    }

    /// It listens with TLS only, and asks clients for a certificate of the same authority.
    #[must_use]
    pub fn tls(mut self) -> Self {
        self.tls = true;
        self
    }

    /// Writes are in a file before they are answered, so a killed server knows them when it is back.
    #[must_use]
    pub fn append_only(mut self) -> Self {
        self.append_only = true;
        self
    }

    /// Its wall clock can be moved: [`Redis::shift_clock`].
    #[must_use]
    pub fn movable_clock(mut self) -> Self {
        self.movable_clock = true;
        self
    }

    /// One line of its configuration file.
    #[must_use]
    pub fn setting(mut self, line: impl Into<String>) -> Self {
        self.settings.push(line.into());
        self
    }

    /// Starts a server that is set up so.
    ///
    /// # Errors
    /// If a program is missing or the server does not start.
    pub fn start(self) -> io::Result<Redis> {
        Redis::start_with("redis-server", "redis-server", self)
    }
}

/// One Redis server, or one sentinel.
#[derive(Debug)]
pub struct Redis {
    process: Process,
    port: Port,
    options: RedisOptions,
    clock: Option<WallClock>,
    certificates: Option<Certificates>,
    cli: PathBuf,
    /// Last, so that the process is gone when it is removed.
    folder: TempDir,
}

impl Redis {
    /// A server with the usual options.
    ///
    /// # Errors
    /// If a program is missing or the server does not start.
    pub fn start() -> io::Result<Self> {
        RedisOptions::default().start()
    }

    pub(super) fn start_with(name: &str, package: &str, options: RedisOptions) -> io::Result<Self> {
        let cli = program("redis-cli", "redis-tools")?;
        let server = program(name, package)?;
        let folder = tempfile::Builder::new().prefix("lockkeeper-redis-").tempdir()?;
        let port = Port::free()?;
        let clock = options.movable_clock.then(|| WallClock::new(folder.path())).transpose()?;
        let certificates = options.tls.then(|| Certificates::make(folder.path())).transpose()?;
        let file = folder.path().join("redis.conf");
        let process =
            Process::new(format!("{name} on port {}", port.number()), &server, folder.path().join("log"))
                .arguments([file.display().to_string()])
                .environment(clock.iter().flat_map(WallClock::environment));
        let redis = Self { process, port, options, clock, certificates, cli, folder };
        fs::create_dir(redis.data())?;
        write_private(&file, &redis.configuration(name == "redis-sentinel"))?;
        redis.start_again()?;
        Ok(redis)
    }

    fn configuration(&self, sentinel: bool) -> String {
        let path = |path: &Path| path.display().to_string();
        let port = self.port.number();
        let mut lines = vec!["bind 127.0.0.1".to_owned(), format!("dir {}", path(&self.data()))];
        lines.extend(["daemonize no", "loglevel notice"].map(str::to_owned));
        match &self.certificates {
            None => lines.push(format!("port {port}")),
            Some(made) => {
                let (certificate, key) = made.server();
                lines.extend([
                    "port 0".to_owned(),
                    format!("tls-port {port}"),
                    format!("tls-ca-cert-file {}", path(&made.authority())),
                    format!("tls-cert-file {}", path(&certificate)),
                    format!("tls-key-file {}", path(&key)),
                ]);
            }
        }
        if !sentinel {
            lines.push(format!("unixsocket {}", path(&self.socket())));
            lines.push("unixsocketperm 700".to_owned());
            lines.push("save \"\"".to_owned());
            lines.push(format!("appendonly {}", if self.options.append_only { "yes" } else { "no" }));
            // Written before each answer, and left to the kernel, which outlives the server. With `everysec` an answer
            // does not wait for the file while the disk is slow: a killed server forgets up to two seconds.
            lines.push("appendfsync no".to_owned());
            // A new replica is served at once instead of after five seconds.
            lines.push("repl-diskless-sync-delay 0".to_owned());
            lines.push("repl-ping-replica-period 1".to_owned());
        }
        if let Some(password) = &self.options.password {
            lines.push(format!("requirepass {password}"));
            lines.push(format!("masterauth {password}"));
        }
        lines.extend(self.options.settings.iter().cloned());
        lines.join("\n") + "\n"
    }

    fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    /// The lockkeeper URL of this server, as its default user.
    pub fn url(&self) -> String {
        self.url_for(&self.login())
    }

    /// The part of a URL with the login.
    pub(super) fn login(&self) -> String {
        self.options.password.as_ref().map(|password| format!(":{password}@")).unwrap_or_default()
    }

    /// The lockkeeper URL of this server, as another user.
    pub fn url_as(&self, user: &str, password: &str) -> String {
        self.url_for(&format!("{user}:{password}@"))
    }

    fn url_for(&self, user: &str) -> String {
        match &self.certificates {
            None => format!("redis://{user}{}/", self.address()),
            Some(made) => {
                let (ca, (cert, key)) = (made.authority(), made.client());
                let (ca, cert, key) = (ca.display(), cert.display(), key.display());
                format!("rediss://{user}{}/?ca={ca}&cert={cert}&key={key}", self.address())
            }
        }
    }

    /// The lockkeeper URL of its unix socket.
    pub fn socket_url(&self) -> String {
        format!("redis+unix://{}", self.socket().display())
    }

    /// The address that it listens on.
    pub fn address(&self) -> SocketAddr {
        self.port.address()
    }

    /// Its unix socket.
    pub fn socket(&self) -> PathBuf {
        self.folder.path().join("socket")
    }

    /// The certificates for TLS, if it was asked for.
    pub fn certificates(&self) -> Option<&Certificates> {
        self.certificates.as_ref()
    }

    /// Its process: to stop it, to let it go on, to kill it.
    pub fn process(&self) -> &Process {
        &self.process
    }

    /// Runs one command as the default user, and gives the answer as text.
    ///
    /// # Errors
    /// If the server cannot be reached, or answers with an error.
    pub fn command<S: AsRef<str>>(&self, words: impl IntoIterator<Item = S>) -> io::Result<String> {
        let mut command = Command::new(&self.cli);
        command.args(["-e", "-h", "127.0.0.1", "-p", &self.port.number().to_string()]);
        if let Some(made) = &self.certificates {
            let (certificate, key) = made.client();
            command.arg("--tls").arg("--cacert").arg(made.authority());
            command.arg("--cert").arg(certificate).arg("--key").arg(key);
        }
        if let Some(password) = &self.options.password {
            command.env("REDISCLI_AUTH", password);
        }
        let words: Vec<String> = words.into_iter().map(|word| word.as_ref().to_owned()).collect();
        let done = command.args(&words).output()?;
        let answer = String::from_utf8_lossy(&done.stdout).trim_end().to_owned();
        if done.status.success() {
            return Ok(answer);
        }
        let (what, why) = (words.join(" "), String::from_utf8_lossy(&done.stderr));
        Err(io::Error::other(format!("{}: {what}: {answer} {}", self.address(), why.trim())))
    }

    /// One line of the answer to `INFO`.
    ///
    /// # Errors
    /// If the server does not answer, or has no such line.
    pub fn info(&self, section: &str, name: &str) -> io::Result<String> {
        let answer = self.command(["INFO", section])?;
        let value = answer.lines().find_map(|line| line.trim_end().strip_prefix(name)?.strip_prefix(':'));
        value.map(str::to_owned).ok_or_else(|| io::Error::other(format!("no {name} in INFO {section}")))
    }

    /// Starts it again after [`Process::kill`], with the data that it had written to its folder.
    ///
    /// # Errors
    /// If it does not start.
    pub fn start_again(&self) -> io::Result<()> {
        self.process.start()?;
        self.process.until_ready(|| {
            Ok(match self.command(["PING"]) {
                Ok(answer) => Answer::when(answer == "PONG", answer),
                Err(error) => Answer::No(error.to_string()),
            })
        })
    }

    /// Kills it and starts it again. Without `append_only` its memory is empty then.
    ///
    /// # Errors
    /// If it does not start.
    pub fn restart(&self) -> io::Result<()> {
        self.process.kill();
        self.start_again()
    }

    /// Kills it and starts it again with no data at all.
    ///
    /// # Errors
    /// If its folder cannot be emptied or it does not start.
    pub fn restart_empty(&self) -> io::Result<()> {
        self.process.kill();
        fs::remove_dir_all(self.data())?;
        fs::create_dir(self.data())?;
        self.start_again()
    }

    /// Puts the wall clock off by this many seconds from now on.
    ///
    /// # Errors
    /// If it was started without [`RedisOptions::movable_clock`].
    pub fn shift_clock(&self, seconds: i64) -> io::Result<()> {
        let clock = self.clock.as_ref().ok_or_else(|| io::Error::other("started without a movable clock"))?;
        clock.shift(seconds)
    }

    /// Makes it a replica of another server, and waits until it has the other's data.
    ///
    /// # Errors
    /// If it does not follow.
    pub fn follow(&self, master: &Self) -> io::Result<()> {
        let port = master.port.number().to_string();
        self.command(["REPLICAOF", "127.0.0.1", &port])?;
        let ours = format!("port={},state=online", self.port.number());
        until(&format!("{} is in step with its master", self.address()), || {
            // Both say so: the master counts a replica only once it has heard from it.
            let (own, state) =
                (self.info("replication", "master_link_status")?, master.command(["INFO", "replication"])?);
            Ok(Answer::when(own == "up" && state.contains(&ours), state))
        })?;
        // The master counts it up to a second before it begins to send. Until then `WAIT` waits in vain.
        master.command(["PUBLISH", "in step", ""])?;
        let number = |text: String| text.parse::<u64>().map_err(io::Error::other);
        let sent = number(master.info("replication", "master_repl_offset")?)?;
        until(&format!("{} hears its master", self.address()), || {
            let heard = number(self.info("replication", "slave_repl_offset")?)?;
            Ok(Answer::when(heard >= sent, heard.to_string()))
        })
    }

    /// Makes a replica a master. Writes that its old master had not sent yet are lost.
    ///
    /// # Errors
    /// If it does not obey.
    pub fn promote(&self) -> io::Result<()> {
        self.command(["REPLICAOF", "NO", "ONE"])?;
        until(&format!("{} is a master", self.address()), || {
            let role = self.info("replication", "role")?;
            Ok(Answer::when(role == "master", role))
        })
    }
}
