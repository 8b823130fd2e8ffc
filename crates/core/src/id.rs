//! The ids of those who ask: the random id of a keeper and, under it, one id per acquisition.

use std::{
    fmt,
    str::FromStr,
    sync::atomic::{AtomicU64, Ordering},
};

use crate::error::InvalidInput;

fn random() -> u64 {
    getrandom::u64().expect("the operating system gives random numbers")
}

/// One keeper, which is one client process as far as a store can tell: 128 random bits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeeperId([u64; 2]);

impl KeeperId {
    /// A fresh id from the operating system's random source.
    ///
    /// # Panics
    /// If the operating system has no random source; without one no id would be safe.
    pub fn random() -> Self {
        Self([random(), random()])
    }

    /// An id with a chosen value, for tests that must repeat exactly.
    pub const fn from_u128(value: u128) -> Self {
        Self([(value >> 64) as u64, value as u64])
    }
}

impl fmt::Display for KeeperId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // By hand: ids are written with every request, and this takes a third of the time.
        let mut text = [0; 32];
        for (digit, place) in text.iter_mut().zip(0..) {
            let half = self.0[place / 16] >> (60 - 4 * (place % 16)) & 15;
            *digit = b"0123456789abcdef"[half as usize];
        }
        f.write_str(str::from_utf8(&text).expect("digits"))
    }
}

impl fmt::Debug for KeeperId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for KeeperId {
    type Err = InvalidInput;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let plain = text.len() == 32 && text.bytes().all(|b| b.is_ascii_hexdigit());
        let value = u128::from_str_radix(text, 16).ok().filter(|_| plain);
        value.map(Self::from_u128).ok_or_else(|| InvalidInput::new(format!("{text:?} is not a keeper id")))
    }
}

/// One acquisition: the keeper's id and a number that keeper never uses again (invariant I1).
///
/// Release and renewal match the whole id, so a late release never frees somebody else's lock.
/// Its text form is 32 hexadecimal digits, a dash and a decimal number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ContenderId {
    /// The keeper that asks.
    pub keeper: KeeperId,
    /// The keeper's own number for this acquisition.
    pub seq: u64,
}

impl fmt::Display for ContenderId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.keeper, self.seq)
    }
}

impl fmt::Debug for ContenderId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for ContenderId {
    type Err = InvalidInput;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let parse = || {
            let (keeper, seq) = text.split_once('-')?;
            Some(Self { keeper: keeper.parse().ok()?, seq: seq.parse().ok()? })
        };
        parse().ok_or_else(|| InvalidInput::new(format!("{text:?} is not a contender id")))
    }
}

/// Gives out the numbers of one keeper, each once.
#[derive(Debug)]
pub(crate) struct Ids {
    keeper: KeeperId,
    next: AtomicU64,
}

impl Ids {
    pub(crate) fn new(keeper: KeeperId) -> Self {
        Self { keeper, next: AtomicU64::new(1) }
    }

    pub(crate) fn keeper(&self) -> KeeperId {
        self.keeper
    }

    pub(crate) fn next(&self) -> ContenderId {
        ContenderId { keeper: self.keeper, seq: self.next.fetch_add(1, Ordering::Relaxed) }
    }

    /// A number that nobody can guess from other numbers of this keeper: the id is the key to a lease, and strangers
    /// may share a keeper. It is above all that [`next`](Self::next) gives out, and below 2^63.
    pub(crate) fn unguessable(&self) -> ContenderId {
        ContenderId { keeper: self.keeper, seq: 1 << 62 | random() >> 2 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeper_ids_survive_text() {
        let id = KeeperId::random();
        assert_eq!(id.to_string().parse::<KeeperId>().ok(), Some(id));
        for text in ["", "12", "+0000000000000000000000000000001", "z0000000000000000000000000000001"] {
            assert!(text.parse::<KeeperId>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn contender_ids_survive_text() {
        let id = ContenderId { keeper: KeeperId::random(), seq: u64::MAX };
        assert_eq!(id.to_string().parse::<ContenderId>().ok(), Some(id));
        for text in ["", "-", "12-3", "+0000000000000000000000000000001-1", "zz-1"] {
            assert!(text.parse::<ContenderId>().is_err(), "{text:?}");
        }
    }
}
