//! Limits the rate of requests of one token, and of wrong tokens from one address.

use std::{
    collections::HashMap,
    net::IpAddr,
    sync::Mutex,
    time::{Duration, Instant},
};

use lockkeeper::support;

/// How many addresses with failed logins are remembered.
const ADDRESSES: usize = 4096;

/// A rate with a burst: the bucket fills up steadily, and each request takes one from it.
#[derive(Debug)]
pub(crate) struct Bucket {
    per_second: f64,
    burst: f64,
    state: Mutex<(f64, Instant)>,
}

impl Bucket {
    pub(crate) fn new(per_second: f64, burst: f64) -> Self {
        Self { per_second, burst, state: Mutex::new((burst, Instant::now())) }
    }

    /// Takes one; fails with the time to wait for it if there is none.
    pub(crate) fn take(&self) -> Result<(), Duration> {
        self.take_at(Instant::now())
    }

    fn take_at(&self, now: Instant) -> Result<(), Duration> {
        let mut state = support::lock(&self.state);
        let (left, since) = *state;
        let filled = now.saturating_duration_since(since).as_secs_f64() * self.per_second;
        let left = (left + filled).min(self.burst);
        if left < 1.0 {
            *state = (left, now);
            return Err(Duration::from_secs_f64((1.0 - left) / self.per_second));
        }
        *state = (left - 1.0, now);
        Ok(())
    }

    /// Whether nothing was taken for so long that it is full again.
    fn is_full(&self, now: Instant) -> bool {
        let (left, since) = *support::lock(&self.state);
        left + now.saturating_duration_since(since).as_secs_f64() * self.per_second >= self.burst
    }
}

/// Failed logins by address.
#[derive(Debug, Default)]
pub(crate) struct Failures {
    buckets: Mutex<HashMap<IpAddr, Bucket>>,
}

impl Failures {
    /// Counts one more failure from an address; fails with the time to wait if there were too many.
    pub(crate) fn count(&self, address: IpAddr) -> Result<(), Duration> {
        let mut buckets = support::lock(&self.buckets);
        if buckets.len() >= ADDRESSES && !buckets.contains_key(&address) {
            let now = Instant::now();
            buckets.retain(|_, bucket| !bucket.is_full(now));
            if buckets.len() >= ADDRESSES {
                // An attacker with so many addresses is not slowed down by this, and must not fill the memory.
                buckets.clear();
            }
        }
        buckets.entry(address).or_insert_with(|| Bucket::new(5.0, 20.0)).take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_gives_its_burst_and_then_its_rate() {
        let bucket = Bucket::new(10.0, 3.0);
        let start = Instant::now();
        assert!((0..3).all(|_| bucket.take_at(start).is_ok()));
        let pause = bucket.take_at(start).expect_err("it is empty");
        assert!(pause <= Duration::from_millis(101), "{pause:?}");
        assert!(bucket.take_at(start + Duration::from_millis(110)).is_ok());
        assert!(bucket.take_at(start + Duration::from_millis(120)).is_err());
    }
}
