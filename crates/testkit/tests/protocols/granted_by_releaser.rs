//! Granted by the releaser: a leave grants the lock to the first waiter of the store's queue for a short first
//! lease and pushes a notice, which may be late or lost. The waiter enters on the notice or finds out by its poll, and
//! confirms by a renewal. A process with two positions in the queue may die at any moment.
//!
//! It proves I2 and I3 (one holder, no deadline later than the store's expiry), I4 (a notice is trusted
//! only when that is sound), I5 and I12 (those who were served leave nothing), I6 (numbers grow), I8
//! (the dead are passed, and every waiter that stays is served), I11 (a renewal revives nothing).
//!
//! The waiters follow `Engine::on_notice`, `Engine::on_verdict`, `next_ask` and the watchdog.

use std::{collections::BTreeSet, time::Duration};

use lockkeeper_core::{
    ContenderId, GrantNumber,
    clock::BootTime,
    deadline,
    model::FIRST_LEASE,
    store::{Claim, Grant, GrantNotice, Renewed, StoreTime, Verdict},
};
use stateright::{Model, Property};

use super::{
    prove, refute,
    store::{Store, Time, claim, contender, on_the_clients_clock},
};

const TICK: Duration = Duration::from_secs(1);
const LEASE: Duration = Duration::from_secs(4);
/// A holder stays this many ticks, or leaves at once.
const STAY: u32 = 3;
/// How long a copy may take effect after it was sent.
const LIFE: u32 = 5;
/// The first holder leaves by this tick, or never.
const FIRST_LEAVES: u32 = 1;
/// Requests that get lost, or take a tick instead of no time.
const FAULTS: u8 = 1;
/// By now everybody who stayed must have been served.
const LAST_TICK: u32 = 20;
const NEVER: u32 = u32::MAX;
const WAITERS: usize = 3;
/// The process that may die has two positions in the queue.
const MORTAL: u8 = 1;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Variant {
    Right,
    /// A pushed grant is believed to last for the full lease, and is not confirmed.
    PushNotConfirmed,
    /// The notice is counted from the last copy sent, not from the one that the store measured from.
    StampOfTheLastCopy,
    /// The store never drops the positions and holds of a dead process.
    DeadWaiterKept,
    /// Waiters rely on notices alone.
    NoPoll,
    /// A lock that was released starts its numbers anew.
    NumbersStartAnew,
}

fn waiter_id(nth: usize) -> ContenderId {
    contender(if nth < 2 { MORTAL } else { MORTAL + 1 }, 1 + nth as u64)
}

fn first_holder() -> ContenderId {
    contender(MORTAL + 2, 9)
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Phase {
    Waiting {
        /// When it asks again, if it hears nothing.
        due: u32,
    },
    Holding {
        deadline: BootTime,
        number: GrantNumber,
        since: u32,
        /// When the watchdog renews.
        renew_at: u32,
    },
    /// Lost, but not yet left.
    Lost,
    /// Released.
    Served,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Waiter {
    phase: Phase,
    /// When the copy under way was sent.
    in_flight: Option<u32>,
    /// Whether it may take until the next tick.
    delayed: bool,
    last_sent: u32,
}

/// A notice under way, in an order that is always the same.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
struct Push {
    nth: usize,
    number: GrantNumber,
    stamp: u64,
    waited: Duration,
    lease: Duration,
}

#[derive(Clone, PartialEq, Hash, Debug)]
struct State {
    now: Time,
    store: Store,
    /// Whether the first holder still holds; it may be dead, so that its lease has to end it.
    first_holds: bool,
    waiters: [Waiter; WAITERS],
    pushes: BTreeSet<Push>,
    mortal_died: bool,
    faults: u8,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Action {
    Tick,
    FirstLeaves,
    Die,
    Process(usize),
    LoseRequest(usize),
    DelayRequest(usize),
    Deliver(Push),
    LosePush(Push),
    Renew(usize),
    LoseRenewal(usize),
    Release(usize),
}

#[derive(Clone, Copy)]
struct World(Variant);

impl State {
    fn lives(&self, nth: usize) -> bool {
        !self.mortal_died || waiter_id(nth).keeper != waiter_id(0).keeper
    }

    fn at(&self, ticks: u32) -> Time {
        Time { ticks, ..self.now }
    }

    fn not_after(&self, sent: u32) -> StoreTime {
        self.at(sent + LIFE).store()
    }

    fn push(&mut self, notices: Vec<GrantNotice>) {
        for notice in notices {
            let GrantNotice { contender, number, stamp, waited, lease, .. } = notice;
            let nth = (0..WAITERS).find(|nth| waiter_id(*nth) == contender).expect("only these wait");
            self.pushes.insert(Push { nth, number, stamp, waited, lease });
        }
    }

    fn leave(&mut self, nth: usize) {
        let tombstone_until = self.waiters[nth].in_flight.map(|sent| self.not_after(sent));
        let (_, notices) = self.store.leave(self.now, waiter_id(nth), tombstone_until);
        self.push(notices);
    }

    /// Every waiter sends the request that is due. To send is an act of the sender alone, so its order makes no
    /// difference.
    fn send_what_is_due(&mut self) {
        let now = self.now.ticks;
        for nth in (0..WAITERS).filter(|nth| self.lives(*nth)).collect::<Vec<_>>() {
            let waiter = &mut self.waiters[nth];
            if matches!(waiter.phase, Phase::Waiting { due } if due <= now) && waiter.in_flight.is_none() {
                waiter.in_flight = Some(now);
                waiter.last_sent = now;
            }
        }
    }

    /// Everybody who lives and believes to hold now, with deadline and number.
    fn believers(&self) -> impl Iterator<Item = (ContenderId, BootTime, GrantNumber)> {
        (0..WAITERS).filter(|nth| self.lives(*nth)).filter_map(|nth| match self.waiters[nth].phase {
            Phase::Holding { deadline, number, .. } if self.now.boot() < deadline => {
                Some((waiter_id(nth), deadline, number))
            }
            _ => None,
        })
    }

    /// Whether a waiter has something to do before time goes on: a request takes no time or a tick, and
    /// nobody stays for longer than it may.
    fn is_busy(&self, nth: usize) -> bool {
        let waiter = &self.waiters[nth];
        let now = self.now.ticks;
        let stays = matches!(waiter.phase, Phase::Holding { since, .. } if since + STAY > now);
        let holds = matches!(waiter.phase, Phase::Holding { .. });
        waiter.in_flight.is_some_and(|sent| sent < now || !waiter.delayed)
            || (self.lives(nth) && holds && !stays)
    }

    /// The waiter that is to renew, or to leave a lost hold: done before anything else at that time, since at the store
    /// nothing else can come in between.
    fn at_once(&self) -> Option<usize> {
        (0..WAITERS).filter(|nth| self.lives(*nth)).find(|nth| match self.waiters[*nth].phase {
            Phase::Holding { renew_at, .. } => renew_at <= self.now.ticks,
            Phase::Lost => true,
            _ => false,
        })
    }

    fn all_served(&self) -> bool {
        (0..WAITERS).all(|nth| !self.lives(nth) || self.waiters[nth].phase == Phase::Served)
    }
}

impl World {
    /// A waiter's poll: the first in the queue every second, the others every two.
    fn next_ask(self, now: u32, ahead: u32) -> u32 {
        match (self.0, ahead) {
            (Variant::NoPoll, _) => NEVER,
            (_, 0) => now + 1,
            _ => (now / 2 + 1) * 2,
        }
    }

    fn process(self, state: &mut State, nth: usize, sent: u32) {
        state.waiters[nth].in_flight = None;
        state.waiters[nth].delayed = false;
        let copy = Claim {
            not_after: state.not_after(sent),
            again: true,
            ..claim(waiter_id(nth), LEASE, state.at(sent))
        };
        let (verdict, notices) = state.store.claim(state.now, copy);
        state.push(notices);
        if !state.lives(nth) || !matches!(state.waiters[nth].phase, Phase::Waiting { .. }) {
            return;
        }
        state.waiters[nth].phase = match verdict {
            Verdict::Granted(grant) => Phase::Holding {
                deadline: deadline::from_answer(state.at(sent).boot(), grant.remaining),
                number: grant.number,
                since: state.now.ticks,
                renew_at: sent + third(grant.remaining),
            },
            Verdict::Busy { ahead, .. } => Phase::Waiting { due: self.next_ask(state.now.ticks, ahead) },
            other => unreachable!("{other:?}"),
        };
    }

    fn deliver(self, state: &mut State, push: Push) {
        let Push { nth, number, stamp, waited, lease } = push;
        if !state.lives(nth) {
            return;
        }
        match state.waiters[nth].phase {
            Phase::Holding { .. } => return,
            Phase::Lost | Phase::Served => return state.leave(nth),
            Phase::Waiting { .. } => {}
        }
        let mut notice =
            GrantNotice { contender: waiter_id(nth), number, floor: number, stamp, waited, lease };
        match self.0 {
            Variant::PushNotConfirmed => notice.lease = LEASE,
            Variant::StampOfTheLastCopy => notice.stamp = state.at(state.waiters[nth].last_sent).boot().0,
            _ => {}
        }
        let now = state.now.ticks;
        state.waiters[nth].phase = match deadline::from_notice(&notice, state.now.boot()) {
            None => Phase::Waiting { due: now },
            Some(deadline) => Phase::Holding {
                deadline,
                number,
                since: now,
                renew_at: if self.0 == Variant::PushNotConfirmed {
                    NEVER
                } else {
                    let granted = BootTime(notice.stamp).after(notice.waited);
                    u32::try_from(granted.since(state.at(0).boot()).as_secs()).expect("small") + third(lease)
                },
            },
        };
    }

    fn renew(self, state: &mut State, nth: usize) {
        let (answer, notices) = state.store.renew(state.now, waiter_id(nth), LEASE);
        state.push(notices);
        let now = state.now;
        let Phase::Holding { deadline, renew_at, .. } = &mut state.waiters[nth].phase else { return };
        match answer {
            // A success that arrives after the deadline is not a success.
            Renewed::Held(Grant { remaining, .. }) if now.boot() < *deadline => {
                *deadline = deadline::from_answer(now.boot(), remaining);
                *renew_at = now.ticks + third(remaining);
            }
            _ => state.waiters[nth].phase = Phase::Lost,
        }
    }
}

/// A third of a lease, in whole ticks.
fn third(lease: Duration) -> u32 {
    u32::try_from((lease / 3).as_secs()).expect("small").max(1)
}

impl Model for World {
    type State = State;
    type Action = Action;

    /// The first holder holds; the others have come in one order or another.
    fn init_states(&self) -> Vec<State> {
        let now = Time::zero(TICK);
        let orders = [[0, 1, 2], [0, 2, 1]];
        let line = |order: [usize; WAITERS]| {
            let mut store = Store::new();
            store.claim(now, claim(first_holder(), LEASE, now));
            let mut waiters =
                [Waiter { phase: Phase::Waiting { due: 0 }, in_flight: None, delayed: false, last_sent: 0 };
                    WAITERS];
            for (ahead, nth) in order.into_iter().enumerate() {
                store.claim(now, claim(waiter_id(nth), LEASE, now));
                waiters[nth].phase = Phase::Waiting { due: self.next_ask(0, ahead as u32) };
            }
            State {
                now,
                store,
                first_holds: true,
                waiters,
                pushes: BTreeSet::new(),
                mortal_died: false,
                faults: 0,
            }
        };
        orders.map(line).into()
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        let now = state.now.ticks;
        if let Some(nth) = state.at_once() {
            if state.waiters[nth].phase == Phase::Lost {
                actions.push(Action::Release(nth));
                return;
            }
            actions.push(Action::Renew(nth));
            if state.faults < FAULTS {
                actions.push(Action::LoseRenewal(nth));
            }
            return;
        }
        let busy = (0..WAITERS).any(|nth| state.is_busy(nth));
        if now < LAST_TICK && !busy && !state.all_served() {
            actions.push(Action::Tick);
        }
        if state.first_holds && now <= FIRST_LEAVES {
            actions.push(Action::FirstLeaves);
        }
        if !state.mortal_died && !state.all_served() {
            actions.push(Action::Die);
        }
        // Requests that are not delayed arrive in one order, so that orders that make no difference are not tried.
        let prompt = |waiter: &Waiter| waiter.in_flight.is_some() && !waiter.delayed;
        let first = state.waiters.iter().position(prompt);
        for (nth, waiter) in state.waiters.iter().enumerate() {
            if waiter.in_flight.is_some() && (waiter.delayed || first == Some(nth)) {
                actions.push(Action::Process(nth));
                if state.faults < FAULTS && !waiter.delayed {
                    actions.push(Action::LoseRequest(nth));
                    actions.push(Action::DelayRequest(nth));
                }
            }
            if let Phase::Holding { since, .. } = waiter.phase
                && state.lives(nth)
                && (now == since || since + STAY <= now)
            {
                actions.push(Action::Release(nth));
            }
        }
        for push in &state.pushes {
            actions.push(Action::Deliver(*push));
            actions.push(Action::LosePush(*push));
        }
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        let mut next = state.clone();
        match action {
            Action::Tick => {
                next.now.ticks += 1;
                next.store.forget_old_marks(next.now);
                // So old a notice can only be a hint: as good as lost.
                let (now, oldest) = (next.now.boot(), FIRST_LEASE + TICK);
                next.pushes.retain(|push| now.since(BootTime(push.stamp).after(push.waited)) <= oldest);
                if self.0 == Variant::DeadWaiterKept && next.mortal_died {
                    for nth in [0, 1] {
                        let there = next.store.everybody().any(|id| id == waiter_id(nth));
                        if there {
                            next.store.claim(next.now, claim(waiter_id(nth), LEASE, next.at(0)));
                            next.store.renew(next.now, waiter_id(nth), LEASE);
                        }
                    }
                }
            }
            Action::FirstLeaves => {
                next.first_holds = false;
                let (_, notices) = next.store.leave(next.now, first_holder(), None);
                next.push(notices);
            }
            Action::Die => next.mortal_died = true,
            Action::Process(nth) => {
                let sent = next.waiters[nth].in_flight?;
                self.process(&mut next, nth, sent);
            }
            Action::LoseRequest(nth) => {
                next.faults += 1;
                next.waiters[nth].in_flight = None;
                if let Phase::Waiting { due } = &mut next.waiters[nth].phase {
                    *due = next.now.ticks + 1;
                }
            }
            Action::DelayRequest(nth) => {
                next.faults += 1;
                next.waiters[nth].delayed = true;
            }
            Action::Deliver(push) => {
                next.pushes.remove(&push);
                self.deliver(&mut next, push);
            }
            Action::LosePush(push) => {
                next.pushes.remove(&push);
            }
            Action::Renew(nth) => self.renew(&mut next, nth),
            Action::LoseRenewal(nth) => {
                next.faults += 1;
                if let Phase::Holding { renew_at, .. } = &mut next.waiters[nth].phase {
                    *renew_at = next.now.ticks + 1;
                }
            }
            Action::Release(nth) => {
                if self.0 == Variant::NumbersStartAnew {
                    next.store.forget_numbers();
                }
                next.leave(nth);
                next.waiters[nth].phase = Phase::Served;
            }
        }
        next.send_what_is_due();
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(ONE_HOLDER, |_, state: &State| state.believers().count() <= 1),
            Property::always(EARLY_DEADLINE, |_, state: &State| {
                state.believers().all(|(id, deadline, number)| {
                    state.store.holders(state.now).any(|holder| {
                        (holder.contender, holder.number) == (id, number)
                            && on_the_clients_clock(holder.expires) >= deadline
                    })
                })
            }),
            Property::always(NUMBERS_GROW, |_, state: &State| !state.store.numbers_fell()),
            Property::always(NOTHING_LEFT, |_, state: &State| {
                state.store.everybody().all(|id| {
                    (0..WAITERS)
                        .filter(|nth| waiter_id(*nth) == id)
                        .all(|nth| !state.lives(nth) || state.waiters[nth].phase != Phase::Served)
                })
            }),
            // Once true it stays true, which the checker needs to judge it exactly.
            Property::eventually(SERVED, |_, state: &State| state.all_served()),
            Property::sometimes("a waiter enters on a notice alone", |_, state: &State| {
                let unconfirmed = state.store.holders(state.now).filter(|holder| !holder.confirmed);
                unconfirmed.into_iter().any(|holder| state.believers().any(|(id, ..)| id == holder.contender))
            }),
            Property::sometimes("a notice is overtaken by a poll", |_, state: &State| {
                let overtaken = |push: &Push| state.waiters[push.nth].phase == Phase::Served;
                state.pushes.iter().any(overtaken)
            }),
            Property::sometimes("a grant to the dead holds up the others", |_, state: &State| {
                let mut holders = state.store.holders(state.now);
                state.mortal_died
                    && holders.any(|holder| holder.contender == waiter_id(0) && !holder.confirmed)
            }),
            Property::sometimes("a live waiter is dropped and comes again", |_, state: &State| {
                let dropped = !state.store.everybody().any(|id| id == waiter_id(1));
                !state.mortal_died && dropped && matches!(state.waiters[1].phase, Phase::Waiting { .. })
            }),
            Property::sometimes("a holder loses it", |_, state: &State| {
                state.waiters.iter().any(|waiter| waiter.phase == Phase::Lost)
            }),
            Property::sometimes("the first holder dies", |_, state: &State| {
                state.first_holds && state.believers().count() == 1
            }),
        ]
    }
}

const ONE_HOLDER: &str = "I2: no two believe to hold";
const EARLY_DEADLINE: &str = "I3 I4 I11: who believes to hold does, at least until its deadline";
const NUMBERS_GROW: &str = "I6: numbers grow";
const NOTHING_LEFT: &str = "I5 I12: who was served leaves nothing";
const SERVED: &str = "I8: every waiter that stays is served";

#[test]
fn granting_by_the_releaser_is_sound() {
    assert!(LEASE > FIRST_LEASE, "or there is nothing to confirm");
    prove(World(Variant::Right));
}

#[test]
fn a_push_that_is_not_confirmed_is_refuted() {
    refute(World(Variant::PushNotConfirmed), EARLY_DEADLINE);
    refute(World(Variant::PushNotConfirmed), ONE_HOLDER);
}

/// Timeline A2a.
#[test]
fn counting_from_the_last_copy_is_refuted() {
    refute(World(Variant::StampOfTheLastCopy), EARLY_DEADLINE);
}

#[test]
fn keeping_the_dead_is_refuted() {
    refute(World(Variant::DeadWaiterKept), SERVED);
}

#[test]
fn relying_on_notices_alone_is_refuted() {
    refute(World(Variant::NoPoll), SERVED);
}

#[test]
fn numbers_that_start_anew_are_refuted() {
    refute(World(Variant::NumbersStartAnew), NUMBERS_GROW);
}
