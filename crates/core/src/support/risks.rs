//! Findings that the checks of several stores report in the same words.

use std::{fmt::Display, time::Duration};

use crate::error::{StoreError, StoreErrorKind};

/// A clock that differs by more than this is reported. Only grant numbers after a loss of data depend on it.
const CLOCK_TOLERANCE: Duration = Duration::from_secs(2);

/// Warns of a server's clock that differs from that of this machine, both since 1970. Asking took `took`.
pub fn clock_off(wall: Duration, took: Duration, clock: Duration) -> Option<String> {
    let difference = wall.abs_diff(clock);
    (difference > CLOCK_TOLERANCE + took).then(|| {
        format!("the server's clock and that of this machine differ by {difference:?}; let both follow a time server")
    })
}

/// Fails if anything was found: for `strict=true`.
///
/// # Errors
/// [`StoreErrorKind::Config`] with all that was found.
pub fn refuse(found: &[impl Display]) -> Result<(), StoreError> {
    if found.is_empty() {
        return Ok(());
    }
    let all: Vec<String> = found.iter().map(ToString::to_string).collect();
    let message = format!("strict=true refuses this store: {}", all.join("; "));
    Err(StoreError::new(StoreErrorKind::Config, message).not_applied())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_large_differences_are_told() {
        let at = Duration::from_secs;
        assert_eq!(clock_off(at(100), at(0), at(102)), None);
        assert_eq!(clock_off(at(100), at(5), at(106)), None);
        assert!(clock_off(at(100), at(0), at(96)).is_some_and(|message| message.contains("4s")));
    }

    #[test]
    fn nothing_found_is_fine() {
        assert!(refuse(&[] as &[&str]).is_ok());
        let error = refuse(&["one", "two"]).expect_err("refused").to_string();
        assert!(error.contains("one; two"), "{error}");
    }
}
