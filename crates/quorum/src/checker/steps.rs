//! The events that may happen next in a world, and their effects.

use lockkeeper_core::GrantNumber;
use stateright::{Model, Property};

use super::{
    Fault, Quorum, boot,
    member::{Member, Record, contender},
    promises,
    state::{Client, Packet, Seen, State, What},
    world::{Step, World},
};
use crate::{Ended, Request};

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Action {
    Tick,
    Begin(usize),
    /// A member gets a request.
    Arrive(Packet),
    /// A client gets an answer.
    Hear(Packet),
    /// A member gets a request, and the client its answer.
    Exchange(Packet),
    Renew(usize),
    /// A client asks again at the members in whose queues it waits, or goes on after a silence.
    Poll(usize),
    Leave(usize),
    GiveWay(usize),
    /// Another process goes on with the hold of a client.
    Adopt(usize),
    ChangeGate(usize),
    Restart(usize),
    /// The wall clock of a member jumps forward.
    Jump(usize),
    Watch(usize),
    /// A client reads the marks that a member needs to vote again.
    Gather(usize),
    Rejoin(usize),
    /// An operator takes the lock away at a member.
    Remove(usize),
    /// A member takes the record of a quorum.
    Record(usize, Quorum),
    /// A member begins to vote for the quorum of its record.
    Vote(usize),
    /// No answer to a raise came in time.
    Silence(Packet),
    /// Another name of a member is granted.
    Bump(usize),
}

impl World {
    fn client_actions(&self, state: &State, index: usize, actions: &mut Vec<Action>) {
        let (who, client) = (&self.clients[index], &state.clients[index]);
        if !client.begun {
            if state.tick <= who.begins {
                actions.push(Action::Begin(index));
            }
            return;
        }
        let now = boot(state.tick);
        match client.attempt.ended() {
            Some(Ended::Left) => return,
            Some(_) => {}
            None if client.told.is_some() => {
                if client.renewals < who.renewals {
                    actions.push(Action::Renew(index));
                }
                if who.adopts && client.adopted.is_none() {
                    actions.push(Action::Adopt(index));
                }
            }
            None => {
                let id = contender(index, client.seq);
                let granted = |(at, member): (usize, &usize)| {
                    client.attempt.is_in_queue(at, now) && state.members[*member].would_grant(state.tick, id)
                };
                if who.members.iter().enumerate().any(granted) || !client.attempt.clone().next(now).is_empty()
                {
                    actions.push(Action::Poll(index));
                }
                if client.renewals < who.renewals && !client.attempt.clone().renew(now).is_empty() {
                    actions.push(Action::Renew(index));
                }
                if client.gave_way < who.gives_way {
                    actions.push(Action::GiveWay(index));
                }
                if state.gate_changes < self.gate_changes {
                    actions.push(Action::ChangeGate(index));
                }
            }
        }
        if client.told.is_some() && who.leaves {
            actions.push(Action::Leave(index));
        }
    }

    fn member_actions(&self, state: &State, index: usize, actions: &mut Vec<Action>) {
        let member = &state.members[index];
        let voting = member.record.is_some_and(|record| record.votes);
        let resting =
            state.members.iter().filter(|member| !member.record.is_some_and(|record| record.votes)).count();
        if self.restarts > 0 {
            if voting && state.restarts < self.restarts && resting < self.together {
                actions.push(Action::Restart(index));
            }
            if !voting {
                if member.watched.is_none() {
                    actions.push(Action::Watch(index));
                }
                if self.fault == Fault::Uptime && !member.jumped {
                    actions.push(Action::Jump(index));
                }
                if state.is_watched(self, index) && member.gathered.is_none() {
                    actions.push(Action::Gather(index));
                }
                if member.gathered.is_some() {
                    actions.push(Action::Rejoin(index));
                }
            }
        }
        // An operator who takes longer than a tombstone lasts has to begin again.
        let in_time = state.takes_back.is_none_or(|since| since == state.tick);
        if self.evicts && !state.taken_back[index] && in_time {
            actions.push(Action::Remove(index));
        }
        if state.bumps < self.bumps {
            actions.push(Action::Bump(index));
        }
        if self.replaces {
            self.replacement_actions(state, index, actions);
        }
        if self.founds {
            self.founding_actions(state, index, actions);
        }
    }

    /// All members but the first take the record of the new quorum. When all have, and any lease of before is over, the
    /// last one votes.
    fn replacement_actions(&self, state: &State, index: usize, actions: &mut Vec<Action>) {
        let last = self.records.len() - 1;
        let belongs =
            |member: usize| state.members[member].record.is_some_and(|record| record.quorum == Quorum::Other);
        if (1..last).contains(&index) && !belongs(index) {
            actions.push(Action::Record(index, Quorum::Other));
        }
        let rested = match self.fault {
            Fault::ReplaceAtOnce => true,
            _ => state.replaced.is_some_and(|since| state.tick > since + self.lease),
        };
        if index == last && !belongs(last) && (1..last).all(belongs) && rested {
            actions.push(Action::Vote(last));
        }
    }

    /// Each quorum is founded by a client: members without a record take its own, and vote when all its members have
    /// it.
    fn founding_actions(&self, state: &State, index: usize, actions: &mut Vec<Action>) {
        let Some(record) = state.members[index].record else {
            let founders = self.clients.iter().filter(|who| who.members.contains(&index));
            actions.extend(founders.map(|who| Action::Record(index, who.quorum)));
            return;
        };
        let of_quorum =
            |member: &usize| state.members[*member].record.is_some_and(|r| r.quorum == record.quorum);
        let founder = self.clients.iter().find(|who| who.quorum == record.quorum);
        let all = founder.is_some_and(|who| who.members.iter().all(of_quorum));
        if !record.votes && (all || self.fault == Fault::FoundOneByOne) {
            actions.push(Action::Vote(index));
        }
    }

    fn change_votes(&self, next: &mut State, action: &Action) {
        match *action {
            Action::Record(member, quorum) => {
                let before = next.members[member].record;
                let since = before.map_or(0, |record| record.since);
                next.members[member].change().record = Some(Record { quorum, votes: self.replaces, since });
                next.replaced = Some(next.tick);
            }
            Action::Vote(member) => {
                if self.replaces {
                    let mark = next.marks_of_others(self, member, Quorum::Other).unwrap_or(0);
                    next.members[member].raise_mark(mark);
                }
                let quorum = if self.replaces { Some(Quorum::Other) } else { None };
                let since = next.members[member].mark();
                let kept = next.members[member].change();
                let quorum = quorum.or(kept.record.map(|record| record.quorum)).unwrap_or(Quorum::One);
                kept.record = Some(Record { quorum, votes: true, since });
            }
            Action::Watch(member) => next.members[member].change().watched = Some(next.tick),
            Action::Jump(member) => next.members[member].change().jumped = true,
            Action::Gather(member) => {
                let marks = next.marks_of_others(self, member, Quorum::One);
                next.members[member].change().gathered = marks;
            }
            Action::Rejoin(member) => {
                let mark = next.members[member].gathered.unwrap_or(0);
                if self.fault != Fault::RejoinWithoutMarks {
                    next.members[member].raise_mark(mark);
                }
                let since = next.members[member].mark();
                let kept = next.members[member].change();
                kept.record = Some(Record { quorum: Quorum::One, votes: true, since });
                (kept.watched, kept.gathered, kept.jumped) = (None, None, false);
                next.seen.rejoined = true;
            }
            _ => unreachable!("{action:?}"),
        }
    }
}

impl Model for World {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let begin = |marks: &Vec<GrantNumber>| State {
            tick: 0,
            members: marks
                .iter()
                .zip(&self.records)
                .map(|(mark, record)| Member::new(*mark, *record))
                .collect(),
            clients: (0..self.clients.len())
                .map(|client| Client {
                    quorum: self.clients[client].quorum,
                    attempt: self.attempt(client),
                    seq: 0,
                    gave_way: 0,
                    begun: false,
                    told: None,
                    renewals: 0,
                    raises: 0,
                    sent_more: false,
                    claimed: 0,
                    removed: false,
                    adopted: None,
                    lost: false,
                })
                .collect(),
            network: std::collections::BTreeSet::new(),
            restarts: 0,
            gate_changes: 0,
            silences: 0,
            bumps: 0,
            takes_back: None,
            taken_back: vec![false; self.records.len()],
            replaced: None,
            seen: Seen::default(),
        };
        self.marks.iter().map(begin).map(|state| self.after_prefix(state)).collect()
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.tick < self.last_tick {
            actions.push(Action::Tick);
        }
        for client in 0..self.clients.len() {
            self.client_actions(state, client, actions);
        }
        for member in 0..state.members.len() {
            self.member_actions(state, member, actions);
        }
        for packet in &state.network {
            let raises = matches!(packet.what, What::Request { request: Request::Raise { .. }, .. });
            if raises && state.silences < self.silences {
                actions.push(Action::Silence(packet.clone()));
            }
            actions.push(match packet.what {
                What::Answer(_) => Action::Hear(packet.clone()),
                What::Request { .. } if self.clients[packet.client].lags => Action::Arrive(packet.clone()),
                What::Request { .. } => Action::Exchange(packet.clone()),
            });
        }
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        let mut next = state.clone();
        let now = boot(state.tick);
        match action {
            Action::Tick => next.tick(self),
            Action::Begin(client) => {
                let attempt = &mut next.clients[client].attempt;
                let gate_first = self.clients[client].asks_gate_first;
                let asks = if gate_first { attempt.begin_at_gate(0) } else { attempt.begin(0) };
                next.send(client, asks);
                next.clients[client].begun = true;
            }
            Action::Arrive(packet) => {
                next.network.remove(&packet);
                let answer = next.arrive(self, &packet);
                next.network.insert(answer);
                next.drop_late(self);
            }
            Action::Hear(packet) => {
                next.network.remove(&packet);
                next.hear(self, &packet);
            }
            Action::Exchange(packet) => {
                next.network.remove(&packet);
                let answer = next.arrive(self, &packet);
                next.hear(self, &answer);
            }
            Action::Renew(client) => {
                next.clients[client].renewals += 1;
                let asks = next.clients[client].attempt.renew(now);
                next.send(client, asks);
            }
            Action::Poll(client) => {
                let attempt = &mut next.clients[client].attempt;
                let asks = if self.clients[client].asks_gate_first {
                    attempt.pushed(now)
                } else {
                    let mut asks = attempt.next(now);
                    asks.extend(attempt.ask_again(now));
                    asks
                };
                if asks.is_empty() {
                    return None;
                }
                next.send(client, asks);
            }
            Action::Leave(client) => {
                let asks = next.clients[client].attempt.leave();
                next.send(client, asks);
                next.drop_late(self);
            }
            Action::GiveWay(client) => next.give_way(self, client),
            Action::Adopt(client) => next.adopt(self, client),
            Action::ChangeGate(client) => {
                next.gate_changes += 1;
                let attempt = &mut next.clients[client].attempt;
                let gate = if attempt.gate() == 0 { 1 } else { 0 };
                let mut asks = attempt.change_gate(gate);
                asks.extend(attempt.next(now));
                next.seen.gate_changed = true;
                next.send(client, asks);
                next.drop_late(self);
            }
            Action::Restart(member) => {
                next.restarts += 1;
                next.members[member].restart();
            }
            Action::Silence(packet) => {
                next.silences += 1;
                let attempt = &mut next.clients[packet.client].attempt;
                attempt.silent(packet.member, packet.stamp);
                let asks = attempt.next(now);
                next.send(packet.client, asks);
            }
            Action::Bump(member) => {
                next.bumps += 1;
                let mark = next.members[member].mark() + 10;
                next.members[member].raise_mark(mark);
            }
            Action::Remove(member) => next.take_back(self, member),
            action => self.change_votes(&mut next, &action),
        }
        next.make_canonical();
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        promises::of(self)
    }
}

impl World {
    fn after_prefix(&self, mut state: State) -> State {
        for step in &self.prefix {
            let oldest = |client: usize, member: usize| {
                let mut packets = state.network.iter().filter(|packet| {
                    packet.client == client
                        && self.clients[client].members[packet.member] == member
                        && matches!(packet.what, What::Request { .. })
                });
                packets.next().unwrap_or_else(|| panic!("no request for {step:?} in {state:#?}")).clone()
            };
            let action = match *step {
                Step::Tick => Action::Tick,
                Step::Begin(client) => Action::Begin(client),
                Step::Renew(client) => Action::Renew(client),
                Step::Poll(client) => Action::Poll(client),
                Step::Leave(client) => Action::Leave(client),
                Step::Restart(member) => Action::Restart(member),
                Step::Watch(member) => Action::Watch(member),
                Step::GiveWay(client) => Action::GiveWay(client),
                Step::Remove(member) => Action::Remove(member),
                Step::Record(member) => Action::Record(member, Quorum::Other),
                Step::Do(client, member) => Action::Exchange(oldest(client, member)),
                Step::Arrive(client, member) => Action::Arrive(oldest(client, member)),
            };
            state = self.next_state(&state, action).expect("possible");
        }
        state
    }
}
