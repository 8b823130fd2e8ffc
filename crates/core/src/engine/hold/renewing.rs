//! The times at which a hold is renewed, and the effects of the answers. Pure: the watchdog sends the renewals.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use super::Hold;
use crate::{
    clock::BootTime,
    deadline,
    error::{StoreError, StoreErrorKind},
};

/// While a renewal is unanswered, no other goes out for this long: a store that is only slow is not to get more to do.
const BETWEEN_TRIES: Duration = Duration::from_millis(250);

/// With less than this left, a fixed lease that is vouched for no further is not confirmed again.
const LAST_CONFIRMED: Duration = Duration::from_millis(50);

/// The requests to the store about a hold: those that were made, and the next one.
#[derive(Debug, Default)]
pub(super) struct Renewing {
    pub(super) renew_at: BootTime,
    /// The latest end that the store was ever asked for, on the client's clock. A fixed lease ends then at the latest,
    /// and the store may believe in any lease until then, even if answers were lost.
    pub(super) asked_until: BootTime,
    /// Whether the store knows that its owner knows.
    pub(super) confirmed: bool,
    /// The time at which the latest answered renewal had been sent.
    pub(super) heard_at: BootTime,
    /// Whether the store may not know it any more, and has not been asked since.
    pub(super) doubted: bool,
    /// Whether its leave has been sent.
    pub(super) left: bool,
    /// Whether the task that waited for it has it.
    pub(super) taken: bool,
    /// Whether a renewal was sent since the store last answered one.
    pub(super) awaited: bool,
    /// The length of the lease that runs now: a first lease is shorter than the rest.
    pub(super) running: Duration,
    /// The troubles of this hold. Most holds have none, and a keeper may hold very many.
    pub(super) trouble: Option<Box<Trouble>>,
}

/// The troubles of a hold.
#[derive(Debug, Default)]
pub(super) struct Trouble {
    /// The error of the last renewal, if it failed.
    pub(super) error: Option<StoreError>,
    /// The reason of a loss beyond its kind.
    pub(super) lost_because: Option<Arc<str>>,
}

impl Renewing {
    /// The last renewal failed with this error.
    fn failed(&mut self, error: StoreError) {
        self.trouble.get_or_insert_default().error = Some(error);
    }

    /// The store answered the last renewal.
    pub(super) fn has_no_error(&mut self) {
        if let Some(trouble) = &mut self.trouble {
            trouble.error = None;
        }
        self.trouble.take_if(|trouble| trouble.lost_because.is_none());
    }
}

/// The watchdog's duty to a hold.
pub(crate) enum Due {
    /// Nothing yet.
    Later,
    /// Renew it, asking for this lease.
    Renew(Duration),
    /// It is over.
    Over,
}

impl Hold {
    /// Returns the watchdog's duty at `now`; `early` is how much too early it may renew.
    pub(crate) fn plan(&self, now: BootTime, early: Duration) -> Due {
        if self.lost().is_some() {
            return Due::Over;
        }
        let ends = self.ends();
        if now >= ends {
            self.lose(self.overdue());
            return Due::Over;
        }
        let mut renewing = self.renewing();
        if now.after(early) < renewing.renew_at {
            return Due::Later;
        }
        // If no answer has come by half of the time that is left, another one goes out. The first is waited for as
        // well: the store may only be slow.
        renewing.renew_at = now.after((ends.since(now) / 2).max(BETWEEN_TRIES));
        renewing.doubted = false;
        Due::Renew(self.lease_to_ask_for(now))
    }

    /// The store may not know it any more. It is to be renewed now, also if a renewal is in flight, whose answer may be
    /// older.
    pub(crate) fn doubt(&self, now: BootTime) {
        let mut renewing = self.renewing();
        renewing.doubted = true;
        renewing.renew_at = now;
    }

    /// The lease that a renewal at `now` asks for.
    pub(crate) fn lease_to_ask_for(&self, now: BootTime) -> Duration {
        self.terms.lease_to_ask_for(self.limit().since(now))
    }

    /// A renewal sent at `sent` was answered with `remaining`; it arrived at `now`.
    pub(crate) fn answered(&self, sent: BootTime, remaining: Duration, now: BootTime) {
        let mut renewing = self.renewing();
        renewing.confirmed = true;
        if renewing.heard_at > sent {
            // A later one has been answered before.
            return;
        }
        renewing.heard_at = sent;
        // A success that arrives after the deadline is not a success.
        if self.lost().is_some() || now >= self.ends() {
            let message =
                "the last renewal was answered too late; check the store and whether this machine is busy";
            renewing.failed(StoreError::new(StoreErrorKind::Unreachable, message));
            drop(renewing);
            self.lose(self.overdue());
            return;
        }
        renewing.awaited = false;
        renewing.has_no_error();
        let deadline = deadline::from_answer(sent, remaining);
        let before = BootTime(self.deadline.swap(deadline.0, Ordering::AcqRel));
        self.plan_renewal(&mut renewing, sent, remaining, deadline > before);
        if renewing.doubted {
            renewing.renew_at = now;
        }
    }

    /// The outcome of a renewal sent at `sent` is unknown at `now`: try again soon, more often the less time is left.
    pub(crate) fn unanswered(&self, sent: BootTime, now: BootTime, error: StoreError) {
        let mut renewing = self.renewing();
        // Unless a later one has been answered.
        if renewing.heard_at <= sent {
            renewing.failed(error);
            let pause = (self.ends().since(now) / 4).clamp(Duration::from_millis(5), Duration::from_secs(1));
            renewing.renew_at = now.after(pause);
        }
    }

    /// A renewal sent at `sent` by the hold's owner failed. The watchdog renews as before.
    pub(crate) fn renewal_failed(&self, sent: BootTime, error: StoreError) {
        let mut renewing = self.renewing();
        if renewing.heard_at <= sent {
            renewing.failed(error);
        }
    }

    /// The length of the lease that runs now.
    pub(crate) fn running(&self) -> Duration {
        self.renewing().running
    }

    /// Renewals come at a third of the lease. A fixed lease is confirmed once if it was pushed, and
    /// again until the store has vouched for all of it. An answer that took longer than the one before
    /// may say less; only at the very end that means that nothing more will come. And no renewal is
    /// needed that could not pass `max_hold` anyway.
    pub(super) fn plan_renewal(
        &self,
        renewing: &mut Renewing,
        from: BootTime,
        remaining: Duration,
        vouched_for_more: bool,
    ) {
        renewing.running = remaining;
        let to_come = if self.terms.renewed {
            self.limit() > self.deadline()
        } else {
            let end = renewing.asked_until;
            let short = from.after(remaining).after(deadline::margin(end.since(self.granted))) < end;
            short && (vouched_for_more || remaining > LAST_CONFIRMED)
        };
        // More than was asked for means that the store's clock went back. It may come forward again, so the next
        // renewal is no later for it.
        let third = remaining.min(self.terms.claim_lease()) / 3;
        let due = to_come || !renewing.confirmed;
        renewing.renew_at = if due { from.after(third) } else { BootTime::NEVER };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        engine::{hold::Grantee, terms::Terms},
        error::Lost,
        id::{ContenderId, KeeperId},
        name::Name,
        share::{Capacity, Units},
        store::{Grant, Kind},
    };

    const START: BootTime = BootTime(1_000_000_000_000);
    const SECOND: Duration = Duration::from_secs(1);

    /// A hold with these terms, for which the store has vouched so far for `lease`.
    fn granted(terms: Terms, lease: Duration) -> Hold {
        let grantee = Grantee {
            name: Name::new("stock").expect("a good name"),
            contender: ContenderId { keeper: KeeperId::from_u128(1), seq: 1 },
            slot: 1,
            terms: Arc::new(terms),
            tombstone_until: None,
        };
        let grant = Grant { number: 1, floor: 1, remaining: lease };
        Hold::from_answer(grantee, &grant, START, START).expect("in time")
    }

    #[test]
    fn one_renewal_reaches_max_hold_and_max_hold_ends_it() {
        let terms = Terms {
            lease: 10 * SECOND,
            max_hold: Some(12 * SECOND),
            ..Terms::new(Kind::Mutex, Units::All, Capacity::All)
        };
        let hold = granted(terms, 10 * SECOND);
        let now = START.after(10 * SECOND / 3);
        let Due::Renew(lease) = hold.plan(now, Duration::ZERO) else {
            panic!("a third of its lease is over")
        };
        assert!(lease < 10 * SECOND, "no more than it needs: {lease:?}");
        hold.answered(now, lease, now);
        assert_eq!(hold.due(), START.after(12 * SECOND), "nothing more to renew, only an end");
        assert!(matches!(hold.plan(hold.due(), Duration::ZERO), Due::Over));
        assert_eq!(hold.lost(), Some(Lost::MaxHold));
    }

    /// Another server has taken the place of the one that is being asked: its answer counts, and the new one is asked.
    #[test]
    fn a_doubt_during_a_renewal_is_followed_by_another() {
        let terms = Terms { lease: 30 * SECOND, ..Terms::new(Kind::Mutex, Units::All, Capacity::All) };
        let hold = granted(terms, 30 * SECOND);
        let sent = START.after(10 * SECOND);
        assert!(matches!(hold.plan(sent, Duration::ZERO), Due::Renew(_)));
        let doubted = sent.after(SECOND);
        hold.doubt(doubted);
        let answered = doubted.after(SECOND);
        hold.answered(sent, 30 * SECOND, answered);
        assert!(matches!(hold.plan(answered, Duration::ZERO), Due::Renew(_)), "asked again at once");
        hold.answered(answered, 30 * SECOND, answered);
        assert_eq!(hold.due(), answered.after(10 * SECOND), "all is well again");
    }

    /// The store's clock went back by an hour, so it says that an hour is left. Its next change is noticed within one
    /// renewal all the same.
    #[test]
    fn a_store_that_promises_more_than_was_asked_for_is_asked_as_often() {
        let terms = Terms { lease: 3 * SECOND, ..Terms::new(Kind::Mutex, Units::All, Capacity::All) };
        let hold = granted(terms, 3 * SECOND);
        let now = START.after(SECOND);
        assert!(matches!(hold.plan(now, Duration::ZERO), Due::Renew(_)));
        hold.answered(now, 3600 * SECOND, now);
        assert_eq!(hold.due(), now.after(SECOND));
    }

    /// Ten seconds, of which the store has vouched for three.
    fn a_fixed_lease() -> Hold {
        let lease = 10 * SECOND;
        let terms = Terms { lease, renewed: false, ..Terms::new(Kind::Mutex, Units::All, Capacity::All) };
        granted(terms, 3 * SECOND)
    }

    /// A store whose leases rest on a session vouches for a part of a fixed lease at a time.
    #[test]
    fn i3_a_fixed_lease_is_confirmed_until_the_store_has_vouched_for_all_of_it() {
        let (lease, hold) = (10 * SECOND, a_fixed_lease());
        let mut confirmed = 0;
        while hold.due() < hold.ends() {
            let now = hold.due();
            assert!(matches!(hold.plan(now, Duration::ZERO), Due::Renew(Duration::ZERO)), "never extended");
            hold.answered(now, (3 * SECOND).min(START.after(lease).since(now)), now);
            confirmed += 1;
        }
        assert!(hold.ends() > START.after(lease * 9 / 10), "the whole lease");
        assert!(confirmed < 12, "no more than needed: {confirmed}");
        assert!(matches!(hold.plan(hold.ends(), Duration::ZERO), Due::Over));
    }

    /// The session's end has not moved between two answers, and the second was slower: it says less. The lease goes
    /// on all the same; and a store that has nothing more to say is not asked without end.
    #[test]
    fn i3_a_slow_answer_does_not_end_a_fixed_lease() {
        let hold = a_fixed_lease();
        let session_ends = START.after(3 * SECOND);
        let mut confirmed = 0;
        while hold.due() < hold.ends() {
            let sent = hold.due();
            let answered = sent.after(SECOND / 20);
            assert!(matches!(hold.plan(sent, Duration::ZERO), Due::Renew(Duration::ZERO)));
            hold.answered(sent, session_ends.since(answered), answered);
            confirmed += 1;
        }
        assert!((2..20).contains(&confirmed), "{confirmed}");
    }
}
