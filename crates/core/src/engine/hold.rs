//! A grant as the client sees it: how long it may act on it, and whether it is lost.
//!
//! Once lost or released, always so: a late answer never revives it (invariant I3).

mod renewing;

use std::{
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::sync::Notify;

pub(crate) use self::renewing::Due;
use self::renewing::Renewing;
use super::terms::Terms;
use crate::{
    clock::{BootTime, Clock},
    deadline,
    error::{Lost, StoreError, StoreErrorKind},
    id::ContenderId,
    name::Name,
    store::{Grant, GrantNotice, StoreTime},
    support::{self, calm::calm},
    telemetry,
    token::{GrantNumber, Token},
};

/// One grant of this keeper.
///
/// The parts that are checked at every step of the protected work are read without a lock.
#[derive(Debug)]
pub(crate) struct Hold {
    pub(crate) name: Name,
    pub(crate) contender: ContenderId,
    /// The keeper's own number for it in the registry.
    pub(crate) slot: u64,
    pub(crate) number: GrantNumber,
    pub(crate) floor: GrantNumber,
    pub(crate) terms: Arc<Terms>,
    /// The time from which its lease counts, on the client's clock: when its claim was sent, or when the store granted it as a
    /// message says.
    pub(crate) granted: BootTime,
    /// The time at which the request was sent that brought it. A server that is replaced later may have granted it.
    pub(crate) asked: BootTime,
    /// The time until which a late copy of its claim may still arrive at the store.
    pub(crate) tombstone_until: Option<StoreTime>,
    /// Whether the store certainly keeps it without this process: it was adopted.
    pub(crate) adopted: bool,
    /// Whether the store may keep it without this process. Then it is not handed on: another task would have a hold
    /// that a crash does not free.
    stays: AtomicBool,
    deadline: AtomicU64,
    limit: AtomicU64,
    state: AtomicU8,
    step: AtomicU32,
    renewing: Mutex<Renewing>,
    changed: Notify,
}

/// The contender that a grant is for, with its terms.
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
    /// The time at which the request was sent that brought it.
    asked: BootTime,
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
        let leased =
            Leased { asked: sent, from: sent, vouched: grant.remaining, whole, deadline, confirmed: true };
        (now < deadline).then(|| Self::new(grantee, Token::new(grant.number, 0), grant.floor, leased))
    }

    /// A grant that was pushed and received at `now`; `None` if the notice is only a hint (invariant I4).
    pub(crate) fn from_notice(grantee: Grantee, notice: &GrantNotice, now: BootTime) -> Option<Self> {
        // The store must know that the grant is acted upon before it is. So the notice is only a hint to claim.
        if grantee.terms.needs_confirming() {
            return None;
        }
        let leased = Leased {
            asked: BootTime(notice.stamp),
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
        let leased = Leased {
            asked: sent,
            from: sent,
            vouched: remaining,
            whole: remaining,
            deadline,
            confirmed: true,
        };
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
            asked: leased.asked,
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

    /// Returns the end of its lease, which `max_hold` does not shorten.
    pub(crate) fn deadline(&self) -> BootTime {
        BootTime(self.deadline.load(Ordering::Acquire))
    }

    fn limit(&self) -> BootTime {
        BootTime(self.limit.load(Ordering::Acquire))
    }

    /// Returns the time until which the holder of the current step may act.
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

    /// Returns the way in which it was lost, whichever step held it; `None` if it is not.
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

    /// Makes it lost as [`lose`](Self::lose) does, and keeps the reason of the loss beyond its kind.
    pub(crate) fn lose_because(&self, lost: Lost, because: Option<Arc<str>>) {
        if self.lost().is_none() {
            // Before the loss can be seen.
            let mut renewing = self.renewing();
            if because.is_some() || renewing.trouble.is_some() {
                renewing.trouble.get_or_insert_default().lost_because = because;
            }
        }
        self.lose(lost);
    }

    /// Returns the reason of a loss beyond its kind, if it is known.
    pub(crate) fn lost_because(&self) -> Option<Arc<str>> {
        self.lost().and_then(|_| self.renewing().trouble.as_ref()?.lost_because.clone())
    }

    /// The store answered the last renewal, in whichever way.
    pub(crate) fn was_heard(&self) {
        let mut renewing = self.renewing();
        renewing.awaited = false;
        renewing.has_no_error();
    }

    /// Returns the error of the last renewal; `None` if the store answered it.
    pub(crate) fn renewal_error(&self) -> Option<StoreError> {
        let renewing = self.renewing();
        let error = renewing.trouble.as_ref().and_then(|trouble| trouble.error.clone());
        error.or_else(|| {
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
        calm(self.until_over(step, clock)).await
    }

    async fn until_over(&self, step: u32, clock: &Clock) -> Lost {
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
