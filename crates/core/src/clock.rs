//! The client's clock: it goes on while the machine sleeps, and tests own it.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, SystemTime},
};

/// A moment on the client's boot-time clock, in nanoseconds. It never goes back and counts
/// suspend, which `std::time::Instant` on Linux does not.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct BootTime(pub u64);

impl BootTime {
    /// A moment that never comes.
    pub const NEVER: Self = Self(u64::MAX);

    /// The moment `length` later.
    pub fn after(self, length: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(length.as_nanos()).unwrap_or(u64::MAX)))
    }

    /// The moment `length` earlier.
    pub fn before(self, length: Duration) -> Self {
        Self(self.0.saturating_sub(u64::try_from(length.as_nanos()).unwrap_or(u64::MAX)))
    }

    /// How long after `earlier` this is; zero if it is not.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

/// A source of time: the machine, or a test.
#[derive(Clone, Debug)]
pub struct Clock(Source);

#[derive(Clone, Debug)]
enum Source {
    Boot,
    Virtual(VirtualClock),
}

/// While asleep, the boot-time clock is looked at this often: tokio's timers stand still while
/// the machine is suspended, so a single long sleep would end that much too late.
pub(crate) const LONGEST_NAP: Duration = Duration::from_secs(1);

impl Clock {
    /// The machine's boot-time clock.
    pub fn boot() -> Self {
        Self(Source::Boot)
    }

    /// The time now.
    pub fn now(&self) -> BootTime {
        match &self.0 {
            Source::Boot => boot_time(),
            Source::Virtual(clock) => clock.now(),
        }
    }

    /// Wall time in microseconds since 1970: decides nothing on the client, but a store in this
    /// process draws its grant numbers from it.
    pub fn wall_micros(&self) -> u64 {
        match &self.0 {
            Source::Boot => SystemTime::now()
                .duration_since(SystemTime::UNIX_EPOCH)
                .map_or(0, |since| u64::try_from(since.as_micros()).unwrap_or(u64::MAX)),
            Source::Virtual(clock) => clock.now().0 / 1000,
        }
    }

    /// Sleeps until `moment`, on this clock.
    pub async fn sleep_until(&self, moment: BootTime) {
        self.nap_until(moment, LONGEST_NAP).await;
    }

    /// Sleeps until `moment`, but notices only after a nap that the machine was suspended.
    pub(crate) async fn nap_until(&self, moment: BootTime, longest: Duration) {
        loop {
            let left = moment.since(self.now());
            if left.is_zero() {
                return;
            }
            // At least one tick of tokio's timers, or a clock that runs slow would never get there.
            tokio::time::sleep(left.clamp(Duration::from_millis(1), longest)).await;
        }
    }

    /// Runs `work` until `limit` has passed; `None` if it did.
    pub(crate) async fn within<T>(&self, limit: Duration, work: impl Future<Output = T>) -> Option<T> {
        tokio::time::timeout(limit, work).await.ok()
    }
}

/// A clock for tests: it follows tokio's clock, which a test can pause and advance, and it can
/// be made to jump as if the machine had been suspended.
///
/// ```
/// # use std::time::Duration;
/// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
/// use lockkeeper::testing::VirtualClock;
///
/// let clock = VirtualClock::new();
/// let start = clock.now();
/// tokio::time::sleep(Duration::from_secs(60)).await;   // returns at once: tokio's time is paused
/// clock.suspend(Duration::from_secs(5));               // timers do not see these five seconds
/// assert_eq!(clock.now().since(start), Duration::from_secs(65));
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct VirtualClock {
    start: tokio::time::Instant,
    suspended: Arc<AtomicU64>,
    /// How much faster than tokio's clock it runs, in millionths.
    drift: i32,
}

impl VirtualClock {
    /// Far enough from zero that no deadline computed backwards is cut off.
    const FIRST: u64 = 1_000_000_000_000_000;

    /// A clock that starts now. Needs a tokio runtime with time.
    #[expect(clippy::new_without_default, reason = "it reads the runtime's clock")]
    pub fn new() -> Self {
        Self { start: tokio::time::Instant::now(), suspended: Arc::default(), drift: 0 }
    }

    /// The same clock, running faster by so many millionths (slower if negative).
    pub fn drifting(self, millionths: i32) -> Self {
        Self { drift: millionths, ..self }
    }

    /// The time now.
    pub fn now(&self) -> BootTime {
        let elapsed = i128::try_from(self.start.elapsed().as_nanos()).unwrap_or(i128::MAX / 2);
        let elapsed = elapsed + elapsed * i128::from(self.drift) / 1_000_000;
        let suspended = Duration::from_nanos(self.suspended.load(Ordering::Relaxed));
        BootTime(Self::FIRST)
            .after(Duration::from_nanos(u64::try_from(elapsed).unwrap_or(0)))
            .after(suspended)
    }

    /// Lets `length` pass without any timer noticing, as a suspended machine or a stopped
    /// process does.
    pub fn suspend(&self, length: Duration) {
        let nanos = u64::try_from(length.as_nanos()).unwrap_or(u64::MAX);
        self.suspended.fetch_add(nanos, Ordering::Relaxed);
    }

    /// This clock as a [`Clock`].
    pub fn clock(&self) -> Clock {
        Clock(Source::Virtual(self.clone()))
    }
}

/// The clock that counts suspend: Linux and Apple's systems have one each.
#[cfg(any(target_os = "linux", target_os = "android"))]
const SUSPEND_COUNTS: rustix::time::ClockId = rustix::time::ClockId::Boottime;
#[cfg(target_vendor = "apple")]
const SUSPEND_COUNTS: rustix::time::ClockId = rustix::time::ClockId::Monotonic;

#[cfg(any(target_os = "linux", target_os = "android", target_vendor = "apple"))]
fn boot_time() -> BootTime {
    let time = rustix::time::clock_gettime(SUSPEND_COUNTS);
    BootTime(
        u64::try_from(time.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(time.tv_nsec).unwrap_or(0),
    )
}

/// Elsewhere the standard clock has to do; on Windows it counts sleep. The origin is moved away
/// from zero so that no deadline computed backwards is cut off.
#[cfg(not(any(target_os = "linux", target_os = "android", target_vendor = "apple")))]
fn boot_time() -> BootTime {
    use std::{sync::OnceLock, time::Instant};
    static START: OnceLock<Instant> = OnceLock::new();
    BootTime(1_000_000_000_000).after(START.get_or_init(Instant::now).elapsed())
}
