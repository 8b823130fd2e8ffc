//! Lengths of time as people write them: `500ms`, `30s`, `5m`, `1h30m`, or seconds as a bare number.

use std::time::Duration;

const UNITS: [(&str, u64); 5] = [
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60_000_000_000),
    ("h", 3_600_000_000_000),
    ("d", 86_400_000_000_000),
];

/// Reads a length of time.
///
/// ```
/// # use std::time::Duration;
/// use lockkeeper::support::duration;
/// assert_eq!(duration::parse("1h30m"), Ok(Duration::from_secs(5400)));
/// ```
///
/// # Errors
/// The text says how to write one.
pub fn parse(text: &str) -> Result<Duration, String> {
    nanoseconds(text)
        .map(Duration::from_nanos)
        .ok_or_else(|| "write a time like 500ms, 30s, 5m or 1h30m; a bare number is seconds".into())
}

fn nanoseconds(text: &str) -> Option<u64> {
    if text.ends_with(|last: char| last.is_ascii_digit()) && !text.contains(char::is_alphabetic) {
        return scaled(text, 1_000_000_000);
    }
    let mut rest = text;
    let mut sum = 0_u64;
    while !rest.is_empty() {
        let number = rest.find(|c: char| c.is_ascii_alphabetic())?;
        let (digits, tail) = rest.split_at(number);
        let end = tail.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(end);
        let (_, size) = UNITS.iter().find(|(name, _)| *name == unit)?;
        sum = sum.checked_add(scaled(digits, *size)?)?;
        rest = tail;
    }
    (!text.is_empty()).then_some(sum)
}

/// `digits` or `digits.digits`, times `size`, cut to whole nanoseconds.
fn scaled(number: &str, size: u64) -> Option<u64> {
    let plain = |digits: &str| !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
    let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
    if !plain(whole) || !plain(fraction) || fraction.len() > 9 {
        return None;
    }
    let part =
        u128::from(fraction.parse::<u64>().ok()?) * u128::from(size) / 10_u128.pow(fraction.len() as u32);
    whole.parse::<u64>().ok()?.checked_mul(size)?.checked_add(u64::try_from(part).ok()?)
}

/// The same for people, in the two largest units: `1h30m`, `12s`, `300ms`.
pub fn show(length: Duration) -> String {
    let seconds = length.as_secs();
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3600 % 24, seconds / 60 % 60);
    match (days, hours, minutes, seconds % 60) {
        (0, 0, 0, 0) => format!("{}ms", length.as_millis()),
        (0, 0, 0, s) => format!("{s}s"),
        (0, 0, m, s) => format!("{m}m{s:02}s"),
        (0, h, m, _) => format!("{h}h{m:02}m"),
        (d, h, _, _) => format!("{d}d{h:02}h"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_people_write_is_understood() {
        for (text, millis) in [
            ("500ms", 500),
            ("30s", 30_000),
            ("5m", 300_000),
            ("1h30m", 5_400_000),
            ("1h30m5s250ms", 5_405_250),
            ("2d", 172_800_000),
            ("30", 30_000),
            ("0", 0),
            ("0.5", 500),
            ("1.25s", 1250),
        ] {
            assert_eq!(parse(text), Ok(Duration::from_millis(millis)), "{text}");
        }
    }

    #[test]
    fn everything_else_is_refused() {
        for text in [
            "",
            " ",
            "s",
            "-1",
            "1 s",
            "5x",
            "1h30",
            "1.",
            ".5",
            "1e3",
            "inf",
            "５s",
            "99999999999999h",
            "1.2.3s",
        ] {
            assert!(parse(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn lengths_are_shown_short() {
        for (millis, text) in [
            (0, "0ms"),
            (300, "300ms"),
            (12_000, "12s"),
            (61_000, "1m01s"),
            (5_400_000, "1h30m"),
            (90_000_000, "1d01h"),
        ] {
            assert_eq!(show(Duration::from_millis(millis)), text);
        }
    }
}
