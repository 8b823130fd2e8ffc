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

/// The same for people, rounded to the parts they care for, in at most two units: `1h30m`, `12s`, `1.5s`, `300ms`,
/// `2 years`. Years stand only for lengths that are right to a hundredth: `400d` is no year.
///
/// ```
/// # use std::time::Duration;
/// # use lockkeeper::support::duration;
/// assert_eq!(duration::show(Duration::from_micros(500_731)), "500ms");
/// assert_eq!(duration::show(Duration::from_secs(365 * 86_400)), "1 year");
/// ```
pub fn show(length: Duration) -> String {
    // About three digits of it are of interest: 2, 49, 500 milliseconds, 1.5 seconds.
    let step = match length.as_micros() {
        0..99_500 => 1000,
        99_500..995_000 => 10_000,
        995_000..9_950_000 => 100_000,
        9_950_000..3_599_500_000 => 1_000_000,
        3_599_500_000..86_370_000_000 => 60_000_000,
        _ => 3_600_000_000,
    };
    let millis = (length.as_micros() + step / 2) / step * step / 1000;
    let (seconds, rest) = (millis / 1000, millis % 1000);
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    let two = |large: u128, unit: &str, small: u128, sub: &str| match small {
        0 => format!("{large}{unit}"),
        small => format!("{large}{unit}{small:02}{sub}"),
    };
    match seconds {
        0 => format!("{rest}ms"),
        _ if rest > 0 => format!("{seconds}.{}s", rest / 100),
        1..60 => format!("{seconds}s"),
        60..3600 => two(minutes, "m", seconds % 60, "s"),
        3600..86_400 => two(hours, "h", minutes % 60, "m"),
        _ if days < 365 => two(days, "d", hours % 24, "h"),
        _ => years(days).unwrap_or_else(|| format!("{days}d")),
    }
}

/// A number of days as whole years, unless that is wrong by more than a hundredth.
fn years(days: u128) -> Option<String> {
    let years = (days + 182) / 365;
    let shown = if years == 1 { "1 year".into() } else { format!("{years} years") };
    (days.abs_diff(years * 365) * 100 <= days).then_some(shown)
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
            (7, "7ms"),
            (300, "300ms"),
            (504, "500ms"),
            (999, "1s"),
            (1000, "1s"),
            (1540, "1.5s"),
            (9_960, "10s"),
            (12_000, "12s"),
            (29_970, "30s"),
            (59_700, "1m"),
            (61_000, "1m01s"),
            (300_000, "5m"),
            (3_600_000, "1h"),
            (5_400_000, "1h30m"),
            (86_400_000, "1d"),
            (90_000_000, "1d01h"),
            (3_599_700, "1h"),
            (86_390_000, "1d"),
            (172_740_000, "2d"),
            (31_536_000_000, "1 year"),
            (63_072_000_000, "2 years"),
        ] {
            assert_eq!(show(Duration::from_millis(millis)), text, "{millis}");
        }
    }

    #[test]
    fn nothing_is_shown_that_is_wrong_by_more_than_a_few_percent() {
        let day = Duration::from_secs(86_400);
        for (days, text) in
            [(366, "1 year"), (400, "400d"), (729, "2 years"), (900, "900d"), (36_600, "100 years")]
        {
            assert_eq!(show(day * days), text, "{days}");
        }
        let mut length = Duration::from_millis(10);
        while length < day * 50_000 {
            let shown = show(length);
            let read = match shown.split_once(" year") {
                Some((years, _)) => day * 365 * years.parse::<u32>().expect("a number"),
                None => parse(&shown).expect("a time"),
            };
            assert!(read.abs_diff(length) <= length / 20, "{length:?} is shown as {shown}");
            length = length.mul_f64(1.003);
        }
    }
}
