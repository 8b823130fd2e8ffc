//! Parts of URLs that all stores on servers read in the same way. No message repeats the text of a URL: a password may
//! be anywhere in a wrong one.

use std::{net::IpAddr, time::Duration};

use crate::{
    error::{StoreError, StoreErrorKind},
    support::{duration, percent},
};

/// Times in a URL lie between these.
const SHORTEST: Duration = Duration::from_millis(1);
const LONGEST: Duration = Duration::from_secs(1000 * 3600);

fn config(message: impl Into<String>) -> StoreError {
    StoreError::new(StoreErrorKind::Config, message).not_applied()
}

/// The text without its percent signs.
///
/// # Errors
/// If one of them does not begin two hexadecimal digits.
pub fn decode(text: &str) -> Result<String, StoreError> {
    percent::decode(text).ok_or_else(|| {
        config("the URL has a % that two hexadecimal digits do not follow; write %25 for a % sign")
    })
}

/// The error of an option whose value is something else than `what`.
pub fn needs(key: &str, what: &str) -> StoreError {
    config(format!("the option {key} needs {what}"))
}

/// An option that is on or off.
///
/// # Errors
/// If it is neither.
pub fn flag(key: &str, value: &str) -> Result<bool, StoreError> {
    match value {
        "true" | "1" => Ok(true),
        "false" | "0" => Ok(false),
        _ => Err(needs(key, "true or false")),
    }
}

/// An option that is a time.
///
/// # Errors
/// If it is none, or not between a millisecond and a thousand hours.
pub fn time(key: &str, value: &str) -> Result<Duration, StoreError> {
    let length = duration::parse(value).ok().filter(|length| (SHORTEST..=LONGEST).contains(length));
    length.ok_or_else(|| needs(key, "a time from 1ms to 1000h, such as 500ms or 2s"))
}

/// A host as it is written, which may be empty, and its port if it has one. An address of IPv6 is in brackets.
///
/// # Errors
/// If the port is no number from 1 to 65535, or the brackets have no address in them.
pub fn host_and_port(text: &str) -> Result<(String, Option<u16>), StoreError> {
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let address = rest.split_once(']').filter(|(address, _)| address.parse::<IpAddr>().is_ok());
            let (address, rest) = address.ok_or_else(|| {
                config("a host of the URL begins with a bracket and is no address; write it as [::1]")
            })?;
            (address.to_owned(), (!rest.is_empty()).then(|| rest.strip_prefix(':').unwrap_or_default()))
        }
        None => match text.rsplit_once(':') {
            Some((host, _)) if host.contains(':') => {
                return Err(config(
                    "a host of the URL has several colons; write an address of IPv6 as [::1]",
                ));
            }
            Some((host, port)) => (decode(host)?, Some(port)),
            None => (decode(text)?, None),
        },
    };
    let port = port.map(|port| {
        let number = port.parse::<u16>().ok().filter(|port| *port > 0);
        number.ok_or_else(|| config("the port in the URL is not a number from 1 to 65535"))
    });
    Ok((host, port.transpose()?))
}

/// A host and its port as messages show them: as [`host_and_port`] reads them.
///
/// ```
/// # use lockkeeper::support::url_parts::address;
/// assert_eq!(address("db.example", 5432), "db.example:5432");
/// assert_eq!(address("::1", 5432), "[::1]:5432");
/// ```
pub fn address(host: &str, port: u16) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_names_addresses_or_sockets() {
        for (text, host, port) in [
            ("db.example:6432", "db.example", Some(6432)),
            ("db.example", "db.example", None),
            ("[::1]:2", "::1", Some(2)),
            ("[::1]", "::1", None),
            ("%2Frun%2Fpostgresql", "/run/postgresql", None),
            ("", "", None),
        ] {
            assert_eq!(host_and_port(text).expect(text), (host.to_owned(), port));
        }
        for text in [
            "host:0",
            "::1",
            "host:1:2",
            "host:canary",
            "host:",
            "[::1",
            "[canary]:1",
            "[::1]canary",
            "canary%",
        ] {
            let error = host_and_port(text).expect_err(text);
            assert!(!format!("{error} {error:?}").contains("canary"), "{error}");
        }
    }

    #[test]
    fn options_are_read_within_bounds() {
        assert_eq!((flag("x", "true").ok(), flag("x", "0").ok()), (Some(true), Some(false)));
        assert!(flag("x", "canary").is_err_and(|error| !error.to_string().contains("canary")));
        assert_eq!(time("x", "1m30s").ok(), Some(Duration::from_secs(90)));
        for text in ["0ms", "1001h", "", "2x"] {
            assert!(time("x", text).is_err(), "{text}");
        }
    }
}
