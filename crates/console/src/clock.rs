//! Moments that never go back: the wall clock at the start, carried on by a clock that nobody sets.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use lockkeeper::clock::{BootTime, Clock};

/// A moment in milliseconds since 1970, or a length in milliseconds.
pub type Millis = u64;

/// Returns a length in milliseconds.
pub(crate) fn millis(length: Duration) -> Millis {
    u64::try_from(length.as_millis()).unwrap_or(u64::MAX)
}

/// Returns a moment of the wall clock in milliseconds since 1970.
pub(crate) fn wall(time: SystemTime) -> Millis {
    millis(time.duration_since(UNIX_EPOCH).unwrap_or_default())
}

/// A clock that shows wall time but does not jump when the wall clock is set.
#[derive(Clone, Debug)]
pub struct SteadyClock {
    clock: Clock,
    start: BootTime,
    wall: Millis,
}

impl SteadyClock {
    /// Makes a clock that begins with the wall time of `clock` and goes on as fast as `clock` does.
    pub fn new(clock: Clock) -> Self {
        let (start, wall) = (clock.now(), clock.wall_micros() / 1000);
        Self { clock, start, wall }
    }

    /// Returns this moment.
    pub fn now(&self) -> Millis {
        self.wall + millis(self.clock.now().since(self.start))
    }
}
