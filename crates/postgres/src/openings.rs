//! The openings of latches that are known to outlast a failover: a commit of this keeper came after them, and waited for
//! the replicas.
//!
//! An opening that is known needs no other commit, however often the latch is looked at. That is sound because each opening
//! raises the count of them, and each creation gets a number of its own: as many openings of the same creation are the
//! same openings.

use std::{collections::BTreeMap, sync::Mutex};

use lockkeeper_core::{Name, support};

/// How many latches are remembered. Beyond that, a look may cost a commit again.
const MOST: usize = 1000;

/// How often a latch has opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Openings {
    /// When the server started that says so. Another server may lack what this one had, and each says when it started,
    /// behind a pooler too. One that takes over without a new start has confirmed nothing before.
    pub(crate) server: i64,
    /// The number of the latch's creation.
    pub(crate) born: u64,
    pub(crate) opened: u64,
}

impl Openings {
    fn include(&self, others: &Self) -> bool {
        (self.server, self.born) == (others.server, others.born) && self.opened >= others.opened
    }
}

/// The openings of each latch that were confirmed.
#[derive(Debug, Default)]
pub(crate) struct Confirmed(Mutex<BTreeMap<Name, Openings>>);

impl Confirmed {
    /// Notes that a commit came after these, and waited for the replicas.
    pub(crate) fn add(&self, name: &Name, openings: Openings) {
        let mut confirmed = support::lock(&self.0);
        if confirmed.get(name).is_some_and(|known| known.include(&openings)) {
            return;
        }
        if confirmed.len() >= MOST && !confirmed.contains_key(name) {
            confirmed.clear();
        }
        confirmed.insert(name.clone(), openings);
    }

    /// Whether all of these were confirmed.
    pub(crate) fn has(&self, name: &Name, openings: &Openings) -> bool {
        support::lock(&self.0).get(name).is_some_and(|known| known.include(openings))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> Name {
        Name::new(text).expect("a name")
    }

    #[test]
    fn only_openings_of_this_server_and_this_creation_are_known() {
        let confirmed = Confirmed::default();
        let (gate, openings) = (name("gate"), Openings { server: 7, born: 100, opened: 2 });
        assert!(!confirmed.has(&gate, &openings));
        confirmed.add(&gate, openings);
        assert!(confirmed.has(&gate, &openings));
        assert!(confirmed.has(&gate, &Openings { opened: 1, ..openings }), "it came before");
        assert!(!confirmed.has(&name("other"), &openings));
        for others in [
            Openings { opened: 3, ..openings },
            Openings { born: 101, ..openings },
            Openings { born: 99, ..openings },
            Openings { server: 8, ..openings },
        ] {
            assert!(!confirmed.has(&gate, &others), "{others:?}");
        }
        // One that was read before another was confirmed takes nothing back.
        confirmed.add(&gate, Openings { opened: 1, ..openings });
        assert!(confirmed.has(&gate, &openings));
        confirmed.add(&gate, Openings { server: 8, opened: 1, ..openings });
        assert!(!confirmed.has(&gate, &openings), "another server has taken over");
    }

    #[test]
    fn the_memory_has_a_bound_and_holds_what_came_last() {
        let confirmed = Confirmed::default();
        let openings = Openings { server: 7, born: 100, opened: 1 };
        for number in 0..3 * MOST {
            let latch = name(&format!("latch/{number}"));
            confirmed.add(&latch, openings);
            assert!(confirmed.has(&latch, &openings));
            assert!(support::lock(&confirmed.0).len() <= MOST);
        }
    }
}
