//! The openings of latches that a commit of this keeper has confirmed.
//!
//! Others see a commit before it is on disk, or before a replica has it, and whoever waits for a latch acts on what a plain
//! read shows. So a keeper answers an opening after a commit of its own once, and from plain reads afterwards. That is sound
//! because each opening raises the count of them, and each creation gets a number of its own: as many openings of the same
//! creation are the same openings.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard},
};

use lockkeeper_core::{Name, store::CountState, support};

/// How many latches are remembered. One that was forgotten costs one commit more.
const MOST: usize = 1024;

/// The last opening of a latch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Opening {
    /// The number of the latch's creation.
    born: u64,
    /// How often it has opened.
    opened: u64,
}

impl Opening {
    /// The last opening that a state shows, if there was one.
    pub fn shown_by(state: CountState) -> Option<Self> {
        let has_opened = state.remaining == 0 || state.opened > 0;
        has_opened.then_some(Self { born: state.born, opened: state.opened })
    }

    fn includes(self, earlier: Self) -> bool {
        self.born == earlier.born && self.opened >= earlier.opened
    }
}

/// The openings that were confirmed by one run of a server `S`. Another server may lack what this one had, and so may the
/// same after a restart.
#[derive(Debug)]
pub struct ConfirmedOpenings<S> {
    is_same: fn(&S, &S) -> bool,
    known: Mutex<Known<S>>,
}

#[derive(Debug)]
struct Known<S> {
    server: Option<S>,
    latches: HashMap<Name, Opening>,
}

impl<S: Clone> ConfirmedOpenings<S> {
    /// Nothing is confirmed yet. `is_same` tells whether two are the same run of the same server.
    pub fn new(is_same: fn(&S, &S) -> bool) -> Self {
        Self { is_same, known: Mutex::new(Known { server: None, latches: HashMap::new() }) }
    }

    fn lock(&self) -> MutexGuard<'_, Known<S>> {
        support::lock(&self.known)
    }

    fn is_of(&self, known: &Known<S>, server: &S) -> bool {
        known.server.as_ref().is_some_and(|known| (self.is_same)(known, server))
    }

    /// Whether this opening, and so all before it, was confirmed by this server.
    pub fn has(&self, server: &S, name: &Name, opening: Opening) -> bool {
        let known = self.lock();
        self.is_of(&known, server) && known.latches.get(name).is_some_and(|known| known.includes(opening))
    }

    /// Notes that a commit at this server came after an opening.
    pub fn add(&self, server: &S, name: &Name, opening: Opening) {
        let mut known = self.lock();
        if !self.is_of(&known, server) || known.latches.len() >= MOST && !known.latches.contains_key(name) {
            *known = Known { server: Some(server.clone()), latches: HashMap::new() };
        }
        // One that was read before another was confirmed takes nothing back.
        if !known.latches.get(name).is_some_and(|known| known.includes(opening)) {
            known.latches.insert(name.clone(), opening);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> Name {
        Name::new(text).expect("valid")
    }

    fn opening(born: u64, opened: u64, remaining: u64) -> Opening {
        let state = CountState { remaining, initial: 3, opened, born };
        Opening::shown_by(state).expect("it has opened")
    }

    #[test]
    fn an_opening_stays_the_same_until_the_next_one() {
        let (openings, gate) = (ConfirmedOpenings::new(i64::eq), name("gate"));
        let closed = CountState { remaining: 1, initial: 3, opened: 0, born: 7 };
        assert_eq!(Opening::shown_by(closed), None);
        let second = opening(7, 2, 0);
        assert!(!openings.has(&1, &gate, second));
        openings.add(&1, &gate, second);
        assert!(openings.has(&1, &gate, second));
        assert!(openings.has(&1, &gate, opening(7, 2, 3)), "it was reset");
        assert!(openings.has(&1, &gate, opening(7, 1, 0)), "it came before");
        assert!(!openings.has(&1, &gate, opening(7, 3, 0)), "it opened again");
        for born in [6, 8] {
            assert!(!openings.has(&1, &gate, opening(born, 2, 0)), "it was made anew");
        }
        assert!(!openings.has(&1, &name("other"), second));
        openings.add(&1, &gate, opening(7, 1, 0));
        assert!(openings.has(&1, &gate, second), "an earlier one takes nothing back");
    }

    #[test]
    fn another_server_may_lack_it() {
        let (openings, gate) = (ConfirmedOpenings::new(i64::eq), name("gate"));
        let open = opening(7, 1, 0);
        openings.add(&1, &gate, open);
        assert!(!openings.has(&2, &gate, open));
        openings.add(&2, &name("other"), open);
        assert!(!openings.has(&2, &gate, open), "that was the other one's");
    }

    #[test]
    fn not_every_latch_is_remembered() {
        let openings = ConfirmedOpenings::new(i64::eq);
        let open = opening(7, 1, 0);
        for number in 0..5 * MOST / 2 {
            openings.add(&1, &name(&number.to_string()), open);
            assert!(openings.lock().latches.len() <= MOST);
            assert!(openings.has(&1, &name(&number.to_string()), open), "the latest one is");
        }
    }
}
