//! An acquisition on its way up: all news about a waiter, and its effects.
//!
//! The dispatcher gives the verdict to the waiter, [`settle`] turns it into an outcome, and the task that waits for the
//! outcome returns it. Answers to polls and pushed grants meet the first answer here.

use std::{sync::Arc, time::Duration};

use super::{
    Engine,
    dispatch::{Asker, Standing, mismatched},
    hold::{Grantee, Hold},
    outages::{FailedRequest, Work},
    release::{self, Unwanted},
    waiter::{Outcome, Waiter},
};
use crate::{
    clock::BootTime,
    error::{StoreError, StoreErrorKind},
    name::Name,
    share::Units,
    store::{Answer, GrantNotice, Request, StoreTime, Topic, Verdict},
    telemetry,
};

/// How many claims in a row may arrive too late for the store's clock.
const LATE_CLAIMS: u32 = 5;

impl Asker for Waiter {
    fn name(&self) -> &Name {
        &self.claim().name
    }

    fn standing(&self) -> Standing {
        Waiter::standing(self)
    }

    fn leaves(&self) -> bool {
        false
    }

    fn wants_all(&self) -> bool {
        self.claim().units == Units::All
    }

    fn goes_alone(&self) -> bool {
        Waiter::goes_alone(self)
    }

    fn request(&self, sent: BootTime, not_after: StoreTime) -> Option<Request> {
        self.next_copy(sent, not_after).map(Request::Claim)
    }

    fn answered(self: Arc<Self>, sent: BootTime, answer: Result<Answer, StoreError>) {
        let news = match answer {
            Ok(Answer::Claim(verdict)) => News::Answered { sent, verdict },
            Ok(Answer::Leave(_)) => News::Failed { sent, error: mismatched() },
            Err(error) => News::Failed { sent, error },
        };
        settle(&self, news);
    }
}

/// One piece of news about a waiter.
pub(super) enum News {
    /// The claim that was sent at `sent` has this verdict.
    Answered { sent: BootTime, verdict: Verdict },
    /// The outcome of the claim that was sent at `sent` is not known.
    Failed { sent: BootTime, error: StoreError },
    /// The store pushed a grant.
    Pushed(GrantNotice),
}

/// Takes in news about a waiter: it is granted, it ends otherwise, or it asks again later.
pub(super) fn settle(waiter: &Arc<Waiter>, news: News) {
    let answered = matches!(&news, News::Answered { verdict, .. } if !matches!(verdict, Verdict::NotNow(_)));
    take_in(waiter, news);
    if answered {
        waiter.engine.client.outages.answered(&waiter.claim().name, Work::Waits);
    }
}

fn take_in(waiter: &Arc<Waiter>, news: News) {
    let engine = &waiter.engine;
    let now = engine.clock().now();
    match news {
        News::Answered { sent, verdict: Verdict::Granted(grant) } => {
            waiter.heard();
            match Hold::from_answer(grantee(waiter), &grant, sent, now) {
                Some(hold) => granted(waiter, hold),
                None => conclude(waiter, Outcome::TooLate),
            }
        }
        // No further round trip if the message can be trusted.
        News::Pushed(notice) => match Hold::from_notice(grantee(waiter), &notice, now) {
            Some(hold) => granted(waiter, hold),
            None => hint(std::slice::from_ref(waiter)),
        },
        News::Answered { verdict: Verdict::Busy { ahead, retry_in }, .. } if waiter.claim().queue => {
            placed(waiter, ahead, retry_in, now);
        }
        News::Answered { verdict: Verdict::Busy { ahead, .. }, .. } => {
            waiter.heard();
            telemetry::queued(ahead);
            conclude(waiter, Outcome::Busy);
        }
        News::Answered { verdict: Verdict::Stale, .. } => {
            if waiter.too_late() <= LATE_CLAIMS {
                return engine.registry.ask_at(waiter.slot(), now);
            }
            let message = "claims keep arriving too late for the store's clock; check clocks and latency";
            conclude(waiter, Outcome::Failed(StoreError::new(StoreErrorKind::Conflict, message)));
        }
        News::Answered { verdict: Verdict::Mismatch { in_use }, .. } => {
            waiter.heard();
            conclude(waiter, Outcome::Mismatch(in_use));
        }
        News::Answered { verdict: Verdict::Refused(error), .. } => {
            waiter.heard();
            conclude(waiter, Outcome::Failed(error));
        }
        News::Answered { verdict: Verdict::Again, .. } => {
            waiter.heard();
            conclude(waiter, Outcome::Again);
        }
        News::Answered { sent, verdict: Verdict::NotNow(error) } => {
            not_now(waiter, sent, error.not_applied(), now);
        }
        News::Failed { sent, error } => failed(waiter, sent, error, now),
    }
}

fn grantee(waiter: &Waiter) -> Grantee {
    Grantee {
        name: waiter.claim().name.clone(),
        contender: waiter.claim().contender,
        slot: waiter.slot(),
        terms: waiter.terms.clone(),
        // Known when it is certain that this is a grant: see `granted`.
        tombstone_until: None,
    }
}

fn granted(waiter: &Waiter, mut hold: Hold) {
    let engine = &waiter.engine;
    // Only here: a waiter whose notice is only a hint asks again, and one whose grant came too late leaves by itself.
    hold.tombstone_until = waiter.granted();
    let due = hold.first_due();
    let hold = Arc::new(hold);
    if !engine.registry.promote(&hold, due) {
        // A second message about a grant that is already known, or nobody waits any more.
        let (contender, number, granted) = (hold.contender, hold.number, hold.granted);
        let lease = hold.terms.claim_lease();
        release::unwanted(engine, &Unwanted { name: &hold.name, contender, number, lease, granted });
        return;
    }
    if let Err(Outcome::Granted(hold)) = waiter.tell(Outcome::Granted(hold))
        && let Some(in_flight) = release::never_taken(engine, &hold)
    {
        in_flight.into_background();
    }
}

fn conclude(waiter: &Waiter, outcome: Outcome) {
    waiter.engine.registry.remove_waiter(waiter.slot());
    // If nobody waits any more, the task that stopped waiting leaves.
    drop(waiter.tell(outcome));
}

/// The waiter has a position in the queue, and asks again.
fn placed(waiter: &Arc<Waiter>, ahead: u32, retry_in: Duration, now: BootTime) {
    let engine = &waiter.engine;
    if engine.subscriptions.grants_need_one() && !waiter.has_wakes() {
        subscribe(waiter);
    }
    if waiter.placed(ahead) {
        telemetry::queued(ahead);
    }
    let longest = engine.asks_again().min(waiter.claim().lease * 2 / 3);
    let next = next_ask(now.after(engine.phase), ahead, retry_in, longest);
    engine.registry.ask_at(waiter.slot(), next.before(engine.phase));
    // Only now is there no copy in flight: a hint before this is told here, and one that comes later asks by itself.
    if waiter.heard() {
        engine.registry.ask_at(waiter.slot(), now);
    }
}

/// The store did nothing for now. It is asked again alone: at once the first time, because then it can wait. It answered, so
/// a caller that only tries asks again as well, but for no longer than a request may take.
fn not_now(waiter: &Waiter, sent: BootTime, error: StoreError, now: BootTime) {
    let engine = &waiter.engine;
    let failing_since = waiter.failing_since();
    waiter.go_alone();
    let is_over = now.since(failing_since.unwrap_or(now)) >= engine.client.request_limit;
    if failing_since.is_some() && (waiter.claim().queue || is_over) {
        return failed(waiter, sent, error, now);
    }
    let Some(failure) = waiter.failed(now, &error) else { return };
    let pause = failing_since.map_or(Duration::ZERO, |_| failure.pause);
    engine.registry.ask_at(waiter.slot(), now.after(pause));
}

/// The outcome of a claim is not known: ask again with the same id, while that makes sense.
fn failed(waiter: &Waiter, sent: BootTime, error: StoreError, now: BootTime) {
    let engine = &waiter.engine;
    let Some(failure) = waiter.failed(now, &error) else { return };
    let outage = error.is_passing() && now.since(failure.since) >= engine.outage_limit;
    if error.is_passing() && !outage && waiter.claim().queue {
        let request = FailedRequest { name: &waiter.claim().name, sent };
        engine.client.outages.wait_goes_on(request, &error, || engine.registry.counts().0);
        engine.registry.ask_at(waiter.slot(), now.after(failure.pause));
        return;
    }
    // An earlier copy may have had an effect, even if this one had none.
    let unknown = waiter.tombstone_until().is_some() || waiter.ahead().is_some();
    let error = if unknown { error.perhaps_applied() } else { error };
    conclude(waiter, if outage { Outcome::Outage(error) } else { Outcome::Failed(error) });
}

/// Something may have changed for these waiters: they ask now, or once more if an answer is on its way that may be older.
pub(super) fn hint(waiters: &[Arc<Waiter>]) {
    for waiter in waiters {
        if !waiter.hinted(waiter.server()) {
            let engine = &waiter.engine;
            engine.registry.ask_at(waiter.slot(), engine.clock().now());
        }
    }
}

/// Subscribes to grants of this resource, and has all its waiters ask once more: a grant between a claim and the
/// subscription would otherwise be heard of only at the next poll.
fn subscribe(waiter: &Arc<Waiter>) {
    // While another task of the same name does so, this waiter gets its part in the other's subscription.
    let Some(attempt) = Attempt::begin(waiter) else { return };
    waiter.engine.client.background.spawn(async move {
        let (engine, name) = (attempt.engine.clone(), attempt.name.clone());
        let subscription = engine.subscribe(&Topic::Grants(name.clone())).await;
        // Before the waiters are looked up: one that is placed later subscribes by itself.
        drop(attempt);
        // A failure costs only time: a waiter subscribes again at its next poll.
        let Ok(subscription) = subscription else { return };
        let waiters = engine.registry.waiting_for(Some(&name));
        for waiter in &waiters {
            waiter.is_woken_by(subscription.clone());
        }
        if subscription.new && engine.subscriptions.grants_need_one() {
            hint(&waiters);
        }
    });
}

/// A task that subscribes to the grants of a name: the only one of its name, even if the store does not answer.
struct Attempt {
    engine: Arc<Engine>,
    name: Name,
}

impl Attempt {
    fn begin(waiter: &Waiter) -> Option<Self> {
        let (engine, name) = (&waiter.engine, &waiter.claim().name);
        let first = engine.subscriptions.begin_attempt(name);
        first.then(|| Self { engine: engine.clone(), name: name.clone() })
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        self.engine.subscriptions.attempt_ended(&self.name);
    }
}

/// Asks again for these waiters, with as few requests as possible.
pub(super) fn ask_again(engine: &Engine, waiters: Vec<Arc<Waiter>>) {
    for waiter in &waiters {
        // Should no answer come soon, not even an error, the next poll looks after it. A copy may be in flight, and its
        // answer may have scheduled an earlier one just now.
        engine.registry.ask_by(waiter.slot(), engine.clock().now().after(engine.asks_again()));
    }
    let askers = waiters.into_iter().filter(|waiter| waiter.enqueue(waiter.server()));
    engine.dispatcher.submit_all(askers.map(|waiter| waiter as Arc<dyn Asker>));
}

/// Returns the time to ask again without a wake. The next in the queue asks when a lease ends; the others poll
/// half as often, once in `longest`. Polls fall on one beat, so they travel as one request; a beat
/// that is very near is left out, since this claim has only just been answered. Nobody goes for longer
/// than `longest` because of that: a waiter that leaves out a beat of all asks on the next one of the first.
fn next_ask(now: BootTime, ahead: u32, retry_in: Duration, longest: Duration) -> BootTime {
    let poll = (longest / 2).max(Duration::from_millis(1));
    let nanos = u64::try_from(poll.as_nanos()).unwrap_or(u64::MAX);
    let next = now.after(poll / 4).0 / nanos + 1;
    if ahead == 0 {
        return now.after(retry_in + Duration::from_millis(1)).min(BootTime(next * nanos));
    }
    let next_of_all = now.0 / (2 * nanos) * 2 + 2;
    BootTime(next.max(next_of_all) * nanos)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        capability::Capability,
        engine::{acquisition::tests::waiter, hold::Due, renewal::TOGETHER, wakes},
        model::FIRST_LEASE,
        store::{Grant, Wake},
    };

    const LOSSY: Duration = Capability::ASKS_AGAIN;
    /// The longest that a store says whose wakes may get lost unnoticed.
    const RAREST: Duration = Duration::from_millis(2600);

    /// Its name moved to another server while it was in the queue of one that hangs.
    #[tokio::test]
    async fn a_waiter_in_the_queue_of_an_earlier_server_is_sent_to_its_own() {
        let (alive, waiter) = waiter().await;
        let engine = alive.engine();
        let (now, earlier_server) = (engine.clock().now(), waiter.server() + 1);
        assert!(waiter.enqueue(earlier_server) && !waiter.enqueue(earlier_server));
        assert!(waiter.hinted(earlier_server), "it need not ask twice there");
        hint(std::slice::from_ref(&waiter));
        let due = engine.registry.take_due(now.after(Duration::from_secs(1)), TOGETHER).waiters;
        assert_eq!(due.len(), 1, "it asks at once");
        ask_again(engine, due);
        assert!(
            waiter.hinted(waiter.server()) && !waiter.enqueue(waiter.server()),
            "it is in the right queue"
        );
        tokio::task::yield_now().await;
        assert!(waiter.is_known(), "it is sent");
    }

    /// The leave of its hold would not make a copy harmless that is sent after the tombstone is read.
    #[tokio::test]
    async fn a_waiter_with_a_grant_sends_no_further_copy() {
        let (alive, waiter) = waiter().await;
        let now = alive.engine().clock().now();
        assert!(waiter.next_copy(now, StoreTime(1)).is_some());
        waiter.failed(now, &StoreError::new(StoreErrorKind::Unreachable, "no answer"));
        assert!(waiter.next_copy(now, StoreTime(2)).is_some());
        assert_eq!(waiter.granted(), Some(StoreTime(2)), "the copy in flight counts");
        waiter.heard();
        assert!(waiter.enqueue(waiter.server()), "it was due just now");
        assert_eq!(waiter.standing(), Standing::Over);
        assert!(waiter.next_copy(now, StoreTime(3)).is_none());
    }

    /// The old server may have made such a grant, and the new one may not know it.
    #[tokio::test]
    async fn a_grant_that_comes_in_after_its_server_was_replaced_is_renewed_at_once() {
        for pushed in [false, true] {
            let (alive, waiter) = waiter().await;
            let engine = alive.engine();
            let sent = engine.clock().now();
            assert!(waiter.next_copy(sent, StoreTime(1)).is_some());
            wakes::deliver(engine, Wake::Reconfirm);
            let (lease, contender) = (Duration::from_secs(30), waiter.claim().contender);
            settle(
                &waiter,
                if pushed {
                    let (number, floor, waited) = (1, 1, Duration::ZERO);
                    News::Pushed(GrantNotice { contender, number, floor, stamp: sent.0, waited, lease })
                } else {
                    let grant = Grant { number: 1, floor: 1, remaining: lease };
                    News::Answered { sent, verdict: Verdict::Granted(grant) }
                },
            );
            let due = engine.registry.take_due(engine.clock().now(), TOGETHER).holds;
            assert_eq!(due.len(), 1, "renewed at once; pushed: {pushed}");
            assert!(matches!(due[0].plan(engine.clock().now(), Duration::ZERO), Due::Renew(_)));
        }
    }

    /// A grant of the new server is as good as any other.
    #[tokio::test]
    async fn a_grant_that_was_asked_for_after_a_replacement_is_not_doubted() {
        let (alive, waiter) = waiter().await;
        let engine = alive.engine();
        wakes::deliver(engine, Wake::Reconfirm);
        let sent = engine.clock().now().after(Duration::from_nanos(1));
        assert!(waiter.next_copy(sent, StoreTime(1)).is_some());
        let grant = Grant { number: 1, floor: 1, remaining: Duration::from_secs(30) };
        settle(&waiter, News::Answered { sent, verdict: Verdict::Granted(grant) });
        assert!(engine.registry.take_due(engine.clock().now(), TOGETHER).holds.is_empty());
    }

    /// The answer to a copy may come while the watchdog asks again for its waiter.
    #[tokio::test]
    async fn asking_again_puts_nothing_off_that_an_answer_has_scheduled() {
        let (alive, waiter) = waiter().await;
        let engine = alive.engine();
        let now = engine.clock().now();
        assert!(waiter.next_copy(now, StoreTime(1)).is_some(), "in flight");
        engine.registry.ask_at(waiter.slot(), now);
        ask_again(engine, vec![waiter]);
        assert_eq!(engine.registry.take_due(now, TOGETHER).waiters.len(), 1, "it asks now");
    }

    #[test]
    fn i8_a_waiter_asks_again_within_the_first_lease_of_its_grant() {
        for (millis, lossy) in [10, 100, 700, 1500, 3000, 30_000]
            .into_iter()
            .flat_map(|millis| [(millis, LOSSY), (millis, RAREST)])
        {
            let lease = Duration::from_millis(millis);
            for (ahead, offset) in (0..2600).flat_map(|offset| [(0, offset), (1, offset), (7, offset)]) {
                let now = BootTime(1_000_000_000_000).after(Duration::from_millis(offset));
                let longest = lossy.min(lease * 2 / 3);
                let asks = next_ask(now, ahead, Duration::from_secs(3600), longest);
                assert!(asks > now && asks.since(now) < lease.min(FIRST_LEASE), "{ahead} ahead, {lease:?}");
                assert!(asks.since(now) <= longest.max(Duration::from_millis(2)), "{ahead} ahead, {lease:?}");
                if ahead == 0 && lease > FIRST_LEASE {
                    let second = next_ask(asks, ahead, Duration::from_secs(3600), longest);
                    assert!(second.since(now) < FIRST_LEASE, "the head's second poll, {offset}");
                }
            }
        }
    }

    #[test]
    fn a_claim_just_answered_is_not_asked_again_at_once() {
        let lease = Duration::from_secs(30);
        for millis in 0..4000 {
            let now = BootTime(0).after(Duration::from_millis(millis));
            for (ahead, period) in [(0, LOSSY / 2), (1, LOSSY)] {
                let wait = next_ask(now, ahead, lease, LOSSY).since(now);
                assert!(wait >= LOSSY / 8 && wait <= period + LOSSY / 8, "{wait:?} at {millis} ms");
            }
        }
        let soon = Duration::from_millis(5);
        assert_eq!(next_ask(BootTime(0), 0, soon, LOSSY), BootTime(0).after(soon + Duration::from_millis(1)));
    }
}
