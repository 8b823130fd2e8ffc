//! Layer 2: the protocols between keepers and a store, each checked in every order of events that a small
//! world allows. The store in these worlds is the real model and the deadlines are the real arithmetic;
//! only the network, the tasks and time are played by the checker. One world has the servers of ZooKeeper
//! instead, which know different things at the same time.
//!
//! Each world names the invariants of `docs/design.md` (I1 to I15) that it proves. Each world is also run with mistakes
//! that have been made in real lock services: a world that lets one of them pass proves nothing.

mod ask_again;
mod granted_by_releaser;
mod hand_on;
mod listing;
mod store;

use std::{fmt::Debug, hash::Hash};

use stateright::{Checker, Expectation, HasDiscoveries, Model};

/// Visits every state of `world`: all promises hold, and all that should be possible happens.
fn prove<W>(world: W)
where
    W: Model + Send + Sync + 'static,
    W::State: Clone + Debug + Hash + PartialEq + Send + Sync,
    W::Action: Clone + Debug + PartialEq,
{
    let checked = world.checker().spawn_bfs().join();
    println!("{} states, {} deep", checked.unique_state_count(), checked.max_depth());
    checked.assert_properties();
}

/// Finds a run of `world`, which has a mistake in it, that breaks `promise`.
fn refute<W>(world: W, promise: &'static str)
where
    W: Model + Send + Sync + 'static,
    W::State: Clone + Debug + Hash + PartialEq + Send + Sync,
    W::Action: Clone + Debug + PartialEq,
{
    assert_ne!(world.property(promise).expectation, Expectation::Sometimes, "not a promise");
    let checker = world.checker().finish_when(HasDiscoveries::AnyOf([promise].into()));
    let run = checker.spawn_bfs().join().discovery(promise);
    let run = run.unwrap_or_else(|| panic!("the mistake was not seen: {promise:?} always held"));
    println!("{promise:?} broken by {:?}", run.into_actions());
}
