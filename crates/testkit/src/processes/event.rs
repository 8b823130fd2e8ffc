//! The events that a worker reports to its parent. Each is one line, written at once, so a killed worker has reported
//! everything up to its last step.

use std::{fmt, str::FromStr};

use crate::history::{End, Share};

/// One event. Times are nanoseconds on the boot-time clock, which all processes of a host share.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// The worker is connected.
    Ready,
    /// About to acquire a resource.
    Ask {
        /// The task of the process.
        task: u32,
        /// The resource that it works on.
        resource: u32,
        /// When.
        at: u64,
    },
    /// The acquire returned with a guard.
    Held {
        /// The task of the process.
        task: u32,
        /// The guard's token.
        token: u64,
        /// The guard's floor.
        floor: u64,
        /// How much is held: units, or 0 for all.
        units: u32,
        /// When.
        at: u64,
    },
    /// A fenced write.
    Wrote {
        /// The task of the process.
        task: u32,
        /// Its place among all writes.
        place: u64,
        /// Whether it was let through.
        accepted: bool,
    },
    /// The section is over.
    End {
        /// The task of the process.
        task: u32,
        /// Whether the lost signal came first.
        lost: bool,
        /// When.
        at: u64,
        /// The last deadline that the task knew of.
        deadline: u64,
    },
    /// The acquire returned without a guard.
    GaveUp {
        /// The task of the process.
        task: u32,
        /// When.
        at: u64,
    },
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Ready => f.write_str("ready"),
            Self::Ask { task, resource, at } => write!(f, "ask {task} {resource} {at}"),
            Self::Held { task, token, floor, units, at } => {
                write!(f, "held {task} {token} {floor} {units} {at}")
            }
            Self::Wrote { task, place, accepted } => write!(f, "wrote {task} {place} {}", u8::from(accepted)),
            Self::End { task, lost, at, deadline } => {
                write!(f, "end {task} {} {at} {deadline}", u8::from(lost))
            }
            Self::GaveUp { task, at } => write!(f, "gave-up {task} {at}"),
        }
    }
}

impl FromStr for Event {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut words = text.split(' ');
        let word = words.next().unwrap_or_default();
        let numbers: Option<Vec<u64>> = words.map(|word| word.parse().ok()).collect();
        let small = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
        match (word, numbers.as_deref()) {
            ("ready", Some([])) => Ok(Self::Ready),
            ("ask", Some(&[task, resource, at])) => {
                Ok(Self::Ask { task: small(task), resource: small(resource), at })
            }
            ("held", Some(&[task, token, floor, units, at])) => {
                Ok(Self::Held { task: small(task), token, floor, units: small(units), at })
            }
            ("wrote", Some(&[task, place, accepted])) => {
                Ok(Self::Wrote { task: small(task), place, accepted: accepted == 1 })
            }
            ("end", Some(&[task, lost, at, deadline])) => {
                Ok(Self::End { task: small(task), lost: lost == 1, at, deadline })
            }
            ("gave-up", Some(&[task, at])) => Ok(Self::GaveUp { task: small(task), at }),
            _ => Err(format!("not an event of a worker: {text:?}")),
        }
    }
}

/// The share that `units` of an event mean.
pub(super) fn share(units: u32) -> Share {
    if units == 0 { Share::Exclusive } else { Share::Units(units) }
}

/// The end that `lost` of an event means.
pub(super) fn end(lost: bool) -> End {
    if lost { End::Lost } else { End::Released }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_survive_text() {
        for event in [
            Event::Ready,
            Event::Ask { task: 1, resource: 2, at: 3 },
            Event::Held { task: 1, token: u64::MAX, floor: 2, units: 0, at: 3 },
            Event::Wrote { task: 1, place: 2, accepted: true },
            Event::End { task: 1, lost: false, at: 2, deadline: 3 },
            Event::GaveUp { task: 1, at: 2 },
        ] {
            assert_eq!(event.to_string().parse(), Ok(event));
        }
        assert!("held 1 2".parse::<Event>().is_err());
    }
}
