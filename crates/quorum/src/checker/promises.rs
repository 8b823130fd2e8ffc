//! The promises that always hold, and the events that have to be possible.

use stateright::Property;

use super::{state::State, world::World};

pub(super) const EXCLUSION: &str = "nobody holds beside a writer";
pub(super) const CAPACITY: &str = "no more hold than fit";
pub(super) const TOKENS: &str = "tokens grow";
pub(super) const FLOORS: &str = "a floor is at most the token of every reader beside it";
pub(super) const FLOORS_GROW: &str = "a floor exceeds every earlier exclusive token";
pub(super) const TOLD_BY_MAJORITY: &str = "when told, a majority holds it with a mark of at least its token";
pub(super) const LOST_STAYS_LOST: &str = "what is lost stays lost";
pub(super) const EVICTED: &str = "what an operator took back at every member is not held again";
pub(super) const ENDS: &str = "raising numbers ends";

/// More than this many raises of one contender never end.
const RAISES: u8 = 4;

pub(super) fn of(world: &World) -> Vec<Property<World>> {
    let mut all = vec![
        Property::always(EXCLUSION, exclusion),
        Property::always(CAPACITY, capacity),
        Property::always(TOKENS, |_, state: &State| !state.seen.token_fell),
        Property::always(FLOORS, floors),
        Property::always(TOLD_BY_MAJORITY, |_, state: &State| !state.seen.told_without_majority),
        Property::always(LOST_STAYS_LOST, |_, state: &State| {
            (0..state.clients.len()).all(|client| !state.clients[client].lost || state.hold(client).is_none())
        }),
        Property::always(EVICTED, |world: &World, state: &State| {
            let done = world.evicts && state.taken_back.iter().all(|taken| *taken);
            !(done && state.clients[0].told.is_some() && state.voters_with(world, 0) >= world.needed())
        }),
    ];
    let any_asks_all = world.clients.iter().any(|who| !who.asks_gate_first);
    if world.prefix.is_empty() && world.bumps == 0 && any_asks_all {
        all.push(Property::sometimes("granted in one round", |_, state: &State| state.seen.one_round));
    }
    if world.prefix.is_empty() && !any_asks_all {
        all.push(Property::sometimes("granted from the queue", |_, state: &State| state.seen.from_queue));
    }
    // A hold that ends and is granted again may have to be raised again.
    if world.last_tick == 0 {
        let ends = |_: &World, state: &State| state.clients.iter().all(|client| client.raises <= RAISES);
        all.push(Property::always(ENDS, ends));
    }
    // With three, another reader's unfinished attempt may lower a floor.
    if world.clients.len() == 2 {
        all.push(Property::always(FLOORS_GROW, |_, state: &State| !state.seen.floor_fell));
    }
    if world.restarts > 0 {
        all.push(Property::sometimes("rejoined", |_, state: &State| state.seen.rejoined));
    }
    if world.restarts > 0 && world.clients[0].renewals > 1 {
        all.push(Property::sometimes("healed", |_, state: &State| state.seen.healed));
    }
    if world.clients.iter().any(|who| who.adopts) {
        all.push(Property::sometimes("another process goes on", |_, state: &State| state.seen.adopted));
    }
    if world.gate_changes > 0 {
        all.push(Property::sometimes("gate changed", |_, state: &State| {
            state.seen.gate_changed && (0..state.clients.len()).any(|client| state.hold(client).is_some())
        }));
    }
    if world.prefix.is_empty() && world.marks.iter().any(|marks| marks.iter().any(|mark| *mark != marks[0])) {
        all.push(Property::sometimes("granted with numbers that differed", |_, state: &State| {
            state.seen.raised
        }));
    }
    all
}

/// Returns the clients that hold now, except those whose lock an operator took away: they are told later.
fn holders(state: &State) -> impl Iterator<Item = usize> {
    (0..state.clients.len()).filter(|client| state.hold(*client).is_some() && !state.clients[*client].removed)
}

fn exclusion(world: &World, state: &State) -> bool {
    !holders(state).any(|client| world.is_exclusive(client)) || holders(state).count() == 1
}

fn capacity(world: &World, state: &State) -> bool {
    let held: Vec<_> = holders(state).map(|client| world.clients[client].units).collect();
    let mut before = Vec::new();
    held.into_iter().all(|units| {
        let fits = world.capacity.fits(before.iter().copied(), units);
        before.push(units);
        fits
    })
}

fn floors(world: &World, state: &State) -> bool {
    let readers: Vec<_> = holders(state).filter(|client| !world.is_exclusive(*client)).collect();
    let holds = || readers.iter().filter_map(|client| state.hold(*client));
    holds().all(|one| holds().all(|other| one.floor <= other.number))
}
