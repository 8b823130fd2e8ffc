//! How a hold or a position is given back: handed on to a local task, left at the store with or without waiting for the
//! answer, called off, or detached.
//!
//! All of that is decided in [`end`]. A leave that fails is sent again until the lease has ended by itself.

use std::{
    ops::Deref,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::sync::{Notify, oneshot};

use super::{
    Alive, Engine,
    dispatch::{Asker, InFlight, Standing, mismatched},
    hold::{Grantee, Hold},
    hold_step::HoldStep,
    last_handle,
    local_queue::Turn,
    registry::{LATEST_MESSAGE, Recipient},
    store_client::BACKOFF,
    waiter::Waiter,
};
use crate::{
    clock::BootTime,
    deadline,
    error::{At, Lost, ReleaseError, StoreError, StoreErrorKind},
    id::ContenderId,
    name::Name,
    store::{Answer, Leave, Left, Request, StoreTime},
    support::{self, backoff::Backoff, calm},
    telemetry,
    token::GrantNumber,
};

/// One step of a hold, owned by exactly one task or by all guards on it together. Dropped, it is given back.
///
/// Boxed, because it moves through many hands on its way from one task to the next.
pub(crate) struct OwnedHold(Option<Box<HoldStep>>);

/// The channel for the answer to a leave.
type LeaveReply = oneshot::Sender<Result<Left, StoreError>>;

/// How the owner of a hold is done with it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum HowEnded {
    /// It was dropped: nobody waits for the answer.
    Dropped,
    /// It was released: somebody waits for the answer.
    Released,
    /// Nobody has begun anything, so there is no minimum to keep.
    CalledOff,
}

/// A hold that its owner is done with.
struct Ended {
    /// The request with its leave, if the owner is to have it polled.
    in_flight: Option<InFlight>,
    lost: Option<Lost>,
    awaited: Option<Awaited>,
    /// The user's handle. It may be the last one and then waits for the leave, so somebody must poll the request before
    /// this is dropped.
    alive: Arc<Alive>,
}

impl Ended {
    /// Has a task poll the request.
    fn spawn(self) {
        if let Some(in_flight) = self.in_flight {
            in_flight.spawn();
        }
        drop(self.alive);
    }
}

/// The answer to a leave that somebody waits for.
struct Awaited {
    at: At,
    answer: oneshot::Receiver<Result<Left, StoreError>>,
}

impl Deref for OwnedHold {
    type Target = HoldStep;

    fn deref(&self) -> &HoldStep {
        self.0.as_ref().expect("taken out only by what consumes the hold")
    }
}

impl OwnedHold {
    pub(super) fn new(alive: &Arc<Alive>, hold: Arc<Hold>, step: u32) -> Self {
        hold.take();
        Self::of(Box::new(HoldStep { alive: alive.clone(), hold, step, handed_on: None }))
    }

    /// Owns again the step that [`into_step`](Self::into_step) took.
    pub(crate) fn of(step: Box<HoldStep>) -> Self {
        Self(Some(step))
    }

    fn take(&mut self) -> Box<HoldStep> {
        self.0.take().expect("taken out only by what consumes the hold")
    }

    /// The step, which is not given back any more unless by [`of`](Self::of).
    pub(crate) fn into_step(mut self) -> Box<HoldStep> {
        self.take()
    }

    fn end(mut self, how: HowEnded) {
        if let Some(ended) = end(self.take(), how) {
            ended.spawn();
        }
    }

    /// Gives it back as something that nobody has begun, so that there is no minimum to keep.
    pub(crate) fn call_off(self) {
        self.end(HowEnded::CalledOff);
    }

    /// Gives it back and says how that went.
    pub(crate) async fn release(mut self) -> Result<(), ReleaseError> {
        let Some(ended) = end(self.take(), HowEnded::Released) else { return Ok(()) };
        // Dropped last, also if this future is dropped half-way: by then the request is polled elsewhere.
        let _alive = ended.alive;
        let Some(Awaited { at, answer }) = ended.awaited else { return Ok(()) };
        if let Some(why) = ended.lost {
            drop(ended.in_flight);
            // Even if the store says yes now, somebody else may have been in between.
            return Err(ReleaseError::NotHeld { at, why });
        }
        Awaited { at, answer }.released(ended.in_flight).await
    }
}

impl Awaited {
    /// How the leave went.
    async fn released(self, in_flight: Option<InFlight>) -> Result<(), ReleaseError> {
        let Self { at, answer } = self;
        let answer = match in_flight {
            Some(in_flight) => in_flight.bring(answer).await,
            None => answer.await,
        };
        match answer {
            Ok(Ok(Left::Released)) => Ok(()),
            Ok(Ok(Left::LeftQueue | Left::NotThere | Left::NotNow)) => {
                Err(ReleaseError::NotHeld { at, why: Lost::Gone })
            }
            Ok(Err(error)) => Err(error.at(at).into()),
            Err(_) => Err(StoreError::new(StoreErrorKind::Unreachable, "the keeper has ended").at(at).into()),
        }
    }
}

/// Gives back a detached lease of this length, with one request and without holding it first.
pub(crate) async fn leave_detached(
    engine: &Arc<Engine>,
    leave: Leave,
    lease: Duration,
) -> Result<(), ReleaseError> {
    let at = At::resource(engine.store().url(), &leave.name, "release");
    let (reply, answer) = oneshot::channel();
    // The text of a lease may claim any length, but no store keeps a lease for longer than this.
    let lease = lease.min(engine.store().capability().max_lease);
    let in_flight = Leaving::send(engine, leave, pointless_after(engine, lease), Some(reply));
    Awaited { at, answer }.released(in_flight).await
}

impl Drop for OwnedHold {
    fn drop(&mut self) {
        if let Some(step) = self.0.take()
            && let Some(ended) = end(step, HowEnded::Dropped)
        {
            ended.spawn();
        }
    }
}

/// Makes a hold live on outside of this process: ending it gives nothing back any more. Fails if the keeper has closed,
/// which gives it back.
pub(crate) fn detach(step: &HoldStep) -> Result<(), Lost> {
    // Closing takes all holds out of the registry, so exactly one of the two has it.
    if !step.alive.engine().registry.detach(&step.hold, step.now()) {
        return Err(Lost::Closed);
    }
    step.hold.leave_once();
    step.hold.finish();
    Ok(())
}

/// Ends a hold for its owner; `None` if another task of this process has it now.
fn end(step: Box<HoldStep>, how: HowEnded) -> Option<Ended> {
    let now = step.now();
    let lost = step.check_at(now).err();
    let step = match how {
        // Decided before anything is sent to the store, so there is no leave that could overtake it.
        HowEnded::Dropped | HowEnded::Released | HowEnded::CalledOff
            if lost.is_none() && step.hold.may_be_handed_on() =>
        {
            match hand_on(step, now) {
                Ok(()) => return None,
                Err(step) => step,
            }
        }
        _ => step,
    };
    let at = (how == HowEnded::Released).then(|| step.at("release"));
    let HoldStep { alive, hold, .. } = *step;
    let engine = alive.engine();
    hold.finish();
    let mut awaited = None;
    let in_flight = match how {
        HowEnded::CalledOff => leave_hold(engine, &hold, Duration::ZERO, None),
        HowEnded::Dropped => leave_hold(engine, &hold, minimum_to_keep(&hold), None),
        HowEnded::Released => {
            let (reply, answer) = oneshot::channel();
            awaited = at.map(|at| Awaited { at, answer });
            leave_hold(engine, &hold, minimum_to_keep(&hold), Some(reply))
        }
    };
    if hold.terms.hands_on() {
        // After the leave is on its way, so that the local queue's next claim comes behind it.
        engine.local_queues.close(&hold.name, hold.slot);
    }
    Some(Ended { in_flight, lost, awaited, alive })
}

/// Hands it on to the next task of this process that waits for it; comes back if there is none.
fn hand_on(mut step: Box<HoldStep>, now: BootTime) -> Result<(), Box<HoldStep>> {
    loop {
        let engine = step.alive.engine();
        let Some(next) = engine.local_queues.next_of(&step.hold, step.step, now) else { return Err(step) };
        step.step = step.hold.hand_on(step.step, now);
        step.handed_on = Some(now);
        match calm::send(next, Turn::HandedOn(OwnedHold::of(step))) {
            Ok(()) => {
                telemetry::handed_on();
                return Ok(());
            }
            // Its task gave up at this very moment: the step is used up, the lock is not.
            Err(Turn::HandedOn(back)) => step = back.into_step(),
            Err(Turn::Front(_) | Turn::Failed(_)) => unreachable!("a hold was sent"),
        }
    }
}

/// How long a hold that is given back keeps others away. One that was lost without its owner's fault still does so for
/// as long as it said.
fn minimum_to_keep(hold: &Hold) -> Duration {
    match hold.lost() {
        Some(Lost::Evicted | Lost::Gone) => Duration::ZERO,
        _ => hold.terms.min_hold,
    }
}

/// Gives back a grant that nobody took; the caller has the request in flight polled.
pub(super) fn never_taken(engine: &Arc<Engine>, hold: &Hold) -> Option<InFlight> {
    hold.finish();
    leave_hold(engine, hold, Duration::ZERO, None)
}

/// Gives back a second grant of a detached lease, which nobody took.
pub(super) fn never_taken_detached(engine: &Arc<Engine>, grantee: &Grantee) {
    let Grantee { name, contender, tombstone_until, terms, .. } = grantee;
    let leave = Leave {
        name: name.clone(),
        contender: *contender,
        tombstone_until: *tombstone_until,
        hold_at_least: Duration::ZERO,
    };
    leave_in_background(engine, leave, terms.claim_lease());
}

/// Gives back what its owner still has, because the keeper closes.
pub(super) fn closed(engine: &Arc<Engine>, hold: &Hold) {
    hold.lose(Lost::Closed);
    // If its task takes it from here on, it takes a lost one and has begun nothing.
    let minimum = if hold.is_taken() { minimum_to_keep(hold) } else { Duration::ZERO };
    if let Some(in_flight) = leave_hold(engine, hold, minimum, None) {
        in_flight.into_background();
    }
}

fn leave_hold(
    engine: &Arc<Engine>,
    hold: &Hold,
    hold_at_least: Duration,
    reply: Option<LeaveReply>,
) -> Option<InFlight> {
    let asked_until = hold.leave_once()?;
    let now = engine.clock().now();
    telemetry::released(&hold.name, hold.terms.kind, || now.since(hold.granted));
    let leave = Leave {
        name: hold.name.clone(),
        contender: hold.contender,
        tombstone_until: hold.tombstone_until,
        hold_at_least,
    };
    if hold_at_least.is_zero() {
        engine.registry.remove_left(hold);
    } else {
        // It may live on without us: a late message about its grant must not end it early.
        engine.registry.left_to_its_minimum(hold, now);
        // The store may have granted it as late as when it answered.
        let latest = hold.granted.after(engine.client.request_limit);
        engine.leaves.keeps_until(latest.after(hold_at_least));
    }
    // By the last answer it may be over sooner, but an answer that was lost may have been better.
    let slack = deadline::margin(asked_until.since(now).max(hold.terms.claim_lease())) * 2;
    let until = asked_until.after(slack).after(engine.client.request_limit);
    Leaving::send(engine, leave, until, reply)
}

/// A grant to a contender of this keeper, or of a lease that it adopted, that nobody seems to wait for.
pub(super) struct Unwanted<'a> {
    pub(super) name: &'a Name,
    pub(super) contender: ContenderId,
    pub(super) number: GrantNumber,
    pub(super) lease: Duration,
    /// When it was granted at the earliest.
    pub(super) granted: BootTime,
}

/// Gives back such a grant, unless somebody has it (rule 3 of the design).
pub(super) fn unwanted(engine: &Arc<Engine>, grant: &Unwanted<'_>) {
    let Unwanted { name, contender, number, lease, granted } = *grant;
    // The registry goes by this keeper's own numbers. The contender of an adopted lease has the number of another keeper, and
    // whoever renews such a lease knows that its first grant is over.
    let recipient = if contender.keeper == engine.ids.keeper() {
        engine.registry.recipient(contender.seq, number)
    } else {
        Recipient::Nobody
    };
    match recipient {
        Recipient::Waiting(_) | Recipient::Known => return,
        // By now it may be a detached lease that is not remembered any more. It ends with its lease.
        Recipient::Nobody if engine.clock().now().since(granted) > LATEST_MESSAGE => return,
        Recipient::Outlived(hold) => {
            hold.lose(Lost::Gone);
            engine.registry.lost(hold.slot);
        }
        Recipient::Nobody => {}
    }
    let leave = Leave { name: name.clone(), contender, tombstone_until: None, hold_at_least: Duration::ZERO };
    leave_in_background(engine, leave, lease);
}

/// Leaves the queue for a contender that waits no more; the caller has the request in flight polled.
pub(super) fn leave_queue(waiter: &Waiter) -> Option<InFlight> {
    let leave = Leave {
        name: waiter.claim().name.clone(),
        contender: waiter.claim().contender,
        tombstone_until: waiter.tombstone_until(),
        hold_at_least: Duration::ZERO,
    };
    leave_unheard(&waiter.engine, leave, waiter.claim().lease)
}

/// Leaves in the background, trying until a lease of that length would have ended anyway.
fn leave_in_background(engine: &Arc<Engine>, leave: Leave, lease: Duration) {
    if let Some(in_flight) = leave_unheard(engine, leave, lease) {
        in_flight.into_background();
    }
}

/// Leaves without waiting for the answer, trying until a lease of that length would have ended anyway.
fn leave_unheard(engine: &Arc<Engine>, leave: Leave, lease: Duration) -> Option<InFlight> {
    let until = pointless_after(engine, lease.max(Duration::from_secs(60)));
    Leaving::send(engine, leave, until, None)
}

/// When a leave that is sent from now on becomes pointless, because a lease of that length has ended anyway.
fn pointless_after(engine: &Engine, lease: Duration) -> BootTime {
    engine.clock().now().after(lease).after(deadline::margin(lease) * 2).after(engine.client.request_limit)
}

/// Counts the leaves that are not answered yet, and knows until when holds that were left stay for their minimum.
#[derive(Default)]
pub(super) struct Leaves {
    count: AtomicUsize,
    none: Notify,
    kept_until: Mutex<BootTime>,
}

impl Leaves {
    pub(super) fn count(&self) -> usize {
        self.count.load(Ordering::Acquire)
    }

    fn keeps_until(&self, minimum: BootTime) {
        let mut kept_until = support::lock(&self.kept_until);
        *kept_until = minimum.max(*kept_until);
    }

    /// Whether a hold that was left stays for its minimum.
    pub(super) fn keep_any(&self, now: BootTime) -> bool {
        now < *support::lock(&self.kept_until)
    }

    fn begin(&self) {
        self.count.fetch_add(1, Ordering::AcqRel);
    }

    fn end(&self) {
        if self.count.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.none.notify_waiters();
        }
    }

    /// Waits until all are answered or given up.
    pub(super) async fn finished(&self) {
        loop {
            let none = self.none.notified();
            tokio::pin!(none);
            none.as_mut().enable();
            if self.count() == 0 {
                return;
            }
            none.await;
        }
    }
}

/// A leave that is sent until it is answered or pointless.
struct Leaving {
    engine: Arc<Engine>,
    leave: Leave,
    /// When it becomes pointless.
    until: BootTime,
    reply: Option<LeaveReply>,
    backoff: Backoff,
    /// The time since which the store answers that it can do nothing now.
    not_now_since: Option<BootTime>,
    /// Whether it answered so the last time, so that the next copy goes alone.
    alone: bool,
}

impl Leaving {
    fn send(
        engine: &Arc<Engine>,
        leave: Leave,
        until: BootTime,
        reply: Option<LeaveReply>,
    ) -> Option<InFlight> {
        // Before the look: the thread, which has the timers of the request, does not end in between.
        let _thread = engine.stop.keep_alive();
        if engine.stop.is_stopped() {
            // Everything was given back before the keeper's thread ended.
            return None;
        }
        engine.leaves.begin();
        let awaited = reply.is_some();
        let leaving = Arc::new(Self {
            engine: engine.clone(),
            leave,
            until,
            reply,
            backoff: BACKOFF,
            not_now_since: None,
            alone: false,
        });
        if awaited { engine.dispatcher.submit(leaving) } else { engine.dispatcher.submit_later(leaving) }
    }
}

impl Asker for Leaving {
    fn name(&self) -> &Name {
        &self.leave.name
    }

    fn standing(&self) -> Standing {
        Standing::Known
    }

    fn leaves(&self) -> bool {
        true
    }

    fn wants_all(&self) -> bool {
        false
    }

    fn goes_alone(&self) -> bool {
        self.alone
    }

    fn request(&self, _sent: BootTime, _not_after: StoreTime) -> Option<Request> {
        Some(Request::Leave(self.leave.clone()))
    }

    /// The task that waits for the answer hears of a failure at once; the leave itself goes on being tried.
    fn answered(self: Arc<Self>, sent: BootTime, answer: Result<Answer, StoreError>) {
        // Only the dispatcher has had it.
        let Some(mut leaving) = Arc::into_inner(self) else { return };
        let engine = leaving.engine.clone();
        let now = engine.clock().now();
        let (mut soon, mut at_once) = (false, false);
        leaving.alone = matches!(answer, Ok(Answer::Leave(Left::NotNow)));
        let result = match answer {
            Ok(Answer::Leave(Left::NotNow)) => {
                at_once = leaving.not_now_since.is_none();
                let since = *leaving.not_now_since.get_or_insert(now);
                soon = now.since(since) < engine.client.request_limit;
                Err(not_now())
            }
            Ok(Answer::Leave(left)) => Ok(left),
            Ok(Answer::Claim(_)) => Err(mismatched()),
            Err(error) => Err(error),
        };
        // The keeper's thread ends when nothing is in flight any more, so a leave that fails after its end is not
        // repeated.
        let goes_on = now < leaving.until && !engine.stop.is_stopped();
        let again = matches!(&result, Err(error) if error.is_passing()) && goes_on;
        // A leave that the store does soon is no failure for the releasing task.
        let reply = leaving.reply.take_if(|_| !(again && soon));
        if again {
            engine.client.background.clone().spawn(async move {
                if !at_once {
                    last_handle::pause(&engine, sent, &mut leaving.backoff).await;
                }
                engine.dispatcher.submit_all([Arc::new(leaving) as Arc<dyn Asker>]);
            });
        } else {
            if leaving.leave.contender.keeper == engine.ids.keeper() {
                engine.registry.left(leaving.leave.contender.seq);
            }
            engine.leaves.end();
        }
        if let Some(reply) = reply {
            // The releasing task may be gone; the leave was done all the same.
            drop(calm::send(reply, result));
        }
    }
}

/// The store did nothing for now.
fn not_now() -> StoreError {
    let message = "the store cannot release it at this moment; the keeper tries again until the lease ends";
    StoreError::new(StoreErrorKind::Conflict, message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        engine::{acquisition::tests::waiter, terms::Terms},
        id::KeeperId,
        share::{Capacity, Units},
        store::{Grant, Kind},
        token::Token,
    };

    /// Its contender is another keeper's, and happens to have the number that the hold has here.
    #[tokio::test]
    async fn an_adopted_hold_that_is_left_is_remembered_nowhere() {
        let (alive, waiter) = waiter().await;
        let engine = alive.engine();
        let grantee = Grantee {
            name: waiter.claim().name.clone(),
            contender: ContenderId { keeper: KeeperId::from_u128(7), seq: 5 },
            slot: 5,
            terms: Arc::new(Terms::new(Kind::Mutex, Units::All, Capacity::All)),
            tombstone_until: None,
        };
        let now = engine.clock().now();
        let hold = Arc::new(Hold::adopted(grantee, Token::new(1, 0), 1, now, Duration::from_secs(30)));
        assert!(engine.registry.adopt(&hold));
        drop(leave_hold(engine, &hold, Duration::ZERO, None));
        assert!(matches!(engine.registry.recipient(5, 1), Recipient::Nobody));
    }

    /// A claim was answered late. The minimum counts from the store's grant, which may be as late as the answer, so until
    /// then the last handle sees to it that the store is closed.
    #[tokio::test]
    async fn a_minimum_hold_is_known_until_the_store_has_certainly_ended_it() {
        const MINIMUM: Duration = Duration::from_secs(5);
        let (alive, waiter) = waiter().await;
        let engine = alive.engine();
        let terms = Terms { min_hold: MINIMUM, ..Terms::new(Kind::Mutex, Units::All, Capacity::All) };
        let grantee = Grantee {
            name: waiter.claim().name.clone(),
            contender: waiter.claim().contender,
            slot: waiter.slot(),
            terms: Arc::new(terms),
            tombstone_until: None,
        };
        let grant = Grant { number: 1, floor: 1, remaining: Duration::from_secs(30) };
        let sent = engine.clock().now();
        let answered = sent.after(engine.client.request_limit);
        let hold = Hold::from_answer(grantee, &grant, sent, answered).expect("in time");
        drop(leave_hold(engine, &hold, MINIMUM, None));
        let ends = answered.after(MINIMUM);
        assert!(engine.leaves.keep_any(sent.after(MINIMUM)), "the store may still keep it");
        assert!(!engine.leaves.keep_any(ends), "it is certainly over");
    }
}
