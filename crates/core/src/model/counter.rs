//! The latch's counter: the one thing a store keeps that is not a resource.

use super::{HighWater, Now};
use crate::store::{CountAction, CountState, Counted};

/// A counter that exists or not.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counter(pub Option<CountState>);

impl Counter {
    /// Does `action`. The caller has already refused operations that are stale or were done.
    pub fn step(&mut self, now: Now, high_water: &mut HighWater, action: CountAction) -> Counted {
        match (action, &mut self.0) {
            (CountAction::Create(count), none @ None) => {
                let state = CountState {
                    remaining: count,
                    initial: count,
                    opened: u64::from(count == 0),
                    born: high_water.next(now),
                };
                *none = Some(state);
                Counted::State(state)
            }
            (CountAction::Create(_), Some(state)) => Counted::Exists(*state),
            (_, None) => Counted::Missing,
            (CountAction::Down(by), Some(state)) => {
                if state.remaining > 0 && by >= state.remaining {
                    state.opened += 1;
                }
                state.remaining = state.remaining.saturating_sub(by);
                Counted::State(*state)
            }
            (CountAction::Reset, Some(state)) => {
                state.remaining = state.initial;
                Counted::State(*state)
            }
            (CountAction::Read, Some(state)) => Counted::State(*state),
            (CountAction::Delete, some) => some.take().map_or(Counted::Missing, Counted::State),
        }
    }
}
