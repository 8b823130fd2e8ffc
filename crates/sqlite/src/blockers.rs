//! Finds the keepers whose crash a waiter must hear of.
//!
//! Pure: it looks at the model's resource only.

use lockkeeper_core::{ContenderId, KeeperId, model::Resource};

/// How many holders are monitored for crashes. The next poll finds the crashes of others.
const HOLDERS: usize = 8;

/// How many waiters right ahead are monitored for crashes. Waiters farther ahead are monitored by those right behind
/// them, and each monitored process takes a descriptor.
const WAITERS: usize = 3;

/// The keepers whose crash `contender` must hear of: some of the holders, and the waiters right ahead of it. Their
/// crash lets it pass, or they crashed after they left and before they told that.
///
/// A detached hold outlives its keeper, but that keeper may still leave it. Nobody can leave a retired hold.
pub(crate) fn blockers(resource: &Resource, contender: ContenderId) -> impl Iterator<Item = KeeperId> {
    let holders = resource.holders.iter().filter(|holder| !holder.retired);
    let holders = holders.map(|holder| holder.contender.keeper).take(HOLDERS);
    let from_own = resource.queue.iter().rev().skip_while(move |waiter| waiter.contender != contender);
    let ahead =
        from_own.map(|waiter| waiter.contender.keeper).filter(move |keeper| *keeper != contender.keeper);
    holders.chain(ahead.take(WAITERS))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use lockkeeper_core::{
        Capacity, Name, Units,
        model::{Effects, HighWater, Now},
        store::{Claim, StoreTime},
        testing,
    };

    use super::*;

    fn contender(keeper: u128) -> ContenderId {
        ContenderId { keeper: KeeperId::from_u128(keeper), seq: 1 }
    }

    #[test]
    fn some_holders_and_the_waiters_right_ahead_are_blockers() {
        let capacity = Capacity::count(10).expect("valid");
        let mut resource = Resource::free(capacity);
        for keeper in 1..=15 {
            let claim = Claim {
                units: Units::ONE,
                capacity,
                lease: Duration::from_secs(60),
                stamp: 1,
                ..testing::claim(&Name::new("stock").expect("valid"), contender(keeper))
            };
            let now = Now { lease: StoreTime(0), wall: 0 };
            resource.claim(now, &mut HighWater::default(), &claim, &mut Effects::default());
        }
        resource.holders[0].retired = true;
        resource.holders[1].detached = true;
        let expected = (2..=9).chain([14, 13, 12]).map(KeeperId::from_u128);
        assert_eq!(blockers(&resource, contender(15)).collect::<Vec<_>>(), expected.collect::<Vec<_>>());
    }
}
