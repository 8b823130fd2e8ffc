//! The option `lease=` that the URL of every store has: how long locks last without a renewal if their handle says nothing.

use std::time::Duration;

use crate::{
    error::{StoreError, StoreErrorKind},
    support::duration,
};

/// The URL without the option, and the lease that it asks for.
///
/// ```
/// # use std::time::Duration;
/// # use lockkeeper::support::lease_option;
/// let (url, lease) = lease_option::take("redis://host/2?lease=10s&namespace=shop")?;
/// assert_eq!((url.as_str(), lease), ("redis://host/2?namespace=shop", Some(Duration::from_secs(10))));
/// # Ok::<(), lockkeeper::StoreError>(())
/// ```
///
/// # Errors
/// [`StoreErrorKind::Config`] if its value is not a time.
pub fn take(url: &str) -> Result<(String, Option<Duration>), StoreError> {
    let Some((front, query)) = url.split_once('?') else { return Ok((url.to_owned(), None)) };
    let (mut lease, mut rest) = (None, Vec::new());
    for option in query.split('&') {
        match option.strip_prefix("lease=") {
            Some(text) => lease = Some(parse(text)?),
            None => rest.push(option),
        }
    }
    let url = if rest.is_empty() { front.to_owned() } else { format!("{front}?{}", rest.join("&")) };
    Ok((url, lease))
}

fn parse(text: &str) -> Result<Duration, StoreError> {
    let lease = duration::parse(text).ok().filter(|lease| !lease.is_zero());
    lease.ok_or_else(|| {
        let message = "the option lease of the store's URL needs a time such as 10s or 1m";
        StoreError::new(StoreErrorKind::Config, message)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_option_is_taken_and_the_rest_stays() {
        for (url, rest, seconds) in [
            ("memory:", "memory:", None),
            ("sqlite:/a/b.db?lease=1m", "sqlite:/a/b.db", Some(60)),
            ("redis://:a?b@host?db=1&lease=5", "redis://:a?b@host?db=1", Some(5)),
            ("redis://host?db=1", "redis://host?db=1", None),
            ("redis://host?release=1", "redis://host?release=1", None),
            ("redis://host?lease=1s&lease=2s", "redis://host", Some(2)),
        ] {
            let (left, lease) = take(url).expect(url);
            assert_eq!((left.as_str(), lease), (rest, seconds.map(Duration::from_secs)), "{url}");
        }
        for url in ["memory:?lease=", "memory:?lease=0", "memory:?lease=canary"] {
            let error = take(url).expect_err(url).to_string();
            assert!(error.contains("lease") && !error.contains("canary"), "{error}");
        }
    }
}
