//! Moments at which something ends by itself: settles the model at them, and keeps steps away from them.

use std::time::Duration;

use lockkeeper_core::{
    ContenderId, KeeperId,
    model::{Effects, WAIT_LEASE},
    store::{Renew, StoreTime},
};

use super::{super::compare::Compared, CLEARANCE, Pair, SETTLE_LIMIT, at};

impl Pair<'_> {
    /// Lets the model settle at each moment until `now` at which something ends, like a store that settles by itself.
    pub(super) fn settle_until(&mut self, now: StoreTime) {
        while let Some(end) = self.ends().filter(|end| *end > self.settled && *end <= now).min() {
            for name in self.names.clone() {
                let nobody = ContenderId { keeper: KeeperId::from_u128(0), seq: 0 };
                let renew = Renew {
                    name: name.clone(),
                    contender: nobody,
                    lease: Duration::ZERO,
                    lower_to: None,
                    detach: false,
                    at_least: 0,
                };
                let mut effects = Effects::default();
                self.model.renew(at(end), &renew, &mut effects);
                self.note(&name, effects);
            }
            self.settled = end;
        }
        self.settled = self.settled.max(now);
    }

    /// Waits until the store's views agree with the model's.
    pub(super) async fn come_to_rest(&mut self) -> Compared {
        let started = std::time::Instant::now();
        loop {
            let now = self.now().await?;
            self.settle_until(now);
            match self.compare_views().await {
                Err(_) if started.elapsed() < SETTLE_LIMIT => {
                    (self.subject.pass)(Duration::from_millis(5)).await;
                }
                compared => return compared,
            }
        }
    }

    /// The first moment after `now` at which something ends by itself.
    pub(super) fn next_end(&self, now: StoreTime) -> Option<StoreTime> {
        self.ends().filter(|end| *end > now).min()
    }

    pub(super) fn ends(&self) -> impl Iterator<Item = StoreTime> {
        let resources = self.names.iter().filter_map(|name| self.model.resource(name));
        let ends = resources.flat_map(|resource| {
            let holders = resource.holders.iter().map(|holder| holder.expires);
            holders.chain(resource.queue.iter().map(|waiter| waiter.asked.after(WAIT_LEASE)))
        });
        ends.chain(self.moments.iter().copied())
    }

    /// Waits until nothing is about to end or has just ended, by a clock that is not exact.
    pub(super) async fn keep_clear(&mut self) -> Result<(), String> {
        if self.tolerance.is_zero() {
            return Ok(());
        }
        loop {
            let now = self.now().await?;
            let until = now.after(self.tolerance + CLEARANCE);
            let near = self.ends().filter(|end| end.after(self.tolerance) >= now && *end <= until).max();
            let Some(end) = near else { return Ok(()) };
            (self.subject.pass)(end.since(now) + self.tolerance + Duration::from_millis(1)).await;
        }
    }
}
