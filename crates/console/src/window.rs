//! The time that pages look back for hot locks, and a lock's curves in it.

use crate::{clock::Millis, curve::Use, history::Record};

/// The time to look back, in minutes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Window {
    One,
    #[default]
    Five,
    Sixty,
}

impl Window {
    pub(crate) fn minutes(self) -> u64 {
        match self {
            Self::One => 1,
            Self::Five => 5,
            Self::Sixty => 60,
        }
    }

    pub(crate) fn from_minutes(minutes: u64) -> Option<Self> {
        [Self::One, Self::Five, Self::Sixty].into_iter().find(|window| window.minutes() == minutes)
    }

    pub(crate) fn length(self) -> Millis {
        self.minutes() * 60_000
    }

    pub(crate) fn sum(self, record: &Record, now: Millis) -> Use {
        let curve = if self == Self::Sixty { &record.coarse } else { &record.fine };
        curve.sum(now, self.length())
    }

    pub(crate) fn points(self, record: &Record, now: Millis) -> Vec<Use> {
        match self {
            Self::One => record.fine.points(now, self.length(), 1),
            Self::Five => record.fine.points(now, self.length(), 5),
            Self::Sixty => record.coarse.points(now, self.length(), 2),
        }
    }
}
