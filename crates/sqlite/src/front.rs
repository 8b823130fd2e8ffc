//! A poll as a step of the model on the front of a queue: the holders, and the waiters up to the one that asks.
//!
//! Pure: [`crate::poll`] loads the front and writes the position.

use lockkeeper_core::{
    model::{Effects, HighWater, Now, Resource},
    store::{Claim, Verdict},
};

/// The front of a queue. Its holders and waiters are without their details, which no step looks at.
#[derive(Debug)]
pub(crate) struct Front {
    /// The last waiter is the one that asks.
    pub(crate) resource: Resource,
    /// The stored position of that waiter.
    pub(crate) position: i64,
}

/// What a poll comes to that does no more than keep its position.
#[derive(Debug)]
pub(crate) struct Kept {
    pub(crate) verdict: Verdict,
    /// Whether the waiter changed, so that its row has to be written.
    pub(crate) changed: bool,
}

impl Front {
    /// Does the model's claim if that only keeps the position; `None` if it would do more, so that the whole resource is
    /// needed.
    ///
    /// Contenders behind the one that asks do not matter: the model may let them expire at any later time.
    pub(crate) fn keep_position(&mut self, now: Now, claim: &Claim) -> Option<Kept> {
        let (mut none, mut effects) = (HighWater::default(), Effects::default());
        let waiters = self.resource.queue.len();
        self.resource.settle(now, &mut none, &mut effects);
        if effects.changed || self.resource.queue.len() != waiters {
            return None;
        }
        let asked = self.resource.queue.back()?.asked;
        let verdict = self.resource.claim(now, &mut none, claim, &mut effects);
        let own = self.resource.queue.back()?;
        let kept = Kept { changed: own.asked != asked, verdict };
        matches!(kept.verdict, Verdict::Busy { .. }).then_some(kept)
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::Arc, time::Duration};

    use lockkeeper_core::{
        Capacity, ContenderId, KeeperId, Units,
        store::{Attachment, Details, Kind, ProcessInfo, StoreTime},
    };

    use super::*;

    fn at(seconds: u64) -> Now {
        Now { lease: StoreTime(seconds * 1_000_000), wall: 0 }
    }

    fn claim(seq: u64, lease: Duration) -> Claim {
        let process = ProcessInfo { host: "host".into(), pid: 1, program: "test".into() };
        Claim {
            name: lockkeeper_core::Name::new("stock").expect("valid"),
            contender: ContenderId { keeper: KeeperId::from_u128(1), seq },
            units: Units::All,
            capacity: Capacity::All,
            lease,
            queue: true,
            attachment: Attachment::Process,
            renewed: true,
            at_least: 0,
            min_hold: Duration::ZERO,
            not_after: StoreTime(u64::MAX),
            stamp: seq,
            again: false,
            details: Details { kind: Kind::Mutex, process: Arc::new(process), label: None, value: None },
        }
    }

    /// A front with a holder and two waiters, the second of which polls `seconds` after all of them came.
    fn poll_after(seconds: u64, lease: Duration) -> (Front, Option<Kept>) {
        let mut resource = Resource::free(Capacity::All);
        for seq in 1..=3 {
            resource.claim(at(0), &mut HighWater::default(), &claim(seq, lease), &mut Effects::default());
        }
        let mut front = Front { resource, position: 2 };
        let kept = front.keep_position(at(seconds), &claim(3, lease));
        (front, kept)
    }

    #[test]
    fn only_polls_that_keep_a_position_are_done_on_the_front() {
        let long = Duration::from_secs(60);
        for (seconds, changed) in [(1, false), (4, false), (5, true), (14, true)] {
            let (front, kept) = poll_after(seconds, long);
            let kept = kept.expect("it only keeps its position");
            assert!(matches!(kept.verdict, Verdict::Busy { ahead: 1, .. }), "{kept:?}");
            assert_eq!(kept.changed, changed, "after {seconds} s");
            let asked = if changed { at(seconds) } else { at(0) }.lease;
            assert_eq!(front.resource.queue.back().map(|own| own.asked), Some(asked));
        }
        assert!(poll_after(15, long).1.is_none(), "the positions have expired");
        assert!(
            poll_after(3, Duration::from_secs(2)).1.is_none(),
            "the lease has ended, so the head is granted"
        );
    }
}
