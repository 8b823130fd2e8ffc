//! Told by a listing: on ZooKeeper, a waiter is told that it holds as soon as a listing of any server says so, and
//! nobody asks the quorum first. Servers lag behind their leader, sessions end and move between servers, and the node
//! of a holder is replaced by one of the same name when its lease is taken over.
//!
//! It proves I2 (one holder) and I3 (no deadline is later than the end of the hold) for that step. The proof rests on
//! this: nobody comes in before a node that is there; the listing has the node of the waiter that looks in it; its
//! session certainly lives at that moment. A watch is only a reason to look.
//!
//! The waiter follows `crates/zookeeper/src/waiter.rs`, its session `crates/zookeeper/src/session.rs`. The folder of a
//! lock is the list of its nodes. Its history is the list of its states, one after each transaction of the leader, and
//! a server knows a part of that from the beginning.

use stateright::{Model, Property};

use super::{prove, refute};

/// How many ticks a session lasts after the leader has heard of it.
const TIMEOUT: u32 = 2;
const LAST_TICK: u32 = 3;

/// The clients: the first holds, the next two wait, and the last takes the lease of the first over.
const CLIENTS: usize = 4;
const FIRST: usize = 0;
const NEXT: usize = 1;
const LAST: usize = 2;
const ADOPTER: usize = 3;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Variant {
    Right,
    /// A node that was watched is gone: the client that watched it holds.
    TrustsTheEvent,
    /// The client that looks does not ask whether its session still lives.
    PastTheDeadline,
    /// The client that looks does not ask whether its own node is in the listing.
    NotInTheListing,
}

/// A node of the queue: its number, and the session that it lives in.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Node {
    number: usize,
    session: usize,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Client {
    Away,
    /// Has a reason to look at the line.
    Looks,
    /// Has looked, and is about to watch this node.
    Arms(usize),
    Watches(usize),
    Holds,
    Gone,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Session {
    /// The server that it is with.
    server: usize,
    /// When the leader heard of it last.
    heard: u32,
    /// The time until which its client is sure of it.
    deadline: u32,
    ended: bool,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct State {
    now: u32,
    history: Vec<Vec<Node>>,
    /// How far in that each server is.
    servers: [usize; 2],
    sessions: [Session; CLIENTS],
    clients: [Client; CLIENTS],
    /// Somebody was told that it holds, whose node the leader had removed.
    told_without_node: bool,
    /// Somebody was told so by a server that did not know the latest.
    told_from_behind: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Action {
    Tick,
    /// A sign of life reaches the leader, and its answer the client.
    Beat(usize),
    /// The leader ends a session that it has not heard of.
    End(usize),
    /// A server hears of one more transaction.
    Apply(usize),
    /// The next in line connects to the other server.
    Move,
    Look(usize),
    Arm(usize),
    Release(usize),
    TakeOver,
}

#[derive(Clone, Copy)]
struct World {
    variant: Variant,
    /// Whether a client may move to a server that knows less than the one it comes from. ZooKeeper's refuse that. The
    /// world has one waiter less then, and is small enough.
    moves_back: bool,
}

impl State {
    fn latest(&self) -> &[Node] {
        self.history.last().map_or(&[], Vec::as_slice)
    }

    /// The line, as the server of `client` knows it.
    fn seen_by(&self, client: usize) -> &[Node] {
        &self.history[self.servers[self.sessions[client].server]]
    }

    fn commit(&mut self, change: impl Fn(&mut Vec<Node>)) {
        let mut nodes = self.latest().to_vec();
        change(&mut nodes);
        if nodes != self.latest() {
            self.history.push(nodes);
        }
    }

    fn lives(&self, client: usize) -> bool {
        self.now < self.sessions[client].deadline
    }

    fn holds(&self, client: usize) -> bool {
        self.clients[client] == Client::Holds && self.lives(client)
    }

    fn tell(&mut self, client: usize, variant: Variant) {
        if !self.lives(client) && variant != Variant::PastTheDeadline {
            self.clients[client] = Client::Gone;
            return;
        }
        self.told_without_node |= !self.latest().contains(&node_of(client));
        self.told_from_behind |= self.seen_by(client) != self.latest();
        self.clients[client] = Client::Holds;
    }

    /// The node that `client` watches was removed, as far as its server knows.
    fn notify(&mut self, client: usize, variant: Variant) {
        self.clients[client] = Client::Looks;
        if variant == Variant::TrustsTheEvent {
            self.tell(client, variant);
        }
    }

    /// Looks at the line; `false` if that says nothing.
    fn look(&mut self, client: usize, variant: Variant) -> bool {
        let own = node_of(client);
        let seen = self.seen_by(client);
        if !seen.contains(&own) && variant != Variant::NotInTheListing {
            return false;
        }
        match seen.iter().rev().find(|node| node.number < own.number) {
            Some(before) => self.clients[client] = Client::Arms(before.number),
            None => self.tell(client, variant),
        }
        true
    }
}

fn node_of(client: usize) -> Node {
    Node { number: client, session: client }
}

impl Model for World {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let last = if self.moves_back { NEXT } else { LAST };
        let nodes: Vec<Node> = (0..=last).map(node_of).collect();
        let session = Session { server: 0, heard: 0, deadline: TIMEOUT, ended: false };
        let waits = if self.moves_back { Client::Away } else { Client::Watches(NEXT) };
        vec![State {
            now: 0,
            history: (0..=nodes.len()).map(|count| nodes[..count].to_vec()).collect(),
            servers: [nodes.len(), 0],
            sessions: [session; CLIENTS],
            clients: [Client::Holds, Client::Watches(FIRST), waits, Client::Away],
            told_without_node: false,
            told_from_behind: false,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.now < LAST_TICK {
            actions.push(Action::Tick);
        }
        actions.extend((0..state.servers.len()).map(Action::Apply));
        actions.extend([Action::TakeOver, Action::Move]);
        for client in 0..CLIENTS {
            let each = [Action::Beat, Action::End, Action::Look, Action::Arm, Action::Release];
            actions.extend(each.map(|action| action(client)));
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Tick => state.now += 1,
            Action::Beat(client) => {
                let (now, away) = (state.now, matches!(state.clients[client], Client::Away | Client::Gone));
                let session = &mut state.sessions[client];
                // Nothing moves a deadline that has passed.
                if session.ended || away || now >= session.deadline || now == session.heard {
                    return None;
                }
                (session.heard, session.deadline) = (now, now + TIMEOUT);
            }
            Action::End(client) => {
                let session = &mut state.sessions[client];
                if session.ended
                    || state.now < session.heard + TIMEOUT
                    || last.latest().iter().all(|node| node.session != client)
                {
                    return None;
                }
                session.ended = true;
                state.commit(|nodes| nodes.retain(|node| node.session != client));
            }
            Action::Apply(server) => {
                let (old, new) =
                    (&last.history[last.servers[server]], last.history.get(last.servers[server] + 1)?);
                state.servers[server] += 1;
                for client in (0..CLIENTS).filter(|client| last.sessions[*client].server == server) {
                    let Client::Watches(number) = last.clients[client] else { continue };
                    // One that is replaced is removed as well.
                    if old.iter().any(|node| node.number == number && !new.contains(node)) {
                        state.notify(client, self.variant);
                    }
                }
            }
            Action::Move => {
                let from = state.sessions[NEXT].server;
                let to = 1 - from;
                let back = state.servers[to] < state.servers[from];
                if matches!(state.clients[NEXT], Client::Holds | Client::Gone) || back && !self.moves_back {
                    return None;
                }
                let before = last.seen_by(NEXT);
                state.sessions[NEXT].server = to;
                // It names the node that it watches, and hears at once if that has changed.
                if let Client::Watches(number) = last.clients[NEXT] {
                    let watched = before.iter().find(|node| node.number == number);
                    if watched.is_none_or(|node| !state.seen_by(NEXT).contains(node)) {
                        state.notify(NEXT, self.variant);
                    }
                }
            }
            Action::Look(client) => {
                if state.clients[client] != Client::Looks || !state.look(client, self.variant) {
                    return None;
                }
            }
            Action::Arm(client) => {
                let Client::Arms(number) = state.clients[client] else { return None };
                let there = state.seen_by(client).iter().any(|node| node.number == number);
                state.clients[client] = if there { Client::Watches(number) } else { Client::Looks };
            }
            Action::Release(client) => {
                if state.clients[client] != Client::Holds {
                    return None;
                }
                state.clients[client] = Client::Gone;
                // The node of the adopter has the name of the first.
                state.commit(|nodes| nodes.retain(|node| node.session != client));
            }
            Action::TakeOver => {
                if !state.holds(FIRST) || !state.latest().contains(&node_of(FIRST)) {
                    return None;
                }
                state.clients[FIRST] = Client::Gone;
                state.clients[ADOPTER] = Client::Holds;
                let (heard, deadline) = (state.now, state.now + TIMEOUT);
                state.sessions[ADOPTER] = Session { heard, deadline, ..state.sessions[ADOPTER] };
                // In one transaction, so that nobody sees the line without it.
                state.commit(|nodes| {
                    for node in nodes.iter_mut().filter(|node| node.number == FIRST) {
                        node.session = ADOPTER;
                    }
                });
            }
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("one holder (I2)", |_, state: &State| {
                (0..CLIENTS).filter(|client| state.holds(*client)).count() <= 1
            }),
            Property::always("whoever is told has its node", |_, state: &State| !state.told_without_node),
            Property::always("nobody holds longer than its session (I3)", |_, state: &State| {
                (0..CLIENTS).all(|client| !(state.holds(client) && state.sessions[client].ended))
            }),
            Property::always("nobody sleeps", |_, state: &State| {
                (0..CLIENTS).all(|client| match state.clients[client] {
                    Client::Watches(number) => state.seen_by(client).iter().any(|node| node.number == number),
                    _ => true,
                })
            }),
            Property::sometimes("the next holds after a take-over", |_, state: &State| {
                state.clients[ADOPTER] == Client::Gone && state.holds(NEXT)
            }),
            Property::sometimes("the last holds", |world: &Self, state: &State| {
                state.holds(if world.moves_back { NEXT } else { LAST })
            }),
            Property::sometimes("a server that is behind tells", |world: &Self, state: &State| {
                // Where there is nobody else, there is nothing that it could miss.
                world.moves_back || state.told_from_behind
            }),
        ]
    }
}

const RIGHT: World = World { variant: Variant::Right, moves_back: false };

#[test]
fn a_listing_is_enough() {
    prove(RIGHT);
}

/// Also if sessions moved to servers that know less: the node of the waiter that looks says whether they know enough.
#[test]
fn a_listing_of_a_server_that_knows_less_is_enough() {
    prove(World { moves_back: true, ..RIGHT });
}

#[test]
fn a_removed_node_proves_nothing() {
    refute(World { variant: Variant::TrustsTheEvent, ..RIGHT }, "one holder (I2)");
}

#[test]
fn a_session_that_is_over_proves_nothing() {
    refute(World { variant: Variant::PastTheDeadline, ..RIGHT }, "whoever is told has its node");
}

#[test]
fn a_listing_without_the_own_node_proves_nothing() {
    refute(World { variant: Variant::NotInTheListing, moves_back: true }, "one holder (I2)");
}
