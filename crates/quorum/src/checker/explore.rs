//! Runs the checker over a world: all of its states, the first ones, or those up to a broken promise.

use std::{
    fmt::Debug,
    hash::Hash,
    time::{Duration, Instant},
};

use stateright::{Checker, Expectation, HasDiscoveries, Model};

use super::world::World;

/// How long the exploration of one world may take.
const LIMIT: Duration = Duration::from_secs(3 * 3600);

/// Visits every state of `world`: all promises hold, and all that should be possible happens.
pub(super) fn prove<W>(name: &str, world: W)
where
    W: Model + Send + Sync + 'static,
    W::State: Clone + Debug + Hash + PartialEq + Send + Sync,
    W::Action: Clone + Debug + PartialEq,
{
    let started = Instant::now();
    let checked = world.checker().threads(2).timeout(LIMIT).spawn_bfs().join();
    let (states, deep) = (checked.unique_state_count(), checked.max_depth());
    let took = started.elapsed();
    println!("{name}: {states} states, {deep} deep, {took:.1?}");
    assert!(took < LIMIT, "{name} is too large");
    checked.assert_properties();
}

/// Visits the first states of a large world, those with the fewest steps before them: no promise is broken there. All
/// of its states would need more memory than most machines have.
pub(super) fn explore(name: &str, world: World) {
    let (started, least) = (Instant::now(), number_of_states());
    let checked = world.checker().threads(2).target_state_count(least).spawn_bfs().join();
    let (states, deep) = (checked.unique_state_count(), checked.max_depth());
    let all = if states < least { "all" } else { "the first" };
    println!("{name}: {all} {states} states, {deep} deep, {:.1?}", started.elapsed());
    for property in checked.model().properties() {
        if property.expectation != Expectation::Sometimes {
            let run = checked.discovery(property.name).map(stateright::Path::into_actions);
            assert!(run.is_none(), "{name}: {:?} is broken by {run:#?}", property.name);
        }
    }
}

/// The number of states of a large world that are visited.
fn number_of_states() -> usize {
    std::env::var("LOCKKEEPER_STATES").map_or(3_000_000, |states| states.parse().expect("a number"))
}

/// Finds a run of `world`, which has a mistake in it, that breaks `promise`.
pub(super) fn refute<W>(world: W, promise: &'static str)
where
    W: Model + Send + Sync + 'static,
    W::State: Clone + Debug + Hash + PartialEq + Send + Sync,
    W::Action: Clone + Debug + PartialEq,
{
    assert_ne!(world.property(promise).expectation, Expectation::Sometimes, "not a promise");
    let started = Instant::now();
    let checker = world.checker().threads(2).finish_when(HasDiscoveries::AnyOf([promise].into()));
    let checked = checker.spawn_bfs().join();
    let states = checked.unique_state_count();
    let run = checked.discovery(promise);
    let run =
        run.unwrap_or_else(|| panic!("the mistake was not seen in {states} states: {promise:?} always held"));
    println!(
        "{promise:?} broken after {states} states, {:.1?}, by {:#?}",
        started.elapsed(),
        run.into_actions()
    );
}

/// Whether the larger worlds are explored too, which takes hours rather than seconds.
pub(super) fn soaks() -> bool {
    std::env::var_os("LOCKKEEPER_WORLDS").is_some_and(|worlds| worlds == "large")
}
