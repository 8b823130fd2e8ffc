//! The settings in a URL: server, login, database, schema and options. Their `Debug` shows no secret.

use std::{fmt, path::PathBuf, sync::Arc, time::Duration};

use lockkeeper_core::{
    StoreError,
    support::url_parts::{self, decode, flag, host_and_port, time},
};
use tokio_postgres::{
    Config,
    config::{Host, SslMode, TargetSessionAttrs},
};

use crate::trouble::config;

const FORM: &str = "postgres://USER:PASSWORD@HOST:PORT/DATABASE?schema=lockkeeper";

/// All options of a URL. Each has a row in `docs/stores.md`.
pub(crate) const OPTIONS: &[&str] = &[
    "schema",
    "sslmode",
    "sslrootcert",
    "sslcert",
    "sslkey",
    "pooler",
    "strict",
    "request_limit",
    "connect_limit",
    "application_name",
];

/// Files for TLS.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct TlsFiles {
    pub(crate) root_cert: Option<PathBuf>,
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

/// How statements reach the server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Statements {
    /// Prepared once per connection.
    Prepared,
    /// Sent anew each time: a transaction pooler gives every transaction another connection, which knows none.
    Unnamed,
}

/// Everything that a URL says.
#[derive(Clone)]
pub(crate) struct Settings {
    /// The URL without secrets.
    pub(crate) shown: Arc<str>,
    /// One for each server, in the order of the URL.
    pub(crate) drivers: Vec<Config>,
    pub(crate) schema: String,
    pub(crate) encryption: Encryption,
    pub(crate) statements: Statements,
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

/// The options of a query, as far as they are not the driver's.
#[derive(Default)]
struct Options {
    mode: Option<String>,
    files: TlsFiles,
    schema: Option<String>,
    pooler: bool,
    connect_limit: Option<Duration>,
    request_limit: Option<Duration>,
    strict: bool,
    application_name: Option<String>,
}

impl Settings {
    /// Reads a URL. Messages never repeat it, because a password may be anywhere in a wrong one.
    pub(crate) fn parse(url: &str) -> Result<Self, StoreError> {
        let (scheme, rest) = url.split_once("://").ok_or_else(not_a_url)?;
        if !matches!(scheme, "postgres" | "postgresql") {
            return Err(not_a_url());
        }
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, database) = rest.split_once('/').unwrap_or((rest, ""));
        let (login, hosts) = match authority.rsplit_once('@') {
            Some((login, hosts)) => (Some(login), hosts),
            None => (None, authority),
        };
        let mut driver = Config::new();
        let user = set_login(&mut driver, login)?;
        let servers = servers(hosts)?;
        set_database(&mut driver, database)?;
        let mut options = Options::default();
        let shown_options = options.set_all(query)?;
        let shown = format!("{scheme}://{user}{hosts}/{database}{shown_options}");
        options.finish(driver, &servers, shown.into())
    }
}

impl Options {
    /// Sets all options of a query; returns the query without passwords.
    fn set_all(&mut self, query: &str) -> Result<String, StoreError> {
        let mut shown = Vec::new();
        for option in query.split('&').filter(|option| !option.is_empty()) {
            let (key, value) = option.split_once('=').unwrap_or((option, ""));
            self.set(key, &decode(value)?)?;
            shown.push(option);
        }
        Ok(if shown.is_empty() { String::new() } else { format!("?{}", shown.join("&")) })
    }

    fn set(&mut self, key: &str, value: &str) -> Result<(), StoreError> {
        // So that no option can be added without being listed.
        match OPTIONS.iter().find(|known| **known == key).copied().unwrap_or_default() {
            "schema" => self.schema = Some(schema(value)?),
            "sslmode" => self.mode = Some(value.to_owned()),
            "sslrootcert" => self.files.root_cert = Some(value.into()),
            "sslcert" => self.files.cert = Some(value.into()),
            "sslkey" => self.files.key = Some(value.into()),
            "application_name" => self.application_name = Some(value.to_owned()),
            "pooler" => self.pooler = flag(key, value)?,
            "strict" => self.strict = flag(key, value)?,
            "connect_limit" => self.connect_limit = Some(time(key, value)?),
            "request_limit" => self.request_limit = Some(time(key, value)?),
            _ => {
                return Err(config(format!(
                    "the URL has an option that the PostgreSQL store does not know; it knows lease, {}",
                    OPTIONS.join(", ")
                )));
            }
        }
        Ok(())
    }

    fn finish(
        self,
        mut driver: Config,
        servers: &[(String, u16)],
        shown: Arc<str>,
    ) -> Result<Settings, StoreError> {
        let connect_limit = self.connect_limit.unwrap_or(Duration::from_secs(1));
        let encryption = encryption(self.mode.as_deref(), self.files)?;
        driver
            .ssl_mode(if encryption == Encryption::None { SslMode::Disable } else { SslMode::Require })
            .connect_timeout(connect_limit)
            // The connection to a dead server ends within half a minute, also one that only listens.
            .keepalives_idle(Duration::from_secs(15))
            .keepalives_interval(Duration::from_secs(5))
            .keepalives_retries(3)
            .tcp_user_timeout(Duration::from_secs(30))
            .application_name(self.application_name.unwrap_or_else(|| "lockkeeper".to_owned()));
        if servers.len() > 1 {
            // Of several servers, the one that takes writes.
            driver.target_session_attrs(TargetSessionAttrs::ReadWrite);
        }
        let driver_of = |(host, port): &(String, u16)| driver.clone().host(host).port(*port).clone();
        Ok(Settings {
            shown,
            drivers: servers.iter().map(driver_of).collect(),
            schema: self.schema.unwrap_or_else(|| "lockkeeper".to_owned()),
            encryption,
            statements: if self.pooler { Statements::Unnamed } else { Statements::Prepared },
            connect_limit,
            request_limit: self.request_limit,
            strict: self.strict,
        })
    }
}

/// Sets user and password; returns the part of them that is shown.
fn set_login(driver: &mut Config, login: Option<&str>) -> Result<String, StoreError> {
    let Some(login) = login else { return Ok(String::new()) };
    let (user, password) = match login.split_once(':') {
        Some((user, password)) => (user, Some(decode(password)?)),
        None => (login, None),
    };
    let decoded = decode(user)?;
    if !decoded.is_empty() {
        driver.user(decoded);
    }
    if let Some(password) = password {
        driver.password(password);
    }
    Ok(format!("{user}@"))
}

fn servers(hosts: &str) -> Result<Vec<(String, u16)>, StoreError> {
    let server = |text| match host_and_port(text)? {
        (host, _) if host.is_empty() => Err(config(format!("the URL names no server; write {FORM}"))),
        (host, port) => Ok((host, port.unwrap_or(5432))),
    };
    hosts.split(',').map(server).collect()
}

/// The address at which the server of a driver listens, for messages.
pub(crate) fn address(driver: &Config) -> String {
    let port = driver.get_ports().first().copied().unwrap_or(5432);
    match driver.get_hosts().first() {
        Some(Host::Tcp(host)) => url_parts::address(host, port),
        #[cfg(unix)]
        Some(Host::Unix(folder)) => folder.join(format!(".s.PGSQL.{port}")).display().to_string(),
        None => "the server".to_owned(),
    }
}

fn set_database(driver: &mut Config, database: &str) -> Result<(), StoreError> {
    if database.contains('@') {
        // Such as `user:pass/word@host/database`: the URL as it is shown would contain the password.
        return Err(config(
            "the URL has an @ behind a slash; in a password, write %2F for a slash and %40 for an @",
        ));
    }
    let database = decode(database.trim_end_matches('/'))?;
    if database.is_empty() || database.contains('/') {
        return Err(config(format!("the URL names no database; write {FORM}")));
    }
    driver.dbname(database);
    Ok(())
}

fn encryption(mode: Option<&str>, files: TlsFiles) -> Result<Encryption, StoreError> {
    let no_files = files == TlsFiles::default();
    match mode {
        None if no_files => Ok(Encryption::None),
        Some("disable") if no_files => Ok(Encryption::None),
        Some("disable") => {
            Err(config("sslmode=disable has no use for sslrootcert, sslcert and sslkey; remove one of them"))
        }
        None | Some("require" | "verify-full") => Ok(Encryption::Verified(files)),
        Some("prefer" | "allow" | "verify-ca") => Err(config(
            "sslmode is disable or verify-full here, and require means the same as verify-full; the others would \
             let somebody else pose as the server",
        )),
        Some(_) => Err(config("the option sslmode needs disable, require or verify-full")),
    }
}

fn schema(value: &str) -> Result<String, StoreError> {
    let mut letters = value.bytes();
    let first = letters.next().is_some_and(|byte| byte.is_ascii_lowercase() || byte == b'_');
    let rest = letters.all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_');
    // The server cuts longer names, and keeps names that begin so for itself.
    if first && rest && value.len() <= 63 && !value.starts_with("pg_") {
        return Ok(value.to_owned());
    }
    Err(config(
        "the option schema needs up to 63 lower-case letters, digits and underscores, and no pg_ in front",
    ))
}

fn not_a_url() -> StoreError {
    config(format!("this is not a URL of the PostgreSQL store; write {FORM}"))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn a_url_says_everything() {
        let url =
            "postgres://ada:se%40cret@db.example:6432/shop?schema=locks&request_limit=800ms&pooler=true";
        let settings = Settings::parse(url).expect("a good URL");
        let [driver] = &settings.drivers[..] else { panic!("one server") };
        assert_eq!(driver.get_user(), Some("ada"));
        assert_eq!(driver.get_password(), Some(&b"se@cret"[..]));
        assert_eq!(driver.get_hosts(), [Host::Tcp("db.example".into())]);
        assert_eq!((driver.get_ports(), driver.get_dbname()), (&[6432][..], Some("shop")));
        assert_eq!(settings.schema, "locks");
        assert_eq!(settings.request_limit, Some(Duration::from_millis(800)));
        assert_eq!(settings.statements, Statements::Unnamed);
        assert!(!format!("{settings:?}").contains("cret"));
        assert_eq!(
            &*settings.shown,
            "postgres://ada@db.example:6432/shop?schema=locks&request_limit=800ms&pooler=true"
        );
    }

    /// The system's own keep-alives take hours to find out that a server is gone.
    #[test]
    fn a_dead_server_is_noticed_within_half_a_minute() {
        let settings = Settings::parse("postgres://a,b/shop?connect_limit=3s").expect("a good URL");
        for driver in &settings.drivers {
            assert!(driver.get_keepalives());
            let (idle, between) = (driver.get_keepalives_idle(), driver.get_keepalives_interval());
            let lost = driver.get_keepalives_retries().expect("a number");
            let noticed = idle + between.expect("a time") * lost;
            assert!(noticed <= Duration::from_secs(30), "{noticed:?}");
            assert_eq!(driver.get_tcp_user_timeout(), Some(&Duration::from_secs(30)));
            assert_eq!(driver.get_connect_timeout(), Some(&Duration::from_secs(3)));
        }
    }

    #[test]
    fn hosts_may_be_sockets_addresses_and_several() {
        let hosts = |url: &str| {
            let settings = Settings::parse(url).expect("a good URL");
            let hosts: Vec<Host> = settings.drivers.iter().flat_map(|it| it.get_hosts().to_vec()).collect();
            let ports: Vec<u16> = settings.drivers.iter().flat_map(|it| it.get_ports().to_vec()).collect();
            (hosts, ports, settings.drivers[0].get_target_session_attrs())
        };
        let (found, _, any) = hosts("postgresql://%2Frun%2Fpostgresql/shop");
        assert_eq!(found, [Host::Unix(Path::new("/run/postgresql").into())]);
        assert_eq!(any, TargetSessionAttrs::Any);
        let (found, ports, writes) = hosts("postgres://a,b:1,[::1]:2/shop");
        assert_eq!(found, [Host::Tcp("a".into()), Host::Tcp("b".into()), Host::Tcp("::1".into())]);
        assert_eq!((ports, writes), (vec![5432, 1, 2], TargetSessionAttrs::ReadWrite));
        let shown = |url: &str| {
            let settings = Settings::parse(url).expect("a good URL");
            settings.drivers.iter().map(address).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(shown("postgres://ada:canary@a,b:1,[::1]:2/shop"), "a:5432 b:1 [::1]:2");
        assert_eq!(shown("postgres://%2Frun%2Fpostgresql/shop"), "/run/postgresql/.s.PGSQL.5432");
    }

    #[test]
    fn wrong_urls_say_what_to_write_and_no_secret() {
        for url in [
            "mysql://ada:canary@host/shop",
            "postgres:canary",
            "postgres://ada:canary@host",
            "postgres://ada:canary@/shop",
            "postgres://ada:canary@host:0/shop",
            "postgres://ada:canary@host/shop?schema=Not-Good",
            "postgres://ada:canary@host/shop?schema=pg_locks",
            "postgres://ada:canary@host/shop?colour=canary",
            "postgres://ada:canary@host/shop?sslmode=prefer",
            "postgres://ada:canary@host/shop?sslmode=disable&sslcert=canary",
            "postgres://ada:canary@host/shop?request_limit=canary",
            "postgres://ada:canary%@host/shop",
            "postgres://ada:12/canary@host",
            "postgres://ada:12/canary@host/shop",
        ] {
            let error = Settings::parse(url).expect_err("a wrong URL");
            assert!(!format!("{error} {error:?}").contains("canary"), "{error}");
        }
    }

    #[test]
    fn files_for_tls_ask_for_tls() {
        let encryption = |query: &str| {
            Settings::parse(&format!("postgres://host/shop?{query}")).expect("a good URL").encryption
        };
        assert_eq!(encryption(""), Encryption::None);
        assert_eq!(encryption("sslmode=require"), Encryption::Verified(TlsFiles::default()));
        let Encryption::Verified(files) = encryption("sslrootcert=%2Fca.pem") else { panic!("no TLS") };
        assert_eq!(files.root_cert.as_deref(), Some(Path::new("/ca.pem")));
    }
}
