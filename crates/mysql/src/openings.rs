//! The openings of latches that are on disk, as far as this keeper knows. Whoever waits for a latch acts on what a plain
//! read shows, and that may be a commit that is not on disk yet. So each opening is answered after a commit of this
//! keeper once, and from plain reads afterwards. It sends nothing.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard},
};

use lockkeeper_core::{Name, store::CountState, support};

use crate::server::ServerFacts;

/// How many latches are remembered. One that was forgotten costs one commit more.
const AT_MOST: usize = 1024;

/// One opening of a latch. It stays the same when the latch is reset and counted down again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Opening {
    born: u64,
    opened: u64,
}

impl Opening {
    /// The last opening that a state shows, if there was one.
    pub(crate) fn shown_by(state: CountState) -> Option<Self> {
        let has_opened = state.remaining == 0 || state.opened > 0;
        has_opened.then_some(Self { born: state.born, opened: state.opened })
    }
}

/// The last opening of each latch that is known to be on disk.
#[derive(Default)]
pub(crate) struct Openings(Mutex<Known>);

#[derive(Default)]
struct Known {
    /// The server on whose disk they are. Another one, or the same after a restart, may have lost them.
    server: Option<ServerFacts>,
    latches: HashMap<Name, Opening>,
}

impl Known {
    fn is_of(&self, server: &ServerFacts) -> bool {
        self.server.as_ref().is_some_and(|known| known.is_same_run(server))
    }
}

impl Openings {
    fn lock(&self) -> MutexGuard<'_, Known> {
        support::lock(&self.0)
    }

    /// Whether an opening is on the disk of this server.
    pub(crate) fn is_on_disk(&self, server: &ServerFacts, name: &Name, opening: Opening) -> bool {
        let known = self.lock();
        known.is_of(server) && known.latches.get(name) == Some(&opening)
    }

    /// Notes that an opening is on the disk of this server.
    pub(crate) fn reached_disk(&self, server: &ServerFacts, name: &Name, opening: Opening) {
        let mut known = self.lock();
        if !known.is_of(server) || known.latches.len() >= AT_MOST && !known.latches.contains_key(name) {
            *known = Known { server: Some(server.clone()), latches: HashMap::new() };
        }
        known.latches.insert(name.clone(), opening);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::Dialect;

    fn server(which: &str, started: u64) -> ServerFacts {
        ServerFacts { dialect: Dialect::MariaDb, which: which.into(), started, wait_timeout: 28_800 }
    }

    fn name(text: &str) -> Name {
        Name::new(text).expect("valid")
    }

    fn opening(born: u64, opened: u64, remaining: u64) -> Opening {
        let state = CountState { remaining, initial: 3, opened, born };
        Opening::shown_by(state).expect("it has opened")
    }

    #[test]
    fn an_opening_stays_the_same_until_the_next_one() {
        let (openings, server, gate) = (Openings::default(), server("a", 1000), name("gate"));
        let closed = CountState { remaining: 1, initial: 3, opened: 0, born: 7 };
        assert_eq!(Opening::shown_by(closed), None);
        let first = opening(7, 1, 0);
        assert!(!openings.is_on_disk(&server, &gate, first));
        openings.reached_disk(&server, &gate, first);
        assert!(openings.is_on_disk(&server, &gate, first));
        assert!(openings.is_on_disk(&server, &gate, opening(7, 1, 3)), "it was reset");
        assert!(!openings.is_on_disk(&server, &gate, opening(7, 2, 0)), "it opened again");
        assert!(!openings.is_on_disk(&server, &gate, opening(8, 1, 0)), "it was made anew");
        assert!(!openings.is_on_disk(&server, &name("other"), first));
    }

    #[test]
    fn another_server_or_another_run_may_have_lost_it() {
        let (openings, first, gate) = (Openings::default(), server("a", 1000), name("gate"));
        let open = opening(7, 1, 0);
        openings.reached_disk(&first, &gate, open);
        for other in [server("b", 1000), server("a", 1010)] {
            assert!(!openings.is_on_disk(&other, &gate, open));
        }
        openings.reached_disk(&server("b", 1000), &name("other"), open);
        assert!(!openings.is_on_disk(&server("b", 1000), &gate, open), "that was on another disk");
    }

    #[test]
    fn not_every_latch_is_remembered() {
        let (openings, server) = (Openings::default(), server("a", 1000));
        let open = opening(7, 1, 0);
        for number in 0..5 * AT_MOST / 2 {
            openings.reached_disk(&server, &name(&number.to_string()), open);
            assert!(openings.lock().latches.len() <= AT_MOST);
            assert!(openings.is_on_disk(&server, &name(&number.to_string()), open), "the latest one is");
        }
    }
}
