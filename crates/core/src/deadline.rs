//! How long a holder may act: the arithmetic of rule 2 of the design, and nothing else.
//!
//! The store's clock decides when a lease ends, the client's clock how long it may act. The two
//! are tied at one point only: the client's time *before* a request was sent is not later than
//! the store's time when it was processed. Everything here stays on the early side of that.

use std::time::Duration;

use crate::clock::BootTime;
use crate::store::GrantNotice;

/// The part of a span that is taken off for clocks that run at different rates: 1 % and 2 ms.
pub fn margin(span: Duration) -> Duration {
    span / 100 + Duration::from_millis(2)
}

/// How much a store's times may be off by rounding: less than the fixed part of the margin, so
/// that a deadline stays on the early side all the same.
const ROUNDING: Duration = Duration::from_millis(1);

/// Returns the end of the time in which the owner of an answer may act. `sent` is when *that very request* was sent,
/// and `remaining` is the rest of the lease that the store stated in its answer (invariant I3).
pub fn from_answer(sent: BootTime, remaining: Duration) -> BootTime {
    sent.after(remaining).before(margin(remaining))
}

/// Returns the end of the time in which the owner of a pushed grant may act, or `None` if the notice is only a hint.
///
/// `waited` is measured by the store between the claim copy with this stamp and the grant. If
/// that lies clearly after the moment of receipt, the store's clock has jumped or the store has
/// changed hands, and the sum means nothing (invariant I4).
pub fn from_notice(notice: &GrantNotice, received: BootTime) -> Option<BootTime> {
    let granted = BootTime(notice.stamp).after(notice.waited);
    let deadline = granted.after(notice.lease).before(margin(notice.waited + notice.lease));
    // Little left: by the time its owner runs, the grant could be over.
    let enough = deadline.since(received) > notice.lease / 4;
    (granted <= received.after(ROUNDING) && enough).then_some(deadline)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::{ContenderId, KeeperId};

    fn notice(stamp: BootTime, waited: Duration, lease: Duration) -> GrantNotice {
        let contender = ContenderId { keeper: KeeperId::from_u128(1), seq: 1 };
        GrantNotice { contender, number: 1, floor: 1, stamp: stamp.0, waited, lease }
    }

    const START: BootTime = BootTime(1_000_000_000_000);
    const SECOND: Duration = Duration::from_secs(1);

    /// Timeline A1: the second answer to one claim states the rest of the lease, not the full one.
    #[test]
    fn i3_a_repeated_answer_counts_from_its_own_send() {
        let sent_again = START.after(8 * SECOND);
        let deadline = from_answer(sent_again, 2 * SECOND);
        assert!(deadline < START.after(10 * SECOND), "the store ends it at 10 s");
    }

    /// Timeline A2a: the echoed stamp belongs to the copy that the store measured from.
    #[test]
    fn i4_a_notice_counts_from_the_echoed_stamp() {
        let deadline = from_notice(&notice(START, 21 * SECOND, 3 * SECOND), START.after(21 * SECOND));
        assert!(deadline.expect("trusted") <= START.after(24 * SECOND));
    }

    /// Timelines A2b and A2c: the store's clock jumped forward, or another server with another
    /// clock granted: the sum lies in the future, so it is only a hint.
    #[test]
    fn i4_a_notice_from_the_future_is_only_a_hint() {
        assert_eq!(from_notice(&notice(START, 70 * SECOND, 3 * SECOND), START.after(10 * SECOND)), None);
    }

    /// A store in this process grants within less than the microsecond that it counts in, so the
    /// wait it tells may be longer than the one there was.
    #[test]
    fn i4_a_rounded_wait_is_trusted() {
        let received = START.after(Duration::from_nanos(700));
        let deadline = from_notice(&notice(START, Duration::from_micros(1), 3 * SECOND), received);
        assert!(deadline.expect("trusted") < START.after(3 * SECOND), "the store ends it at 3 s");
        let jumped = notice(START, Duration::from_millis(2), 3 * SECOND);
        assert_eq!(from_notice(&jumped, received), None, "more than rounding");
    }

    /// Timeline A2d: two hours of waiting drift further apart than a margin of the lease covers.
    #[test]
    fn i4_the_margin_covers_the_wait_too() {
        let wait = Duration::from_secs(600);
        let deadline = from_notice(&notice(START, wait, 30 * SECOND), START.after(wait)).expect("trusted");
        assert!(deadline.after(wait / 2000) < START.after(wait + 30 * SECOND), "500 ppm of the wait");
        let long = Duration::from_secs(7200);
        assert_eq!(
            from_notice(&notice(START, long, 3 * SECOND), START.after(long)),
            None,
            "a margin larger than the lease leaves nothing"
        );
    }

    #[test]
    fn i4_a_late_notice_is_only_a_hint() {
        assert_eq!(from_notice(&notice(START, SECOND, 3 * SECOND), START.after(4 * SECOND)), None);
    }
}
