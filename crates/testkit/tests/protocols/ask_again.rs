//! Asking again: a keeper whose claims and answers may be delayed, lost or doubled asks again under the same id, may
//! give up, and its late copies arrive at the worst moment, while rivals want the same lock.
//!
//! It proves I1 (only the owner touches its hold), I2 (one holder), I3 (no deadline is later than the store's expiry),
//! I5 and I12 (a claim that is given up ends), I6 (numbers grow), I9 (asking again never enters twice, and late copies
//! do nothing), I15 (a leave ends only the claim that it names).
//!
//! The asker follows `engine/waiter.rs` and `acquisition::settle`: one copy under way at a time; copies without an
//! answer are remembered by the latest time at which they may still take effect, and the leave carries that time as its
//! tombstone.

use std::{collections::BTreeSet, time::Duration};

use lockkeeper_core::{
    ContenderId, GrantNumber,
    clock::BootTime,
    deadline,
    store::{Claim, StoreTime, Verdict},
};
use stateright::{Model, Property};

use super::{
    prove, refute,
    store::{Store, Time, claim, contender, on_the_clients_clock},
};

const TICK: Duration = Duration::from_secs(1);
const LEASE: Duration = Duration::from_secs(2);
/// How long a copy may take effect after it was sent.
const LIFE: u32 = 1;
/// The asker begins at this tick at the latest.
const BEGIN: u32 = 1;
const LAST_TICK: u32 = 5;
/// How many copies of its claim the asker sends.
const COPIES: u8 = 2;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Variant {
    Right,
    /// The deadline counts from when the answer came, not from when its request was sent.
    DeadlineAfterReply,
    /// The longest lease ever told counts, not the rest of it.
    DeadlineByMaximum,
    /// The store takes a repeated claim for a new one.
    DoubleEntry,
    /// Leaving leaves no tombstone against late copies.
    NoMark,
    /// Copies take effect however late they are.
    NoTimeLimit,
    /// A leave frees the lock, no matter which contender holds it.
    ReleaseByName,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
struct Copy {
    sent: u32,
    not_after: StoreTime,
    again: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
enum Message {
    /// `times`: how often it still arrives at most.
    Claim {
        copy: Copy,
        times: u8,
    },
    Leave {
        tombstone_until: Option<StoreTime>,
        times: u8,
    },
    /// An answer to the copy sent then.
    Answer {
        sent: u32,
        said: Said,
    },
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
enum Said {
    Granted { number: GrantNumber, remaining: Duration },
    Busy,
    Stale,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Phase {
    Idle,
    Asking,
    Holding(Hold),
    /// Left, released or given up at that tick.
    Done {
        at: u32,
        too_late: bool,
    },
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Hold {
    deadline: BootTime,
    number: GrantNumber,
}

#[derive(Clone, PartialEq, Hash, Debug)]
struct State {
    now: Time,
    store: Store,
    network: BTreeSet<Message>,
    phase: Phase,
    copies: u8,
    in_flight: Option<Copy>,
    /// The latest `not_after` of the copies that got no answer.
    unanswered: Option<StoreTime>,
    /// Whether the store has seen the asker's leave.
    left: bool,
    /// The longest lease told by the store, heard or not: only for a variant.
    longest: Duration,
    rivals: Vec<Phase>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Action {
    Tick,
    Ask,
    /// No answer came within the time a request may take.
    TimeOut,
    GiveUp,
    Release,
    /// The store gets this message; it may get it again.
    Arrive(Message),
    /// The asker gets this answer.
    Hear(Message),
    RivalTries(usize),
    RivalReleases(usize),
}

#[derive(Clone, Copy)]
struct World {
    variant: Variant,
    /// Rivals have a perfect network: their requests are sent, done and answered at once.
    rivals: usize,
}

impl World {
    fn of(variant: Variant) -> Self {
        // With a late leave that frees the lock of the first rival, the second comes in.
        Self { variant, rivals: if variant == Variant::ReleaseByName { 2 } else { 1 } }
    }
}

fn asker() -> ContenderId {
    contender(1, 1)
}

fn rival(nth: usize) -> ContenderId {
    contender(2, 1 + nth as u64)
}

impl State {
    fn send_claim(&mut self) {
        let not_after = Time { ticks: self.now.ticks + LIFE, ..self.now }.store();
        let copy = Copy { sent: self.now.ticks, not_after, again: self.copies > 0 };
        self.copies += 1;
        self.in_flight = Some(copy);
        self.network.insert(Message::Claim { copy, times: 2 });
    }

    fn send_leave(&mut self, too_late: bool) {
        let under_way = self.in_flight.take().map(|copy| copy.not_after);
        let tombstone_until = self.unanswered.max(under_way);
        self.network.retain(|message| !matches!(message, Message::Answer { .. }));
        self.network.insert(Message::Leave { tombstone_until, times: 2 });
        self.phase = Phase::Done { at: self.now.ticks, too_late };
    }

    fn at(&self, ticks: u32) -> Time {
        Time { ticks, ..self.now }
    }

    /// Everybody who believes to hold now, with the hold that it believes in.
    fn believers(&self) -> impl Iterator<Item = (ContenderId, Hold)> {
        let rivals = self.rivals.iter().enumerate().map(|(nth, phase)| (rival(nth), *phase));
        let now = self.now.boot();
        std::iter::once((asker(), self.phase)).chain(rivals).filter_map(move |(id, phase)| match phase {
            Phase::Holding(hold) if now < hold.deadline => Some((id, hold)),
            _ => None,
        })
    }
}

impl World {
    fn arrive_claim(self, state: &mut State, copy: Copy) {
        let mut request = Claim {
            not_after: copy.not_after,
            again: copy.again,
            ..claim(asker(), LEASE, state.at(copy.sent))
        };
        match self.variant {
            Variant::NoTimeLimit => request.not_after = StoreTime(u64::MAX),
            Variant::DoubleEntry if copy.again => request.contender.seq += 1000,
            _ => {}
        }
        let (verdict, _) = state.store.claim(state.now, request);
        let said = match verdict {
            Verdict::Granted(grant) => {
                let mut remaining = grant.remaining;
                if self.variant == Variant::DeadlineByMaximum {
                    remaining = remaining.max(state.longest);
                    state.longest = remaining;
                }
                Said::Granted { number: grant.number, remaining }
            }
            Verdict::Busy { .. } => Said::Busy,
            Verdict::Stale => Said::Stale,
            other => unreachable!("{other:?}"),
        };
        // A connection has one answer per request, and nobody listens for those given up on.
        let answered = |message: &Message| matches!(message, Message::Answer { .. });
        if state.in_flight == Some(copy) && !state.network.iter().any(answered) {
            state.network.insert(Message::Answer { sent: copy.sent, said });
        }
    }

    fn arrive_leave(self, state: &mut State, tombstone_until: Option<StoreTime>) {
        let tombstone_until = tombstone_until.filter(|_| self.variant != Variant::NoMark);
        let whose = match self.variant {
            Variant::ReleaseByName => {
                state.store.holders(state.now).next().map_or(asker(), |holder| holder.contender)
            }
            _ => asker(),
        };
        state.store.leave(state.now, whose, tombstone_until);
        state.left = true;
    }

    fn hear(self, state: &mut State, sent: u32, said: Said) {
        // A copy of this request that is still under way is not sent any more: no driver repeats by itself.
        state.network.retain(|message| !matches!(message, Message::Claim { copy, .. } if copy.sent == sent));
        state.in_flight = None;
        let Said::Granted { number, remaining } = said else { return };
        let from = if self.variant == Variant::DeadlineAfterReply { state.now } else { state.at(sent) };
        let deadline = deadline::from_answer(from.boot(), remaining);
        if state.now.boot() >= deadline {
            state.send_leave(true);
        } else {
            state.phase = Phase::Holding(Hold { deadline, number });
        }
    }
}

impl Model for World {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            now: Time::zero(TICK),
            store: Store::new(),
            network: BTreeSet::new(),
            phase: Phase::Idle,
            copies: 0,
            in_flight: None,
            unanswered: None,
            left: false,
            longest: Duration::ZERO,
            rivals: vec![Phase::Idle; self.rivals],
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        let begun = state.phase != Phase::Idle || state.now.ticks < BEGIN;
        if begun && state.now.ticks < LAST_TICK {
            actions.push(Action::Tick);
        }
        match state.phase {
            Phase::Idle => actions.push(Action::Ask),
            Phase::Asking => {
                actions.push(Action::GiveUp);
                if state.in_flight.is_some() {
                    actions.push(Action::TimeOut);
                } else if state.copies < COPIES {
                    actions.push(Action::Ask);
                }
            }
            Phase::Holding(_) => actions.push(Action::Release),
            Phase::Done { .. } => {}
        }
        for message in &state.network {
            actions.push(match message {
                Message::Answer { .. } => Action::Hear(*message),
                _ => Action::Arrive(*message),
            });
        }
        for (nth, phase) in state.rivals.iter().enumerate() {
            match phase {
                // All rivals are alike, so they come in order.
                Phase::Idle if nth == 0 || state.rivals[nth - 1] != Phase::Idle => {
                    actions.push(Action::RivalTries(nth));
                }
                Phase::Holding(_) => actions.push(Action::RivalReleases(nth)),
                _ => {}
            }
        }
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        let mut next = state.clone();
        match action {
            Action::Tick => {
                next.now.ticks += 1;
                next.store.forget_old_marks(next.now);
            }
            Action::Ask => {
                next.phase = Phase::Asking;
                next.send_claim();
            }
            Action::TimeOut => {
                let copy = next.in_flight.take()?;
                next.unanswered = next.unanswered.max(Some(copy.not_after));
                next.network.retain(|message| !matches!(message, Message::Answer { .. }));
            }
            Action::GiveUp | Action::Release => next.send_leave(false),
            Action::Arrive(message) => {
                next.network.remove(&message);
                match message {
                    Message::Claim { copy, times } => {
                        if times > 1 {
                            next.network.insert(Message::Claim { copy, times: times - 1 });
                        }
                        self.arrive_claim(&mut next, copy);
                    }
                    Message::Leave { tombstone_until, times } => {
                        if times > 1 {
                            next.network.insert(Message::Leave { tombstone_until, times: times - 1 });
                        }
                        self.arrive_leave(&mut next, tombstone_until);
                    }
                    Message::Answer { .. } => return None,
                }
            }
            Action::Hear(message) => {
                next.network.remove(&message);
                let Message::Answer { sent, said } = message else { return None };
                self.hear(&mut next, sent, said);
            }
            Action::RivalTries(nth) => {
                let request = Claim { queue: false, ..claim(rival(nth), LEASE, next.now) };
                let (verdict, _) = next.store.claim(next.now, request);
                if let Verdict::Granted(grant) = verdict {
                    let deadline = deadline::from_answer(next.now.boot(), grant.remaining);
                    next.rivals[nth] = Phase::Holding(Hold { deadline, number: grant.number });
                }
            }
            Action::RivalReleases(nth) => {
                next.store.leave(next.now, rival(nth), None);
                next.rivals[nth] = Phase::Done { at: next.now.ticks, too_late: false };
            }
        }
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(ONE_HOLDER, |_, state: &State| state.believers().count() <= 1),
            Property::always(EARLY_DEADLINE, |_, state: &State| {
                state.believers().all(|(id, hold)| {
                    state.store.holders(state.now).any(|holder| {
                        (holder.contender, holder.number) == (id, hold.number)
                            && on_the_clients_clock(holder.expires) >= hold.deadline
                    })
                })
            }),
            Property::always(NUMBERS_GROW, |_, state: &State| !state.store.numbers_fell()),
            Property::always(ENTERED_ONCE, |_, state: &State| {
                state.store.everybody().filter(|id| id.keeper == asker().keeper).count() <= 1
            }),
            Property::always(NO_GHOST, |_, state: &State| {
                !state.left || state.store.everybody().all(|id| id.keeper != asker().keeper)
            }),
            Property::always(NOBODYS_LOCK_ENDS, |_, state: &State| {
                let Phase::Done { at, .. } = state.phase else { return true };
                let last_copy = state.at(at + LIFE).store();
                let mut holders = state.store.holders(state.now).filter(|holder| holder.contender == asker());
                // A copy that stood in the queue may be granted later, but only for the first lease.
                let ends = holders.all(|holder| {
                    holder.expires <= holder.granted.after(LEASE)
                        && (!holder.confirmed || holder.granted <= last_copy)
                });
                let mut places = state.store.resource().into_iter().flat_map(|resource| &resource.queue);
                ends && places.all(|place| place.asked <= last_copy)
            }),
            Property::sometimes("a late copy is under way after the leave", |_, state: &State| {
                state.left && state.network.iter().any(|message| matches!(message, Message::Claim { .. }))
            }),
            Property::sometimes("the answer to the second copy makes a holder", |_, state: &State| {
                state.copies == COPIES && state.believers().any(|(id, _)| id == asker())
            }),
            Property::sometimes("the answer comes too late", |_, state: &State| {
                matches!(state.phase, Phase::Done { too_late: true, .. })
            }),
            Property::sometimes("the asker waits in line", |_, state: &State| {
                state.store.resource().is_some_and(|resource| !resource.queue.is_empty())
            }),
            Property::sometimes("a rival comes after a holder who lost it", |_, state: &State| {
                let lost = matches!(state.phase, Phase::Holding(_));
                lost && state.believers().any(|(id, _)| id != asker())
            }),
        ]
    }
}

const ONE_HOLDER: &str = "I2: no two believe to hold";
const EARLY_DEADLINE: &str = "I1 I3: who believes to hold does, at least until its deadline";
const NUMBERS_GROW: &str = "I6: numbers grow";
const ENTERED_ONCE: &str = "I9: asking again never enters twice";
const NO_GHOST: &str = "I9 I15: who has left does not come back";
const NOBODYS_LOCK_ENDS: &str = "I5 I12: what nobody owns ends with its lease";

#[test]
fn asking_again_is_sound() {
    prove(World::of(Variant::Right));
}

/// Timeline A1, with a slow answer.
#[test]
fn a_deadline_from_after_the_reply_is_refuted() {
    refute(World::of(Variant::DeadlineAfterReply), ONE_HOLDER);
    refute(World::of(Variant::DeadlineAfterReply), EARLY_DEADLINE);
}

/// Timeline A1, with a lost answer.
#[test]
fn a_deadline_by_maximum_is_refuted() {
    refute(World::of(Variant::DeadlineByMaximum), ONE_HOLDER);
    refute(World::of(Variant::DeadlineByMaximum), EARLY_DEADLINE);
}

#[test]
fn entering_twice_is_refuted() {
    refute(World::of(Variant::DoubleEntry), ENTERED_ONCE);
    refute(World::of(Variant::DoubleEntry), NO_GHOST);
}

/// Timeline C1.
#[test]
fn ghost_claims_are_refuted() {
    refute(World::of(Variant::NoMark), NO_GHOST);
    refute(World::of(Variant::NoTimeLimit), NO_GHOST);
    refute(World::of(Variant::NoTimeLimit), NOBODYS_LOCK_ENDS);
}

#[test]
fn release_by_name_is_refuted() {
    refute(World::of(Variant::ReleaseByName), EARLY_DEADLINE);
    refute(World::of(Variant::ReleaseByName), ONE_HOLDER);
}
