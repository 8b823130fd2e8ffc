//! How much of a resource a contender asks for, and how much there is.

use std::{fmt, num::NonZeroU32, str::FromStr};

use crate::invalid::InvalidInput;

/// The claim of a contender: a number of units, or all there are.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Units {
    /// Everything: a mutex, a writer, a leader.
    All,
    /// So many units: 1 for a reader, k for k permits.
    Count(NonZeroU32),
}

impl Units {
    /// One unit.
    pub const ONE: Self = Self::Count(NonZeroU32::MIN);

    /// `count` units; zero is refused.
    pub fn count(count: u32) -> Result<Self, InvalidInput> {
        NonZeroU32::new(count)
            .map(Self::Count)
            .ok_or_else(|| InvalidInput::new("0 permits were asked for; ask for at least 1"))
    }

    /// Whether these units are fewer than `other`, as a downgrade needs.
    pub fn below(self, other: Self) -> bool {
        match (self, other) {
            (Self::All, _) => false,
            (Self::Count(_), Self::All) => true,
            (Self::Count(a), Self::Count(b)) => a < b,
        }
    }
}

/// How much a resource has. All users of one name must agree on it.
///
/// `All` is a value of its own and no number, so a semaphore and a mutex never share a name.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Capacity {
    /// One exclusive holder, or any number of readers.
    All,
    /// So many permits.
    Count(NonZeroU32),
}

impl Capacity {
    /// A semaphore's capacity; zero is refused.
    pub fn count(count: u32) -> Result<Self, InvalidInput> {
        NonZeroU32::new(count).map(Self::Count).ok_or_else(|| {
            InvalidInput::new("the capacity is 0, so nobody could ever hold it; give at least 1")
        })
    }

    /// Whether `units` can be had at all from an idle resource of this capacity.
    pub fn allows(self, units: Units) -> bool {
        match (self, units) {
            (Self::All, _) => true,
            (Self::Count(_), Units::All) => false,
            (Self::Count(capacity), Units::Count(units)) => units <= capacity,
        }
    }

    /// Whether `units` fit beside those already `taken` (invariant I2).
    ///
    /// This one function decides admission on every store: state stores pass the holders, queue
    /// stores pass everybody ahead in the queue.
    pub fn fits(self, taken: impl IntoIterator<Item = Units>, units: Units) -> bool {
        let mut taken = taken.into_iter();
        match (self, units) {
            (Self::All, Units::All) => taken.next().is_none(),
            (Self::All, Units::Count(_)) => !taken.any(|other| other == Units::All),
            (Self::Count(_), Units::All) => false,
            (Self::Count(capacity), Units::Count(units)) => {
                let mut used = u64::from(units.get());
                for other in taken {
                    match other {
                        Units::All => return false,
                        Units::Count(count) => used += u64::from(count.get()),
                    }
                }
                used <= u64::from(capacity.get())
            }
        }
    }
}

impl fmt::Display for Units {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All => f.write_str("all"),
            Self::Count(count) => count.fmt(f),
        }
    }
}

impl fmt::Display for Capacity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All => f.write_str("all"),
            Self::Count(count) => count.fmt(f),
        }
    }
}

/// `all`, or a number above zero, as [`Display`](fmt::Display) writes it.
impl FromStr for Units {
    type Err = InvalidInput;

    fn from_str(text: &str) -> Result<Self, InvalidInput> {
        all_or_number(text).map(|number| number.map_or(Self::All, Self::Count))
    }
}

/// `all`, or a number above zero, as [`Display`](fmt::Display) writes it.
impl FromStr for Capacity {
    type Err = InvalidInput;

    fn from_str(text: &str) -> Result<Self, InvalidInput> {
        all_or_number(text).map(|number| number.map_or(Self::All, Self::Count))
    }
}

/// Reads only the one way in which it is written: stores compare the kept text byte by byte.
fn all_or_number(text: &str) -> Result<Option<NonZeroU32>, InvalidInput> {
    if text == "all" {
        return Ok(None);
    }
    let number = text.parse::<NonZeroU32>().ok().filter(|number| number.to_string() == text);
    number.map(Some).ok_or_else(|| InvalidInput::new("write `all`, or a number from 1"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(n: u32) -> Units {
        Units::count(n).expect("not zero")
    }

    #[test]
    fn readers_share_and_writers_do_not() {
        assert!(Capacity::All.fits([], Units::All));
        assert!(Capacity::All.fits([Units::ONE; 1000], Units::ONE));
        assert!(!Capacity::All.fits([Units::ONE], Units::All));
        assert!(!Capacity::All.fits([Units::All], Units::ONE));
    }

    #[test]
    fn what_is_written_is_read() {
        for units in [Units::All, Units::ONE, count(u32::MAX)] {
            assert_eq!(units.to_string().parse::<Units>().expect("written"), units);
        }
        for wrong in ["", "0", "-1", "+1", "01", "ALL", "4294967296"] {
            wrong.parse::<Units>().expect_err(wrong);
            wrong.parse::<Capacity>().expect_err(wrong);
        }
    }

    #[test]
    fn permits_never_overflow() {
        let all = Capacity::count(u32::MAX).expect("not zero");
        assert!(all.fits([], count(u32::MAX)));
        assert!(!all.fits([count(u32::MAX), count(u32::MAX)], count(1)));
    }
}
