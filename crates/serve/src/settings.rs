//! The settings of a server.

use std::{fmt, net::SocketAddr, path::PathBuf, str::FromStr, time::Duration};

use crate::error::ServeError;

/// The settings of a server.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Settings {
    /// The store's URL.
    pub store: String,
    /// The address that it listens on.
    pub listen: Listen,
    /// A file of lines `ROLE TOKEN [NAME [PREFIX…]]`. Without it, one token is made, which
    /// [`Server::link`](crate::Server::link) returns.
    pub token_file: Option<PathBuf>,
    /// Certificate and key, if it speaks TLS.
    pub tls: Option<TlsFiles>,
    /// Whether a proxy that speaks TLS is in front of it. Then it may listen beyond loopback without TLS, and believes
    /// the last address of `X-Forwarded-For`.
    pub behind_proxy: bool,
    /// Names by which it may be called, besides those of loopback.
    pub hosts: Vec<String>,
    /// Limits of alarms, as a TOML file that is read again when it changes. Without it, sound limits hold.
    pub alarms: Option<PathBuf>,
    /// Whether it shows a demo: a store in memory in which a lot goes on. `store` has no meaning then.
    pub demo: bool,
    /// How many locks `/metrics` names; it takes those with the most waiters.
    pub hottest: usize,
    /// Limits of the costs of clients.
    pub limits: Limits,
}

/// Certificate and key, as PEM files. They are read again when they change.
#[derive(Clone, Debug)]
pub struct TlsFiles {
    /// The chain of certificates.
    pub cert: PathBuf,
    /// The key of the first one.
    pub key: PathBuf,
}

/// Limits that keep clients from costing too much.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Limits {
    /// The most connections. Beyond it, the one that has been idle the longest is closed for a new one.
    pub connections: usize,
    /// The most requests that wait for a lock or a latch. `None`: 4,096, and 32 on ZooKeeper, where each is a session.
    pub waiting: Option<usize>,
    /// The longest `wait` of a request.
    pub longest_wait: Duration,
    /// How many requests a second one token may make; it may make twice as many at once.
    pub rate: u32,
    /// The most bytes of a request's body.
    pub body: usize,
    /// How long a client may take for each of these: the head of a request, its body, reading an answer, and the time
    /// between two requests.
    pub patience: Duration,
    /// How long requests that do not wait may go on after the server was told to end.
    pub drain: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 8192,
            waiting: None,
            longest_wait: Duration::from_secs(600),
            rate: 2000,
            body: 64 * 1024,
            patience: Duration::from_secs(30),
            drain: Duration::from_secs(10),
        }
    }
}

impl Settings {
    /// Returns the settings of a store, with no options set.
    pub fn new(store: impl Into<String>) -> Self {
        Self {
            store: store.into(),
            listen: Listen::default(),
            token_file: None,
            tls: None,
            behind_proxy: false,
            hosts: Vec::new(),
            alarms: None,
            demo: false,
            hottest: 0,
            limits: Limits::default(),
        }
    }

    /// Refuses settings that would be unsafe or refuse every client.
    pub(crate) fn check(&self) -> Result<(), ServeError> {
        if let Listen::Tcp(address) = &self.listen
            && !address.ip().is_loopback()
            && self.tls.is_none()
            && !self.behind_proxy
        {
            return Err(ServeError::usage(format!(
                "{address} is reached from other machines, which would send their tokens in the clear; give --tls-cert \
                 and --tls-key, or --behind-proxy if a proxy that speaks TLS is the only one that reaches it"
            )));
        }
        if self.limits.rate == 0 || self.limits.connections == 0 || self.limits.waiting == Some(0) {
            return Err(ServeError::usage("a limit of 0 would refuse everybody; give at least 1"));
        }
        if self.limits.patience.is_zero() {
            return Err(ServeError::usage("clients need some time for a request; give at least 1s"));
        }
        Ok(())
    }
}

/// The address that a server listens on: `ADDRESS:PORT`, or `unix:PATH`.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Listen {
    /// On an address.
    Tcp(SocketAddr),
    /// On a socket in the file system, which only its owner may use.
    Unix(PathBuf),
}

impl Default for Listen {
    fn default() -> Self {
        Self::Tcp(SocketAddr::from(([127, 0, 0, 1], 7171)))
    }
}

impl FromStr for Listen {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(path) = text.strip_prefix("unix:") {
            let path = PathBuf::from(path);
            return match path.file_name() {
                Some(_) => Ok(Self::Unix(path)),
                None => Err("unix: needs the path of a file, such as unix:/run/lockkeeper.sock".into()),
            };
        }
        let address = text.replace("localhost:", "127.0.0.1:");
        address.parse().map(Self::Tcp).map_err(|_| {
            "write an address and a port, such as 127.0.0.1:7171 or [::]:7171, or unix:PATH".to_owned()
        })
    }
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read() {
        for text in ["127.0.0.1:7171", "[::1]:80", "0.0.0.0:1", "unix:/run/a.sock"] {
            assert_eq!(text.parse::<Listen>().expect(text).to_string(), text);
        }
        assert_eq!("localhost:80".parse::<Listen>().expect("good").to_string(), "127.0.0.1:80");
        for text in ["", "7171", "host:80", "unix:", "unix:/"] {
            assert!(text.parse::<Listen>().is_err(), "{text}");
        }
    }

    #[test]
    fn beyond_loopback_it_needs_tls_or_a_proxy() {
        let mut settings = Settings::new("memory:");
        assert!(settings.check().is_ok());
        for address in ["0.0.0.0:7171", "[::]:7171", "10.0.0.1:80"] {
            settings.listen = address.parse().expect("good");
            let error = settings.check().expect_err("in the clear").to_string();
            assert!(error.contains("--tls-cert") && error.contains("--behind-proxy"), "{error}");
            settings.behind_proxy = true;
            assert!(settings.check().is_ok());
            settings.behind_proxy = false;
        }
    }
}
