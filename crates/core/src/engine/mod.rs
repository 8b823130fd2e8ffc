//! The engine behind a keeper: how an acquisition goes from its first claim to its outcome.
//!
//! Everything that can be told by a store arrives here: verdicts, failures, wakes. The files
//! beside this one keep the parts: who waits and holds (`ledger`), what goes out together
//! (`group`) and who carries it (`flight`), what stays in the process (`lane`), what renews
//! (`watchdog`). Below it: the caller's side (`acquire`) and giving back (`leaving`).

mod acquire;
pub(crate) mod flight;
pub(crate) mod group;
pub(crate) mod hold;
pub(crate) mod keeping;
pub(crate) mod lane;
mod leaving;
pub(crate) mod ledger;
pub(crate) mod seat;
pub(crate) mod steps;
pub(crate) mod store_clock;
pub(crate) mod terms;
pub(crate) mod thread;
pub(crate) mod watchdog;
pub(crate) mod watches;

use std::{
    future::poll_fn,
    hash::{DefaultHasher, Hash, Hasher},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    task::{Poll, ready},
    time::Duration,
};

use tokio::{runtime::Handle, sync::Notify};

pub(crate) use acquire::Patience;

use self::{
    flight::Patrol,
    group::{Group, Job},
    hold::{Hold, Origin},
    lane::Lanes,
    ledger::{Addressee, Ledger},
    seat::{Outcome, Seat},
    store_clock::StoreClock,
    thread::Stop,
    watches::Watches,
};
use crate::{
    clock::{BootTime, Clock},
    deadline,
    error::{At, Lost, StoreError, StoreErrorKind},
    id::{ContenderId, Ids, KeeperId},
    keeper::Stats,
    name::Name,
    store::{GrantNotice, Leave, ProcessInfo, Reply, Store, Topic, Verdict, Wake},
    support, telemetry,
    token::GrantNumber,
};

/// What a keeper is made with.
pub(crate) struct Settings {
    pub(crate) clock: Clock,
    pub(crate) request_limit: Duration,
    pub(crate) outage_limit: Duration,
    pub(crate) process: Arc<ProcessInfo>,
}

pub(crate) struct Engine {
    store: Arc<dyn Store>,
    settings: Settings,
    ids: Arc<Ids>,
    ledger: Ledger,
    groups: Mutex<Vec<Arc<Group>>>,
    patrol: Arc<Patrol>,
    lanes: Lanes,
    watches: Watches,
    store_clock: StoreClock,
    /// How far this keeper's beat is shifted, so that not all keepers of a store poll at once.
    phase: Duration,
    tickets: AtomicU64,
    closed: AtomicBool,
    leaving: AtomicUsize,
    all_left: Notify,
    background: Handle,
    stop: Stop,
}

impl Engine {
    pub(crate) fn new(
        store: Arc<dyn Store>,
        settings: Settings,
        ids: Arc<Ids>,
        background: Handle,
        stop: Stop,
    ) -> Arc<Self> {
        Arc::new(Self {
            phase: phase(ids.keeper()),
            store,
            settings,
            ids,
            ledger: Ledger::default(),
            groups: Mutex::default(),
            patrol: Patrol::new(background.clone(), stop.clone()),
            lanes: Lanes::default(),
            watches: Watches::default(),
            store_clock: StoreClock::default(),
            tickets: AtomicU64::new(0),
            closed: AtomicBool::new(false),
            leaving: AtomicUsize::new(0),
            all_left: Notify::new(),
            background,
            stop,
        })
    }

    pub(crate) fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    pub(crate) fn clock(&self) -> &Clock {
        &self.settings.clock
    }

    pub(crate) fn store_clock(&self) -> &StoreClock {
        &self.store_clock
    }

    pub(crate) fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    pub(crate) fn lanes(&self) -> &Lanes {
        &self.lanes
    }

    pub(crate) fn watches(&self) -> &Watches {
        &self.watches
    }

    pub(crate) fn background(&self) -> &Handle {
        &self.background
    }

    pub(crate) fn stop(&self) -> &Stop {
        &self.stop
    }

    pub(crate) fn request_limit(&self) -> Duration {
        self.settings.request_limit
    }

    pub(crate) fn outage_limit(&self) -> Duration {
        self.settings.outage_limit
    }

    pub(crate) fn stats(&self) -> Stats {
        let (waiting, held) = self.ledger.counts();
        Stats {
            held,
            waiting,
            leaving: self.leaving.load(Ordering::Acquire),
            lanes: self.lanes.count(),
            subscriptions: self.watches.count(),
        }
    }

    pub(crate) fn group_limit(&self) -> usize {
        self.store.capability().group_limit.max(1)
    }

    fn asks_again(&self) -> Duration {
        self.store.capability().asks_again
    }

    pub(crate) fn requests_at_once(&self) -> usize {
        self.store.capability().requests_at_once.max(1)
    }

    pub(crate) fn patrol(&self) -> &Arc<Patrol> {
        &self.patrol
    }

    pub(crate) fn next_ticket(&self) -> u64 {
        self.tickets.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn keeper_id(&self) -> KeeperId {
        self.ids.keeper()
    }

    pub(crate) fn next_id(&self) -> ContenderId {
        self.ids.next()
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    fn group(&self, name: &Name) -> Arc<Group> {
        let server = self.store.server_of(name);
        let mut groups = support::lock(&self.groups);
        if groups.len() <= server {
            groups.resize_with(server + 1, Arc::default);
        }
        groups[server].clone()
    }

    /// Asks the store, but not for longer than a request may take.
    pub(crate) async fn ask_store<T>(
        &self,
        operation: &'static str,
        reply: Reply<'_, T>,
    ) -> Result<T, StoreError> {
        let limit = self.request_limit();
        let result = self.clock().within(limit, reply).await;
        self.located(operation, result.unwrap_or_else(|| Err(no_answer(limit))))
    }

    /// Asks the store from a flight. Wherever that is carried, the timers of its request live on the keeper's thread,
    /// since a runtime that ends takes its own along. Until the keeper's thread carries it, the request has no limit,
    /// since a timer for each is work that a lone claim need not do: the patrol sees to it that no flight takes long
    /// elsewhere.
    pub(crate) async fn ask_in_flight<T>(&self, mut reply: Reply<'_, T>) -> Result<T, StoreError> {
        let (sent, limit) = (self.clock().now(), self.request_limit());
        let mut timer = None;
        let result = poll_fn(|context| {
            let by_keeper = Handle::try_current().is_ok_and(|here| here.id() == self.background.id());
            let _timers = self.background.enter();
            if let Poll::Ready(result) = reply.as_mut().poll(context) {
                return Poll::Ready(result);
            }
            if by_keeper {
                let left = || limit.saturating_sub(self.clock().now().since(sent));
                let timer = timer.get_or_insert_with(|| Box::pin(tokio::time::sleep(left())));
                ready!(timer.as_mut().poll(context));
                return Poll::Ready(Err(no_answer(limit)));
            }
            Poll::Pending
        });
        self.located("claim", result.await)
    }

    fn located<T>(&self, operation: &'static str, result: Result<T, StoreError>) -> Result<T, StoreError> {
        result.map_err(|error| error.at(At { store: self.store.url().clone(), resource: None, operation }))
    }

    /// Learns the store's clock; the first thing a keeper asks.
    pub(crate) async fn learn_clock(&self) -> Result<(), StoreError> {
        let answers = self.ask_store("connect", self.store.apply(&[])).await?;
        self.store_clock.heard(0, self.clock().now(), answers.now);
        Ok(())
    }
}

/// Verdicts, failures and wakes.
impl Engine {
    pub(crate) fn on_verdict(self: &Arc<Self>, seat: &Arc<Seat>, sent: BootTime, verdict: Verdict) {
        let now = self.clock().now();
        let waits = matches!(verdict, Verdict::Busy { .. }) && seat.claim().queue;
        if !waits && !matches!(verdict, Verdict::Stale) {
            seat.heard();
        }
        match verdict {
            Verdict::Granted(grant) => {
                let deadline = deadline::from_answer(sent, grant.remaining);
                if now >= deadline {
                    self.conclude(seat, Outcome::TooLate);
                    return;
                }
                self.granted(
                    seat,
                    Origin {
                        name: seat.claim().name.clone(),
                        contender: seat.claim().contender,
                        slot: seat.slot(),
                        number: grant.number,
                        floor: grant.floor,
                        terms: seat.terms.clone(),
                        tombstone_until: seat.tombstone_until(),
                        from: sent,
                        lease: grant.remaining,
                        whole: seat.terms.claim_lease(),
                        deadline,
                        confirmed: true,
                        step: 0,
                    },
                );
            }
            Verdict::Busy { ahead, .. } if !seat.claim().queue => {
                telemetry::queued(ahead);
                self.conclude(seat, Outcome::Busy);
            }
            Verdict::Busy { ahead, retry_in } => {
                if seat.ahead().is_none() {
                    telemetry::queued(ahead);
                }
                if self.watches.grants_need_one() && !seat.has_wakes() {
                    self.watch_grants(seat);
                }
                seat.placed(ahead);
                let longest = self.asks_again().min(seat.claim().lease * 2 / 3);
                let next = next_ask(now.after(self.phase), ahead, retry_in, longest);
                self.ledger.ask_at(seat.slot(), next.before(self.phase));
                // Only now is there no copy under way: a hint before this is told here, and one that comes later asks
                // by itself.
                if seat.heard() {
                    self.ledger.ask_at(seat.slot(), now);
                }
            }
            Verdict::Stale if seat.too_late() <= 5 => self.ledger.ask_at(seat.slot(), now),
            Verdict::Stale => {
                let message = "claims keep arriving too late for the store's clock; check clocks and latency";
                self.conclude(seat, Outcome::Failed(StoreError::new(StoreErrorKind::Conflict, message)));
            }
            Verdict::Mismatch { in_use } => self.conclude(seat, Outcome::Mismatch(in_use)),
            Verdict::Refused(error) => self.conclude(seat, Outcome::Failed(error)),
        }
    }

    /// A claim whose outcome is not known: ask again with the same id, while that makes sense.
    pub(crate) fn judged_unknown(self: &Arc<Self>, seat: &Arc<Seat>, error: &StoreError) {
        let now = self.clock().now();
        let (pause, since) = seat.failed(now, error.maybe_applied());
        let outage = error.is_passing() && now.since(since) >= self.settings.outage_limit;
        if error.is_passing() && !outage && seat.claim().queue {
            self.ledger.ask_at(seat.slot(), now.after(pause));
            return;
        }
        // An earlier copy may have had an effect, whatever became of this one.
        let unknown = seat.tombstone_until().is_some();
        let error = if unknown { error.clone().perhaps_applied() } else { error.clone() };
        self.conclude(seat, if outage { Outcome::Outage(error) } else { Outcome::Failed(error) });
    }

    fn granted(self: &Arc<Self>, seat: &Arc<Seat>, origin: Origin) {
        let hold = Arc::new(Hold::new(origin));
        if !self.ledger.promote(&hold) {
            // A second message about a grant that is already known, or nobody waits any more.
            self.leave_unwanted(&hold.name, hold.contender, hold.number, hold.terms.claim_lease());
            return;
        }
        if let Err(Outcome::Granted(hold)) = seat.tell(Outcome::Granted(hold))
            && let Some(flight) = self.give_up(&hold)
        {
            flight.in_background();
        }
    }

    /// Leaves what was granted to a contender of this keeper, unless somebody has it (rule 3 of the design).
    fn leave_unwanted(
        self: &Arc<Self>,
        name: &Name,
        contender: ContenderId,
        number: GrantNumber,
        lease: Duration,
    ) {
        match self.ledger.addressee(contender.seq, number) {
            Addressee::Waiting(_) | Addressee::Known => return,
            Addressee::Outlived(hold) => {
                hold.lose(Lost::Gone);
                self.ledger.lost(hold.slot);
            }
            Addressee::Nobody => {}
        }
        let leave =
            Leave { name: name.clone(), contender, tombstone_until: None, hold_at_least: Duration::ZERO };
        self.leave_soon(leave, lease);
    }

    fn conclude(&self, seat: &Arc<Seat>, outcome: Outcome) {
        self.ledger.strike_seat(seat.slot());
        // Nobody waits any more: the one who stopped waiting leaves.
        drop(seat.tell(outcome));
    }

    pub(crate) fn on_wake(self: &Arc<Self>, wake: Wake) {
        match wake {
            Wake::Granted(name, notice) => self.on_notice(&name, &notice),
            Wake::Changed(Topic::Grants(name)) => self.hint(&self.ledger.waiting_for(Some(&name))),
            Wake::Changed(topic) => self.watches.changed(&topic),
            Wake::Resync => {
                self.hint(&self.ledger.waiting_for(None));
                self.watches.all_changed();
            }
            Wake::Reconfirm => self.ledger.renew_now(self.clock().now()),
        }
    }

    /// Something may have changed for these: they ask now, or once more if an answer is under way that may be older.
    fn hint(&self, seats: &[Arc<Seat>]) {
        let now = self.clock().now();
        for seat in seats {
            if !seat.hinted() {
                self.ledger.ask_at(seat.slot(), now);
            }
        }
    }

    /// A grant made by a releaser: no further round trip if the message can be trusted.
    fn on_notice(self: &Arc<Self>, name: &Name, notice: &GrantNotice) {
        if notice.contender.keeper != self.ids.keeper() {
            return;
        }
        let Addressee::Waiting(seat) = self.ledger.addressee(notice.contender.seq, notice.number) else {
            return self.leave_unwanted(name, notice.contender, notice.number, notice.lease);
        };
        // With a minimum the store must know that it is acted upon before it is: what nobody confirmed ends with its
        // process. So then the message is only a hint to claim.
        let trusted = deadline::from_notice(notice, self.clock().now());
        let Some(deadline) = trusted.filter(|_| seat.terms.min_hold.is_zero()) else {
            return self.hint(&[seat]);
        };
        self.granted(
            &seat,
            Origin {
                name: name.clone(),
                contender: notice.contender,
                slot: seat.slot(),
                number: notice.number,
                floor: notice.floor,
                terms: seat.terms.clone(),
                tombstone_until: seat.tombstone_until(),
                from: BootTime(notice.stamp).after(notice.waited),
                lease: notice.lease,
                whole: seat.terms.claim_lease(),
                deadline,
                confirmed: false,
                step: 0,
            },
        );
    }

    /// Subscribes to grants of this resource, then asks once more: what was granted between the
    /// claim and the subscription would otherwise be heard of only at the next poll.
    fn watch_grants(self: &Arc<Self>, seat: &Arc<Seat>) {
        let (engine, seat) = (self.clone(), seat.clone());
        self.background.spawn(async move {
            let topic = Topic::Grants(seat.claim().name.clone());
            // A failure costs only time: the seat asks again at its next poll.
            if let Ok(interest) = engine.watches.subscribe(&engine, &topic).await {
                if interest.new && engine.watches.grants_need_one() {
                    engine.hint(std::slice::from_ref(&seat));
                }
                seat.is_woken_by(interest);
            }
        });
    }

    /// Asks again for these seats, as few requests as possible.
    pub(crate) fn ask_again(self: &Arc<Self>, seats: Vec<Arc<Seat>>) {
        for seat in &seats {
            // Should the answer never come, not even as an error, the next poll asks again.
            self.ledger.ask_at(seat.slot(), self.clock().now().after(self.asks_again()));
        }
        for (_, seats) in by_server(&*self.store, seats, |seat| &seat.claim().name) {
            let Some(first) = seats.first() else { continue };
            let group = self.group(&first.claim().name);
            if let Some(flight) = group.submit(self, seats.into_iter().map(Job::Claim)) {
                flight.depart();
            }
        }
    }
}

fn no_answer(limit: Duration) -> StoreError {
    let message = format!("no answer within {limit:?}; check that the store is up and reachable");
    StoreError::new(StoreErrorKind::Unreachable, message)
}

/// Splits what belongs to different servers.
pub(crate) fn by_server<T>(
    store: &dyn Store,
    items: Vec<T>,
    name: impl Fn(&T) -> &Name,
) -> std::collections::BTreeMap<usize, Vec<T>> {
    let mut split = std::collections::BTreeMap::<usize, Vec<T>>::new();
    for item in items {
        split.entry(store.server_of(name(&item))).or_default().push(item);
    }
    split
}

/// When to ask again without a wake. The next in line asks when a lease ends; the others poll
/// half as often, once in `longest`. Polls fall on one beat, so they travel as one request; a beat
/// that is very near is left out, since this claim has only just been answered.
fn next_ask(now: BootTime, ahead: u32, retry_in: Duration, longest: Duration) -> BootTime {
    let poll = (longest / 2).max(Duration::from_millis(1));
    let beat = |period: Duration| {
        let period = u64::try_from(period.as_nanos()).unwrap_or(u64::MAX);
        BootTime((now.after(poll / 4).0 / period + 1) * period)
    };
    if ahead == 0 { now.after(retry_in + Duration::from_millis(1)).min(beat(poll)) } else { beat(2 * poll) }
}

/// Where in the beat a keeper polls. By its id, so that a simulated run repeats exactly.
fn phase(keeper: KeeperId) -> Duration {
    let mut hasher = DefaultHasher::new();
    keeper.hash(&mut hasher);
    Duration::from_millis(hasher.finish() % 3_600_000)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{capability::Capability, model::FIRST_LEASE};

    const LOSSY: Duration = Capability::ASKS_AGAIN;

    #[test]
    fn i8_a_waiter_asks_again_within_the_first_lease_of_its_grant() {
        for millis in [10, 100, 700, 1500, 3000, 30_000] {
            let lease = Duration::from_millis(millis);
            for (ahead, offset) in [(0, 0), (0, 999), (1, 1), (7, 1999)] {
                let now = BootTime(1_000_000_000_000).after(Duration::from_millis(offset));
                let longest = LOSSY.min(lease * 2 / 3);
                let asks = next_ask(now, ahead, Duration::from_secs(3600), longest);
                assert!(asks > now && asks.since(now) < lease.min(FIRST_LEASE), "{ahead} ahead, {lease:?}");
            }
        }
    }

    /// Else a store with many waiting processes would hear nothing for two seconds, and then all.
    #[test]
    fn keepers_do_not_poll_at_the_same_moment() {
        let mut slots = std::collections::HashSet::new();
        for id in 0..64 {
            slots.insert(phase(KeeperId::from_u128(id)).as_millis() % 2000 / 100);
        }
        assert!(slots.len() >= 15, "64 keepers poll in {} of 20 tenths of a second", slots.len());
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
