//! The names whose last claim had to wait, as one keeper knows them.
//!
//! A claim of such a name asks its gate first. If it asked all members at once, it would get those that the holder has
//! just left, before the next in the queue of the gate does, and would have to give them back.

use std::{
    collections::HashSet,
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering},
    },
};

use lockkeeper_core::{Name, support};

/// The number of names that are remembered. It costs a round trip to have forgotten one, or to know one wrongly.
const MOST: usize = 4096;

#[derive(Default)]
pub(super) struct Contended {
    names: Mutex<HashSet<Name>>,
    /// Whether there are any. Most programs never wait.
    any: AtomicBool,
}

impl Contended {
    pub(super) fn contains(&self, name: &Name) -> bool {
        self.any.load(Ordering::Relaxed) && support::lock(&self.names).contains(name)
    }

    /// Notes that a claim of this name was granted, after it had waited or at once.
    pub(super) fn granted(&self, name: &Name, has_waited: bool) {
        if !has_waited && !self.any.load(Ordering::Relaxed) {
            return;
        }
        let mut names = support::lock(&self.names);
        if !has_waited {
            names.remove(name);
        } else if !names.contains(name) {
            if names.len() >= MOST {
                names.clear();
            }
            names.insert(name.clone());
        }
        self.any.store(!names.is_empty(), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_claim_counts_and_few_names_are_remembered() {
        let (contended, name) = (Contended::default(), |text: &str| Name::new(text).expect("a name"));
        assert!(!contended.contains(&name("a")));
        contended.granted(&name("a"), true);
        assert!(contended.contains(&name("a")) && !contended.contains(&name("b")));
        contended.granted(&name("a"), false);
        assert!(!contended.contains(&name("a")));
        for number in 0..3 * MOST {
            contended.granted(&name(&number.to_string()), true);
        }
        assert!(support::lock(&contended.names).len() <= MOST);
    }
}
