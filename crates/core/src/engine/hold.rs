//! A grant as the client sees it: how long it may act on it, and whether it is lost.
//!
//! Once lost or released, always so: a late answer never revives it (invariant I3).

use std::{
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::sync::Notify;

use super::terms::Terms;
use crate::{
    clock::{BootTime, Clock},
    deadline,
    error::{Lost, StoreError, StoreErrorKind},
    id::ContenderId,
    name::Name,
    store::{Grant, GrantNotice, StoreTime},
    support, telemetry,
    token::{GrantNumber, Token},
};

/// One grant of this keeper.
///
/// What is checked at every step of the work that it protects is read without a lock.
#[derive(Debug)]
pub(crate) struct Hold {
    pub(crate) name: Name,
    pub(crate) contender: ContenderId,
    /// The keeper's own number for it in the registry.
    pub(crate) slot: u64,
    pub(crate) number: GrantNumber,
    pub(crate) floor: GrantNumber,
    pub(crate) terms: Arc<Terms>,
    /// When it was granted, on the client's clock, at the latest.
    pub(crate) granted: BootTime,
    /// Until when a late copy of its claim may still arrive at the store.
    pub(crate) tombstone_until: Option<StoreTime>,
    /// Whether the store certainly keeps it without this process: it was adopted.
    pub(crate) adopted: bool,
    /// Whether the store may keep it without this process. Then it is not handed on: another task would hold what a
    /// crash does not free.
    stays: AtomicBool,
    deadline: AtomicU64,
    limit: AtomicU64,
    state: AtomicU8,
    step: AtomicU32,
    renewing: Mutex<Renewing>,
    changed: Notify,
}

/// What was asked of the store about a hold, and what is to be asked next.
#[derive(Debug, Default)]
struct Renewing {
    renew_at: BootTime,
    /// The latest end that the store was ever asked for, on the client's clock: when a fixed lease ends at the latest,
    /// and until when the store may believe in any, whatever answers were lost.
    asked_until: BootTime,
    /// Whether the store knows that its owner knows.
    confirmed: bool,
    /// When the latest renewal that was answered had been sent.
    heard_at: BootTime,
    /// Whether the store may not know it any more, and has not been asked since.
    doubted: bool,
    /// Whether its leave has been sent.
    left: bool,
    /// Whether the task that waited for it has it.
    taken: bool,
    /// Whether a renewal was sent since the store last answered one.
    awaited: bool,
    /// Why the last renewal failed, if it did.
    error: Option<StoreError>,
    /// The length of the lease that runs now: a first lease is shorter than the rest.
    running: Duration,
    /// What is known of a loss beyond its kind.
    lost_because: Option<Arc<str>>,
}

/// Who a grant is for.
pub(crate) struct Grantee {
    pub(crate) name: Name,
    pub(crate) contender: ContenderId,
    pub(crate) slot: u64,
    pub(crate) terms: Arc<Terms>,
    pub(crate) tombstone_until: Option<StoreTime>,
}

/// A lease, on the client's clock.
#[derive(Clone, Copy)]
struct Leased {
    from: BootTime,
    /// How long it lasts from then, as far as the store vouches for it.
    vouched: Duration,
    /// The whole lease: more where a store vouches only for as long as its session lasts.
    whole: Duration,
    deadline: BootTime,
    /// Whether the store knows that its owner knows.
    confirmed: bool,
}

const HELD: u8 = 0;

/// While a renewal is unanswered, no other goes out for this long: a store that is only slow is not to get more to do.
const BETWEEN_TRIES: Duration = Duration::from_millis(250);

/// With less than this left, a fixed lease that is vouched for no further is not confirmed again.
const LAST_CONFIRMED: Duration = Duration::from_millis(50);

fn code(lost: Lost) -> u8 {
    match lost {
        Lost::Expired => 1,
        Lost::Gone => 2,
        Lost::Evicted => 3,
        Lost::MaxHold => 4,
        Lost::Closed => 5,
        Lost::Released => 6,
    }
}

fn reason(code: u8) -> Option<Lost> {
    [Lost::Expired, Lost::Gone, Lost::Evicted, Lost::MaxHold, Lost::Closed, Lost::Released]
        .into_iter()
        .find(|lost| self::code(*lost) == code)
}

/// What the watchdog has to do for a hold.
pub(crate) enum Due {
    /// Nothing yet.
    Later,
    /// Renew it, asking for this lease.
    Renew(Duration),
    /// It is over.
    Over,
}

impl Hold {
    /// A grant that a claim was answered with. The claim was sent at `sent`, and the answer is read at `now`; `None` if
    /// that is too late (invariant I3).
    pub(crate) fn from_answer(
        grantee: Grantee,
        grant: &Grant,
        sent: BootTime,
        now: BootTime,
    ) -> Option<Self> {
        let deadline = deadline::from_answer(sent, grant.remaining);
        let whole = grantee.terms.claim_lease();
        let leased = Leased { from: sent, vouched: grant.remaining, whole, deadline, confirmed: true };
        (now < deadline).then(|| Self::new(grantee, Token::new(grant.number, 0), grant.floor, leased))
    }

    /// A grant that was pushed and received at `now`; `None` if the notice is only a hint (invariant I4).
    pub(crate) fn from_notice(grantee: Grantee, notice: &GrantNotice, now: BootTime) -> Option<Self> {
        // The store must know that the grant is acted upon before it is. So the notice is only a hint to claim.
        if grantee.terms.needs_confirming() {
            return None;
        }
        let leased = Leased {
            from: BootTime(notice.stamp).after(notice.waited),
            vouched: notice.lease,
            whole: grantee.terms.claim_lease(),
            deadline: deadline::from_notice(notice, now)?,
            confirmed: false,
        };
        Some(Self::new(grantee, Token::new(notice.number, 0), notice.floor, leased))
    }

    /// A lease of another process, of which `remaining` was left when a renewal sent at `sent` was answered.
    pub(crate) fn adopted(
        grantee: Grantee,
        token: Token,
        floor: GrantNumber,
        sent: BootTime,
        remaining: Duration,
    ) -> Self {
        let deadline = deadline::from_answer(sent, remaining);
        let leased = Leased { from: sent, vouched: remaining, whole: remaining, deadline, confirmed: true };
        Self { adopted: true, ..Self::new(grantee, token, floor, leased) }
    }

    fn new(grantee: Grantee, token: Token, floor: GrantNumber, leased: Leased) -> Self {
        let from = leased.from;
        let limit = grantee.terms.max_hold.map_or(BootTime::NEVER, |most| from.after(most));
        let mut hold = Self {
            name: grantee.name,
            contender: grantee.contender,
            slot: grantee.slot,
            number: token.number(),
            floor,
            terms: grantee.terms,
            granted: from,
            tombstone_until: grantee.tombstone_until,
            adopted: false,
            stays: AtomicBool::new(false),
            deadline: AtomicU64::new(leased.deadline.0),
            limit: AtomicU64::new(limit.0),
            state: AtomicU8::new(HELD),
            step: AtomicU32::new(token.step()),
            renewing: Mutex::default(),
            changed: Notify::new(),
        };
        let mut renewing = Renewing {
            asked_until: from.after(leased.whole),
            confirmed: leased.confirmed,
            ..Renewing::default()
        };
        hold.plan_renewal(&mut renewing, from, leased.vouched, true);
        hold.renewing = Mutex::new(renewing);
        hold
    }

    fn renewing(&self) -> MutexGuard<'_, Renewing> {
        support::lock(&self.renewing)
    }

    /// The token of one step of this grant.
    pub(crate) fn token(&self, step: u32) -> Token {
        Token::new(self.number, step)
    }

    /// Begins to give it back. The first caller gets the latest end that the store was ever asked for: some margin
    /// after that, leaving is pointless.
    pub(crate) fn leave_once(&self) -> Option<BootTime> {
        let mut renewing = self.renewing();
        (!std::mem::replace(&mut renewing.left, true)).then_some(renewing.asked_until)
    }

    /// The latest end that the store was ever asked for.
    pub(crate) fn asked_until(&self) -> BootTime {
        self.renewing().asked_until
    }

    /// The task that waited for it has it.
    pub(crate) fn take(&self) {
        self.renewing().taken = true;
    }

    /// Whether the task that waited for it has it.
    pub(crate) fn is_taken(&self) -> bool {
        self.renewing().taken
    }

    fn deadline(&self) -> BootTime {
        BootTime(self.deadline.load(Ordering::Acquire))
    }

    fn limit(&self) -> BootTime {
        BootTime(self.limit.load(Ordering::Acquire))
    }

    /// Until when the holder of the current step may act.
    pub(crate) fn ends(&self) -> BootTime {
        self.deadline().min(self.limit())
    }

    /// The store is asked at `now` for a lease of this length, and may agree although its answer is never heard. False
    /// if its leave was sent: then nothing more is asked, because the leave is tried only until the latest end known.
    pub(crate) fn asks_for(&self, now: BootTime, lease: Duration) -> bool {
        let mut renewing = self.renewing();
        if !renewing.left {
            renewing.asked_until = renewing.asked_until.max(now.after(lease));
            renewing.awaited = true;
        }
        !renewing.left
    }

    /// The store is about to be asked to keep it without this process.
    pub(crate) fn stay(&self) {
        self.stays.store(true, Ordering::Release);
    }

    /// Whether another task of this process may have it.
    pub(crate) fn may_be_handed_on(&self) -> bool {
        self.terms.hands_on() && !self.stays.load(Ordering::Acquire)
    }

    /// When the watchdog should look at it next.
    pub(crate) fn due(&self) -> BootTime {
        self.ends().min(self.renewing().renew_at)
    }

    /// As [`due`](Self::due), for a hold that nobody else has yet.
    pub(crate) fn first_due(&mut self) -> BootTime {
        let renew_at =
            self.renewing.get_mut().map_or_else(|poisoned| poisoned.into_inner().renew_at, |r| r.renew_at);
        self.ends().min(renew_at)
    }

    /// Whether step `step` holds at `now`. Noticing that its time is over makes it lost for good.
    pub(crate) fn check(&self, step: u32, now: BootTime) -> Result<BootTime, Lost> {
        if self.step.load(Ordering::Acquire) != step {
            return Err(Lost::Released);
        }
        if let Some(lost) = self.lost() {
            return Err(lost);
        }
        let ends = self.ends();
        if now < ends {
            return Ok(ends);
        }
        self.lose(self.overdue());
        Err(self.lost().unwrap_or(Lost::Expired))
    }

    fn overdue(&self) -> Lost {
        if self.limit() <= self.deadline() { Lost::MaxHold } else { Lost::Expired }
    }

    /// Why it is lost, whichever step held it.
    pub(crate) fn lost(&self) -> Option<Lost> {
        reason(self.state.load(Ordering::Acquire))
    }

    /// Makes it lost, unless it already is or was released.
    pub(crate) fn lose(&self, lost: Lost) {
        if self.end(lost) {
            let error = (lost == Lost::Expired).then(|| self.renewal_error()).flatten();
            telemetry::lost(&self.name, lost, error);
        }
    }

    /// Makes it lost as [`lose`](Self::lose) does, and keeps what is known of the loss beyond its kind.
    pub(crate) fn lose_because(&self, lost: Lost, because: Option<Arc<str>>) {
        if self.lost().is_none() {
            // Before the loss can be seen.
            self.renewing().lost_because = because;
        }
        self.lose(lost);
    }

    /// What is known of a loss beyond its kind.
    pub(crate) fn lost_because(&self) -> Option<Arc<str>> {
        self.lost().and_then(|_| self.renewing().lost_because.clone())
    }

    /// Why the last renewal failed; `None` if the store answered it.
    pub(crate) fn renewal_error(&self) -> Option<StoreError> {
        let renewing = self.renewing();
        renewing.error.clone().or_else(|| {
            let message = "the last renewal has not been answered; check that the store is up and reachable";
            renewing.awaited.then(|| StoreError::new(StoreErrorKind::Unreachable, message))
        })
    }

    /// Makes it released, unless it was lost before.
    pub(crate) fn finish(&self) {
        self.end(Lost::Released);
    }

    fn end(&self, how: Lost) -> bool {
        let ended = self.state.compare_exchange(HELD, code(how), Ordering::AcqRel, Ordering::Acquire).is_ok();
        if ended {
            self.changed.notify_waiters();
        }
        ended
    }

    /// Resolves when step `step` is lost or released.
    pub(crate) async fn until_lost(&self, step: u32, clock: &Clock) -> Lost {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            // By the clock, too: the watchdog may not have noticed yet.
            if let Err(lost) = self.check(step, clock.now()) {
                return lost;
            }
            changed.await;
        }
    }

    /// Passes it to the next step. The caller has checked that it holds and that steps are left.
    pub(crate) fn hand_on(&self, step: u32, now: BootTime) -> u32 {
        if let Some(most) = self.terms.max_hold {
            self.limit.store(now.after(most).0, Ordering::Release);
        }
        self.step.store(step + 1, Ordering::Release);
        self.changed.notify_waiters();
        step + 1
    }
}

/// Renewing.
impl Hold {
    /// What the watchdog has to do at `now`; `early` is how much too early it may renew.
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
        // If no answer has come by half of what is left, another one goes out. The first is waited for as well: the store
        // may only be slow.
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
            renewing.error = Some(StoreError::new(StoreErrorKind::Unreachable, message));
            drop(renewing);
            self.lose(self.overdue());
            return;
        }
        renewing.awaited = false;
        renewing.error = None;
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
            renewing.error = Some(error);
            let pause = (self.ends().since(now) / 4).clamp(Duration::from_millis(5), Duration::from_secs(1));
            renewing.renew_at = now.after(pause);
        }
    }

    /// A renewal sent at `sent` by the hold's owner failed. The watchdog renews as before.
    pub(crate) fn renewal_failed(&self, sent: BootTime, error: StoreError) {
        let mut renewing = self.renewing();
        if renewing.heard_at <= sent {
            renewing.error = Some(error);
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
    fn plan_renewal(
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
        id::KeeperId,
        share::{Capacity, Units},
        store::Kind,
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

    /// The store's clock went back by an hour, so it says that an hour is left. Whatever it does next is noticed
    /// within one renewal all the same.
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
