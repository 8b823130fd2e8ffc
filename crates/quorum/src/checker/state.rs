//! The state of a world, and the steps of its clients.

use std::collections::BTreeSet;

use lockkeeper_core::GrantNumber;

use super::{
    CLAIM_LIFE, Fault, Quorum, boot,
    member::{Asker, Member, contender},
    world::World,
};
use crate::{Ask, Attempt, Ended, Hold, Request, Said, Stamp};

/// A message under way: to a member or back.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) struct Packet {
    pub(super) client: usize,
    /// The number of the client's contender.
    pub(super) seq: u64,
    pub(super) member: usize,
    pub(super) stamp: Stamp,
    pub(super) sent: u32,
    pub(super) what: What,
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) enum What {
    /// The claims that a leave has to do with took effect until this tick at the latest.
    Request {
        request: Request,
        claims_until: u32,
    },
    Answer(Said),
}

impl Packet {
    /// Whether it is a claim that takes no effect any more.
    fn is_overdue(&self, tick: u32) -> bool {
        let is_claim = matches!(self.what, What::Request { request: Request::Claim { .. }, .. });
        is_claim && self.sent + CLAIM_LIFE < tick
    }
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Client {
    /// The quorum that has the places, as far as it knows.
    pub(super) quorum: Quorum,
    pub(super) attempt: Attempt,
    pub(super) seq: u64,
    pub(super) gave_way: u8,
    pub(super) begun: bool,
    /// The hold that it was told of.
    pub(super) told: Option<Told>,
    pub(super) renewals: u8,
    pub(super) raises: u8,
    /// Whether it has sent anything but its first claims.
    pub(super) sent_more: bool,
    /// The time of its last claim.
    pub(super) claimed: u32,
    /// Whether an operator has taken its lock away at some member.
    pub(super) removed: bool,
    /// The number of the hold that another process of it goes on with.
    pub(super) adopted: Option<GrantNumber>,
    /// Whether it was told that it holds, and then did not any more.
    pub(super) lost: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Told {
    pub(super) number: GrantNumber,
    pub(super) floor: GrantNumber,
}

/// The highest numbers and the events that were seen so far.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(super) struct Seen {
    /// The highest exclusive number told.
    pub(super) exclusive: GrantNumber,
    /// The highest number told.
    pub(super) any: GrantNumber,
    pub(super) token_fell: bool,
    pub(super) floor_fell: bool,
    pub(super) told_without_majority: bool,
    pub(super) one_round: bool,
    pub(super) raised: bool,
    pub(super) healed: bool,
    pub(super) rejoined: bool,
    pub(super) gate_changed: bool,
    pub(super) from_queue: bool,
    pub(super) adopted: bool,
}

#[derive(Clone, PartialEq, Hash, Debug)]
pub(super) struct State {
    pub(super) tick: u32,
    pub(super) members: Vec<Member>,
    pub(super) clients: Vec<Client>,
    pub(super) network: BTreeSet<Packet>,
    pub(super) restarts: u8,
    pub(super) gate_changes: u8,
    pub(super) silences: u8,
    pub(super) bumps: u8,
    /// The tick at which an operator began to take the first client's lock away.
    pub(super) takes_back: Option<u32>,
    /// Per member, whether an operator has taken it away since the client was told that it holds.
    pub(super) taken_back: Vec<bool>,
    /// The tick at which the last member took the record of the new quorum.
    pub(super) replaced: Option<u32>,
    pub(super) seen: Seen,
}

impl State {
    pub(super) fn hold(&self, client: usize) -> Option<Hold> {
        self.clients[client].attempt.hold(boot(self.tick))
    }

    /// Puts requests on the network.
    pub(super) fn send(&mut self, client: usize, asks: Vec<Ask>) {
        for Ask { member, stamp, request } in asks {
            let from = &mut self.clients[client];
            from.sent_more |= from.begun;
            match request {
                Request::Claim { .. } => from.claimed = self.tick,
                Request::Raise { .. } => from.raises += 1,
                _ => {}
            }
            let what = What::Request { request, claims_until: from.claimed + CLAIM_LIFE };
            let packet = Packet { client, seq: from.seq, member, stamp, sent: self.tick, what };
            self.network.insert(packet);
        }
    }

    /// Has a member do a request, and returns its answer.
    pub(super) fn arrive(&mut self, world: &World, packet: &Packet) -> Packet {
        let What::Request { request, claims_until } = packet.what else { unreachable!("a request") };
        let who = &world.clients[packet.client];
        let member = who.members[packet.member];
        self.learn(world, packet.client, member);
        // Those who stay have the same member id in both.
        let stays = world.learns && (1..world.records.len() - 1).contains(&member);
        let own = self.members[member].record.filter(|_| stays).map(|record| record.quorum);
        let asker = Asker {
            contender: contender(packet.client, packet.seq),
            units: who.units,
            capacity: world.capacity,
            lease: super::TICK * world.lease,
            quorum: own.unwrap_or(self.clients[packet.client].quorum),
            claims_until,
        };
        let said = self.members[member].process(self.tick, &asker, request, world.fault);
        Packet { what: What::Answer(said), ..packet.clone() }
    }

    /// Has a client that is answered by a member that knows of the new server forget the answers of the one before.
    fn learn(&mut self, world: &World, client: usize, member: usize) {
        let (record, client) = (self.members[member].record, &mut self.clients[client]);
        if !world.learns || client.quorum == Quorum::Other {
            return;
        }
        if record.is_some_and(|record| record.quorum == Quorum::Other) {
            client.quorum = Quorum::Other;
            if world.fault != Fault::CountsBoth {
                client.attempt.forget(0);
            }
        }
    }

    /// Gives a client an answer, and sends its next requests.
    pub(super) fn hear(&mut self, world: &World, packet: &Packet) {
        let What::Answer(said) = &packet.what else { unreachable!("an answer") };
        let index = packet.client;
        let now = boot(self.tick);
        let client = &mut self.clients[index];
        if client.seq != packet.seq {
            return;
        }
        let waited = client.attempt.is_in_queue(packet.member, now);
        client.attempt.hear(packet.member, packet.stamp, boot(packet.sent), said);
        let asks = client.attempt.next(now);
        let member = world.clients[index].members[packet.member];
        if let Said::Held { votes: true, .. } = said {
            self.seen.from_queue |= waited;
            self.seen.healed |= client.told.is_some() && self.members[member].restarts > 0;
        }
        self.note_told(world, index);
        self.send(index, asks);
        self.note_lost();
        self.drop_late(world);
    }

    /// Checks the hold of a client at the moment when it is told of it.
    fn note_told(&mut self, world: &World, index: usize) {
        let Some(hold) = self.hold(index) else { return };
        if self.clients[index].told.is_some() {
            return;
        }
        self.clients[index].told = Some(Told { number: hold.number, floor: hold.floor });
        // A contender whose lock was taken away may still be told of it, as on every store. A fence rejects its token.
        let removed = self.clients[index].removed;
        let seen = &mut self.seen;
        if self.clients[index].adopted == Some(hold.number) {
            // Nobody was told a later one.
            seen.token_fell |= hold.number < seen.any;
        } else if world.is_exclusive(index) {
            seen.token_fell |= hold.number <= seen.any && !removed;
            seen.exclusive = seen.exclusive.max(hold.number);
        } else {
            seen.token_fell |= hold.number <= seen.exclusive;
            seen.floor_fell |= hold.floor <= seen.exclusive;
        }
        seen.any = seen.any.max(hold.number);
        seen.adopted |= self.clients[index].adopted.is_some();
        let members = &world.clients[index].members;
        seen.one_round |= !self.clients[index].sent_more;
        seen.raised |= self.clients[index].raises > 0;
        let id = contender(index, self.clients[index].seq);
        let held = members.iter().filter(|member| {
            let member = &self.members[**member];
            let holder = member.holder(self.tick, id);
            holder.is_some_and(|holder| holder.number >= hold.number && member.mark() >= hold.number)
        });
        seen.told_without_majority |= held.count() < world.needed() && !world.is_troubled();
    }

    /// Notes the clients that were told that they hold, and do not any more.
    pub(super) fn note_lost(&mut self) {
        for index in 0..self.clients.len() {
            self.clients[index].lost |= self.clients[index].told.is_some() && self.hold(index).is_none();
        }
    }

    /// How many members that vote have a hold of this client.
    pub(super) fn voters_with(&self, world: &World, index: usize) -> usize {
        let id = contender(index, self.clients[index].seq);
        let who = &world.clients[index];
        let votes =
            |member: &Member| member.record.is_some_and(|record| record.votes && record.quorum == who.quorum);
        let members = who.members.iter().map(|member| &self.members[*member]);
        members.filter(|member| votes(member) && member.holder(self.tick, id).is_some()).count()
    }

    /// Answers that say nothing any more, and claims that came too late, make no difference: states are the same
    /// without.
    pub(super) fn drop_late(&mut self, world: &World) {
        let any_order = world.is_unordered();
        let tick = self.tick;
        for packet in &self.network {
            let client = &mut self.clients[packet.client];
            if packet.is_overdue(tick) && client.seq == packet.seq {
                client.attempt.silent(packet.member, packet.stamp);
            }
        }
        let clients = &self.clients;
        self.network.retain(|packet| {
            let client = &clients[packet.client];
            match &packet.what {
                What::Answer(_) => {
                    let late =
                        client.seq != packet.seq || client.attempt.is_late(packet.member, packet.stamp);
                    !late || any_order && client.seq == packet.seq
                }
                What::Request { .. } => !packet.is_overdue(tick),
            }
        });
    }

    /// Makes states equal that will behave alike.
    pub(super) fn make_canonical(&mut self) {
        let now = boot(self.tick);
        let mut network = std::mem::take(&mut self.network);
        for (index, client) in self.clients.iter_mut().enumerate() {
            let (mine, others): (BTreeSet<Packet>, BTreeSet<Packet>) =
                network.into_iter().partition(|packet| packet.client == index);
            network = others;
            let over = client.attempt.ended() == Some(&Ended::Left);
            let alive = |packet: &Packet| packet.seq == client.seq && !over;
            let stamps = mine.iter().filter(|packet| alive(packet)).map(|packet| packet.stamp).collect();
            let renumbered = client.attempt.make_canonical(now, &stamps);
            network.extend(mine.into_iter().filter_map(|packet| match &packet.what {
                _ if packet.seq == client.seq && !over => {
                    Some(Packet { stamp: renumbered[&packet.stamp], ..packet })
                }
                What::Answer(_) => None,
                What::Request { request: Request::Claim { .. }, .. } => {
                    Some(Packet { stamp: Stamp(0), ..packet })
                }
                What::Request { .. } => Some(Packet { stamp: Stamp(0), sent: 0, ..packet }),
            }));
            if over {
                (client.claimed, client.sent_more) = (0, true);
            }
        }
        self.network = network;
    }

    /// Lets time pass.
    pub(super) fn tick(&mut self, world: &World) {
        self.tick += 1;
        for member in &mut self.members {
            member.forget_old_tombstones(self.tick);
        }
        for client in &mut self.clients {
            client.attempt.count(boot(self.tick));
        }
        self.note_lost();
        self.drop_late(world);
    }

    /// Has a client that was not told of a hold give way, and come again as another contender.
    pub(super) fn give_way(&mut self, world: &World, index: usize) {
        let asks = self.clients[index].attempt.leave();
        self.send(index, asks);
        let client = &mut self.clients[index];
        client.attempt = world.attempt(index);
        (client.begun, client.sent_more) = (false, false);
        client.gave_way += 1;
        if world.fault != Fault::ReusedId {
            client.seq += 1;
        }
        self.drop_late(world);
    }

    /// Has another process go on with the hold of a client.
    pub(super) fn adopt(&mut self, world: &World, index: usize) {
        let now = boot(self.tick);
        let client = &mut self.clients[index];
        let Some(Told { number, .. }) = client.told.take() else { unreachable!("told") };
        client.attempt = world.adopting(number).elsewhere(&client.attempt);
        (client.adopted, client.lost) = (Some(number), false);
        let asks = client.attempt.renew(now);
        self.send(index, asks);
        self.drop_late(world);
    }

    /// Has an operator take the first client's lock away at a member, for good.
    pub(super) fn take_back(&mut self, world: &World, member: usize) {
        let id = contender(0, self.clients[0].seq);
        self.clients[0].removed |= self.members[member].holder(self.tick, id).is_some();
        self.taken_back[member] = self.clients[0].told.is_some();
        self.takes_back.get_or_insert(self.tick);
        self.members[member].evict(self.tick, id);
        if world.fault != Fault::EvictionWithoutTombstones {
            self.members[member].leave(self.tick, id, Some(self.tick + CLAIM_LIFE));
        }
    }

    /// Whether a member may vote for this quorum again: it was watched for longer than any lease.
    pub(super) fn is_watched(&self, world: &World, member: usize) -> bool {
        let member = &self.members[member];
        match world.fault {
            Fault::RejoinAtOnce => true,
            Fault::Uptime => member.jumped,
            _ => member.watched.is_some_and(|since| self.tick > since + world.lease),
        }
    }

    /// The highest mark of a majority of other members that vote, if there is one.
    pub(super) fn marks_of_others(
        &self,
        world: &World,
        member: usize,
        quorum: Quorum,
    ) -> Option<GrantNumber> {
        let others = self.members.iter().enumerate().filter(|(other, _)| *other != member);
        let voters = others
            .map(|(_, other)| other)
            .filter(|other| other.record.is_some_and(|record| record.votes && record.quorum == quorum));
        let marks: Vec<GrantNumber> = voters.map(Member::mark).collect();
        (marks.len() >= world.needed()).then(|| marks.into_iter().max().unwrap_or(0))
    }
}
