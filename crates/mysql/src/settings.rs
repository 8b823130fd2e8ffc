//! The settings in a URL: server, login, database, prefix of the tables and options. Its `Debug` shows no secret.

use std::{fmt, path::PathBuf, sync::Arc, time::Duration};

use lockkeeper_core::{
    StoreError,
    support::url_parts::{self, decode, flag, host_and_port, time},
};
use mysql_async::{Opts, OptsBuilder};

use crate::trouble::config;

const FORM: &str = "mysql://USER:PASSWORD@HOST:PORT/DATABASE?prefix=lockkeeper_";

/// The largest packet that the driver sends. Otherwise it asks the server for the limit, which takes a round trip.
const LARGEST_PACKET: usize = 64 << 20;

/// All options of a URL. Each has a row in `docs/stores.md`.
pub(crate) const OPTIONS: &[&str] = &[
    "prefix",
    "socket",
    "ssl-mode",
    "ssl-ca",
    "ssl-cert",
    "ssl-key",
    "strict",
    "request_limit",
    "connect_limit",
];

/// Files for TLS.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct TlsFiles {
    pub(crate) ca: Option<PathBuf>,
    pub(crate) cert: Option<PathBuf>,
    pub(crate) key: Option<PathBuf>,
}

/// Whether connections are encrypted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Encryption {
    None,
    /// With a certificate of the server that is checked, name included.
    Verified(TlsFiles),
}

/// All settings in a URL.
#[derive(Clone)]
pub(crate) struct Settings {
    /// The URL without secrets.
    pub(crate) shown: Arc<str>,
    pub(crate) driver: OptsBuilder,
    pub(crate) user: Option<String>,
    pub(crate) database: String,
    pub(crate) prefix: String,
    pub(crate) encryption: Encryption,
    pub(crate) connect_limit: Duration,
    pub(crate) request_limit: Option<Duration>,
    /// Whether a server on which locks are at risk is refused.
    pub(crate) strict: bool,
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings").field("url", &self.shown).finish_non_exhaustive()
    }
}

/// The options of a query.
#[derive(Default)]
struct Options {
    prefix: Option<String>,
    socket: Option<String>,
    mode: Option<String>,
    files: TlsFiles,
    connect_limit: Option<Duration>,
    request_limit: Option<Duration>,
    strict: bool,
}

/// The login in a URL.
#[derive(Default)]
struct Login {
    user: Option<String>,
    password: Option<String>,
    /// The part of it that may be shown.
    shown: String,
}

impl Settings {
    /// Reads a URL. Messages never repeat it, because a password may be anywhere in a wrong one.
    pub(crate) fn parse(url: &str) -> Result<Self, StoreError> {
        let (scheme, rest) = url.split_once("://").ok_or_else(not_a_url)?;
        if !matches!(scheme, "mysql" | "mariadb") {
            return Err(not_a_url());
        }
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, database) = rest.split_once('/').unwrap_or((rest, ""));
        if database.contains('@') {
            return Err(config("the URL has an @ after a slash; write %2F for a slash in a password"));
        }
        let (login, host) = match authority.rsplit_once('@') {
            Some((login, host)) => (Login::parse(login)?, host),
            None => (Login::default(), authority),
        };
        let options = Options::parse(query)?;
        let shown = if query.is_empty() { String::new() } else { format!("?{query}") };
        let shown = format!("{scheme}://{}{host}/{database}{shown}", login.shown);
        options.finish(login, host, database, shown.into())
    }
}

impl Login {
    fn parse(text: &str) -> Result<Self, StoreError> {
        let (user, password) = match text.split_once(':') {
            Some((user, password)) => (user, Some(decode(password)?)),
            None => (text, None),
        };
        let decoded = decode(user)?;
        Ok(Self { user: (!decoded.is_empty()).then_some(decoded), password, shown: format!("{user}@") })
    }
}

impl Options {
    fn parse(query: &str) -> Result<Self, StoreError> {
        let mut options = Self::default();
        for option in query.split('&').filter(|option| !option.is_empty()) {
            let (key, value) = option.split_once('=').unwrap_or((option, ""));
            options.set(key, &decode(value)?)?;
        }
        Ok(options)
    }

    fn set(&mut self, key: &str, value: &str) -> Result<(), StoreError> {
        // So that no option can be added without being listed.
        match OPTIONS.iter().find(|known| **known == key).copied().unwrap_or_default() {
            "prefix" => self.prefix = Some(prefix(value)?),
            "socket" => self.socket = Some(value.to_owned()),
            "ssl-mode" => self.mode = Some(value.to_ascii_lowercase()),
            "ssl-ca" => self.files.ca = Some(value.into()),
            "ssl-cert" => self.files.cert = Some(value.into()),
            "ssl-key" => self.files.key = Some(value.into()),
            "strict" => self.strict = flag(key, value)?,
            "connect_limit" => self.connect_limit = Some(time(key, value)?),
            "request_limit" => self.request_limit = Some(time(key, value)?),
            _ => {
                return Err(config(format!(
                    "the URL has an option that the MySQL store does not know; it knows lease, {}",
                    OPTIONS.join(", ")
                )));
            }
        }
        Ok(())
    }

    fn finish(
        self,
        login: Login,
        host: &str,
        database: &str,
        shown: Arc<str>,
    ) -> Result<Settings, StoreError> {
        let database = decode(database.trim_end_matches('/'))?;
        if database.is_empty() || database.contains('/') {
            return Err(config(format!("the URL names no database; write {FORM}")));
        }
        let encryption = encryption(self.mode.as_deref(), self.files)?;
        let mut driver = OptsBuilder::default();
        if let Some(socket) = self.socket {
            if encryption != Encryption::None {
                return Err(config("a socket has no use for TLS; remove socket= or the options for TLS"));
            }
            driver = driver.socket(Some(socket));
        } else {
            let (host, port) = host_and_port(host)?;
            if host.is_empty() || host.contains([',', '/']) {
                let message =
                    format!("the URL names no server, or several; write {FORM}, or add socket=PATH");
                return Err(config(message));
            }
            driver = driver.ip_or_hostname(host).tcp_port(port.unwrap_or(3306));
        }
        let driver = driver
            .user(login.user.clone())
            .pass(login.password)
            .db_name(Some(database.clone()))
            .prefer_socket(false)
            .tcp_nodelay(true)
            // The connection to a dead server ends, even if nothing is asked on it.
            .tcp_keepalive(Some(Duration::from_secs(15)))
            .stmt_cache_size(0)
            .max_allowed_packet(Some(LARGEST_PACKET))
            // Only pools of the driver look at it. Without it, the driver asks the server.
            .wait_timeout(Some(28_800));
        Ok(Settings {
            shown,
            driver,
            user: login.user,
            database,
            prefix: self.prefix.unwrap_or_else(|| "lockkeeper_".to_owned()),
            encryption,
            connect_limit: self.connect_limit.unwrap_or(Duration::from_secs(2)),
            request_limit: self.request_limit,
            strict: self.strict,
        })
    }
}

/// Returns the address at which the server of a driver listens, for messages.
pub(crate) fn address(driver: &Opts) -> String {
    match driver.socket() {
        Some(socket) => socket.to_owned(),
        None => url_parts::address(driver.ip_or_hostname(), driver.tcp_port()),
    }
}

fn encryption(mode: Option<&str>, files: TlsFiles) -> Result<Encryption, StoreError> {
    let no_files = files == TlsFiles::default();
    match mode {
        None | Some("disabled") if no_files => Ok(Encryption::None),
        Some("disabled") => {
            Err(config("ssl-mode=disabled has no use for ssl-ca, ssl-cert and ssl-key; remove one of them"))
        }
        None | Some("required" | "verify_identity") => Ok(Encryption::Verified(files)),
        Some("preferred" | "verify_ca") => Err(config(
            "ssl-mode is disabled or verify_identity here, and required means the same as verify_identity; the others \
             would let somebody else pose as the server",
        )),
        Some(_) => Err(config("the option ssl-mode needs disabled, required or verify_identity")),
    }
}

/// Checks the prefix, with which the names of the tables begin.
fn prefix(value: &str) -> Result<String, StoreError> {
    let first = value.bytes().next().is_some_and(|byte| byte.is_ascii_lowercase());
    let rest = value.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_');
    // The server's names have up to 64 letters, and not every server tells capitals apart.
    if first && rest && value.len() <= 48 {
        return Ok(value.to_owned());
    }
    Err(config("the option prefix needs up to 48 lower-case letters, digits and underscores, a letter first"))
}

fn not_a_url() -> StoreError {
    config(format!("this is not a URL of the MySQL store; write {FORM}"))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn good(url: &str) -> (Settings, Opts) {
        let settings = Settings::parse(url).expect("a good URL");
        let driver = settings.driver.clone().into();
        (settings, driver)
    }

    #[test]
    fn a_url_says_everything() {
        let url = "mysql://ada:se%40cret@db.example:3307/shop?prefix=locks_&request_limit=800ms&strict=true";
        let (settings, driver) = good(url);
        assert_eq!((driver.user(), driver.pass()), (Some("ada"), Some("se@cret")));
        assert_eq!((driver.ip_or_hostname(), driver.tcp_port()), ("db.example", 3307));
        assert_eq!(address(&driver), "db.example:3307");
        assert_eq!((driver.db_name(), settings.prefix.as_str()), (Some("shop"), "locks_"));
        assert_eq!((settings.request_limit, settings.strict), (Some(Duration::from_millis(800)), true));
        assert!(!format!("{settings:?}").contains("cret"));
        assert_eq!(
            &*settings.shown,
            "mysql://ada@db.example:3307/shop?prefix=locks_&request_limit=800ms&strict=true"
        );
        let (settings, driver) = good("mariadb://[::1]/shop");
        assert_eq!((driver.ip_or_hostname(), driver.tcp_port()), ("::1", 3306));
        assert_eq!(address(&driver), "[::1]:3306");
        assert_eq!((settings.prefix.as_str(), settings.user), ("lockkeeper_", None));
        let (_, driver) = good("mysql://ada@/shop?socket=%2Frun%2Fmysqld%2Fmysqld.sock");
        assert_eq!(driver.socket(), Some("/run/mysqld/mysqld.sock"));
        assert_eq!(address(&driver), "/run/mysqld/mysqld.sock");
    }

    #[test]
    fn wrong_urls_say_what_to_write_and_no_secret() {
        for url in [
            "postgres://ada:canary@host/shop",
            "mysql:canary",
            "mysql://ada:canary@host",
            "mysql://ada:canary@/shop",
            "mysql://ada:canary@a,b/shop",
            "mysql://ada:canary@host:0/shop",
            "mysql://ada:12/canary@host/shop",
            "mysql://ada:canary@host/shop?prefix=Not-Good",
            "mysql://ada:canary@host/shop?prefix=_",
            "mysql://ada:canary@host/shop?colour=canary",
            "mysql://ada:canary@host/shop?ssl-mode=preferred",
            "mysql://ada:canary@host/shop?ssl-mode=disabled&ssl-cert=canary",
            "mysql://ada:canary@host/shop?ssl-ca=canary&socket=canary",
            "mysql://ada:canary@host/shop?request_limit=canary",
            "mysql://ada:canary%@host/shop",
        ] {
            let error = Settings::parse(url).expect_err("a wrong URL");
            assert!(!format!("{error} {error:?}").contains("canary"), "{error}");
        }
    }

    #[test]
    fn files_for_tls_ask_for_tls() {
        let encryption = |query: &str| good(&format!("mysql://host/shop?{query}")).0.encryption;
        assert_eq!(encryption(""), Encryption::None);
        assert_eq!(encryption("ssl-mode=REQUIRED"), Encryption::Verified(TlsFiles::default()));
        let Encryption::Verified(files) = encryption("ssl-ca=%2Fca.pem") else { panic!("no TLS") };
        assert_eq!(files.ca.as_deref(), Some(Path::new("/ca.pem")));
    }
}
