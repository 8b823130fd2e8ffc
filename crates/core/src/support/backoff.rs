//! Pauses between tries that fail.

use std::time::Duration;

/// Pauses that double with each failure, from a shortest to a longest.
///
/// ```
/// # use std::time::Duration;
/// use lockkeeper::support::backoff::Backoff;
/// let mut backoff = Backoff::new(Duration::from_millis(50), Duration::from_millis(150));
/// assert_eq!(backoff.pause(), Duration::from_millis(50));
/// assert_eq!(backoff.pause(), Duration::from_millis(100));
/// assert_eq!(backoff.pause(), Duration::from_millis(150));
/// backoff.reset();
/// assert_eq!(backoff.pause(), Duration::from_millis(50));
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Backoff {
    shortest: Duration,
    longest: Duration,
    next: Duration,
}

impl Backoff {
    /// Begins with `shortest` and never pauses for longer than `longest`.
    pub const fn new(shortest: Duration, longest: Duration) -> Self {
        Self { shortest, longest, next: shortest }
    }

    /// The pause after one more failure.
    pub fn pause(&mut self) -> Duration {
        let pause = self.next.min(self.longest);
        self.next = pause.saturating_mul(2);
        pause
    }

    /// The pause after one more failure, shortened by up to a half at random: many clients that lost the same server
    /// do not come back at the same moment.
    pub fn jittered(&mut self) -> Duration {
        let pause = self.pause();
        let random = getrandom::u32().unwrap_or(u32::MAX / 2);
        pause / 2 + (pause / 2).mul_f64(f64::from(random) / f64::from(u32::MAX))
    }

    /// A try succeeded: the next pause is the shortest again.
    pub fn reset(&mut self) {
        self.next = self.shortest;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jitter_stays_between_half_and_all_of_the_pause() {
        let mut backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(1));
        for expected in [50, 100, 200, 400, 800, 1000, 1000] {
            let pause = backoff.jittered();
            let whole = Duration::from_millis(expected);
            assert!(pause >= whole / 2 && pause <= whole, "{pause:?} of {whole:?}");
        }
    }
}
