//! A fence that is kept at the members: a token is admitted if a majority admits it and nobody rejects it.

use stateright::{Model, Property};

use super::{
    explore::{prove, refute},
    member::Member,
};

const STALE: &str = "no token is admitted after a later one";
const MEMBERS: usize = 3;
const NEEDED: usize = 2;

/// Two tokens, 1 and 2, are shown to every member, in any order and perhaps too late.
#[derive(Clone, Copy)]
struct World {
    /// How many members may lose their data. They vote again: their marks tell nothing about fences.
    restarts: u8,
}

/// The members that a token was shown to, how many admitted it, and whether any rejected it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
struct Shown {
    to: [bool; MEMBERS],
    admitted: usize,
    rejected: bool,
}

#[derive(Clone, PartialEq, Hash, Debug)]
struct State {
    members: Vec<Member>,
    shown: [Shown; 2],
    /// Whether the later token was admitted before the earlier one was shown to the last member that admitted it.
    stale: bool,
    restarts: u8,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Action {
    Show { token: usize, member: usize },
    Restart(usize),
}

impl Shown {
    fn is_admitted(self) -> bool {
        self.admitted >= NEEDED && !self.rejected
    }
}

impl Model for World {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let members = (0..MEMBERS).map(|_| Member::new(0, None)).collect();
        vec![State { members, shown: [Shown::default(); 2], stale: false, restarts: 0 }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        for member in 0..MEMBERS {
            for token in 0..2 {
                if !state.shown[token].to[member] {
                    actions.push(Action::Show { token, member });
                }
            }
            if state.restarts < self.restarts {
                actions.push(Action::Restart(member));
            }
        }
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        let mut next = state.clone();
        match action {
            Action::Restart(member) => {
                next.restarts += 1;
                next.members[member].restart();
            }
            Action::Show { token, member } => {
                // The earlier token is shown when the later one has been admitted, or before: only the former is stale.
                let late =
                    token == 0 && state.shown[1].is_admitted() && state.shown[0].to == [false; MEMBERS];
                let admitted = next.members[member].admit(1 + token as u64);
                let shown = &mut next.shown[token];
                shown.to[member] = true;
                shown.admitted += usize::from(admitted);
                shown.rejected |= !admitted;
                next.stale |= late;
            }
        }
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(STALE, |_, state: &State| !(state.stale && state.shown[0].is_admitted())),
            Property::sometimes("both are admitted in order", |_, state: &State| {
                !state.stale && state.shown.iter().all(|shown| shown.is_admitted())
            }),
            Property::sometimes("a stale token is rejected", |_, state: &State| {
                state.stale && state.shown[0].rejected
            }),
        ]
    }
}

#[test]
fn a_fence_at_durable_members_is_sound() {
    prove("fence", World { restarts: 0 });
}

/// Neither waiting nor marks bring back the tokens that a fence has forgotten.
#[test]
fn a_fence_after_an_empty_rejoin_is_refuted() {
    refute(World { restarts: 1 }, STALE);
}
