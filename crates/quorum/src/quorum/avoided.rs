//! The members that cannot be the gate of a name, because nobody is served there.

use std::{
    collections::HashSet,
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use lockkeeper_core::{
    Name,
    store::{Answer, Verdict},
    support,
};

/// The most names and members that are remembered. One more forgets all of them: a claim meets such a gate once more,
/// and passes over it from then on. If the new one were not remembered instead, its name would be starved.
const MOST: usize = 4096;

/// Gates that claims pass over, by name and member.
#[derive(Default)]
pub(super) struct Avoided {
    gates: Mutex<HashSet<(Name, usize)>>,
    /// Whether there are any: mostly there are none, and each claim asks.
    any: AtomicBool,
}

impl Avoided {
    /// Whether this member cannot be the gate of this name.
    pub(super) fn contains(&self, name: &Name, member: usize) -> bool {
        self.any.load(Ordering::Acquire) && support::lock(&self.gates).contains(&(name.clone(), member))
    }

    /// Takes note of an answer about this name. No hold lasts for longer than `longest`, so a member that shows a
    /// longer one has a clock that went back, and would keep everybody from a lock whose holder may be gone.
    pub(super) fn heard(&self, name: &Name, member: usize, answer: &Answer, longest: Duration) {
        let serves_nobody = match answer {
            Answer::Claim(Verdict::Refused(error)) if !error.is_passing() => true,
            Answer::Claim(Verdict::Busy { retry_in, .. }) => *retry_in > longest,
            Answer::Claim(Verdict::Granted(_)) => false,
            _ => return,
        };
        if !serves_nobody && !self.any.load(Ordering::Acquire) {
            return;
        }
        let (mut gates, gate) = (support::lock(&self.gates), (name.clone(), member));
        if !serves_nobody {
            gates.remove(&gate);
        } else if !gates.contains(&gate) {
            if gates.len() >= MOST {
                gates.clear();
            }
            gates.insert(gate);
        }
        self.any.store(!gates.is_empty(), Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use lockkeeper_core::{
        StoreError, StoreErrorKind,
        store::{Grant, Left},
    };

    use super::*;

    const LONGEST: Duration = Duration::from_secs(60);

    #[test]
    fn a_gate_is_avoided_until_it_serves_somebody() {
        let (avoided, name) = (Avoided::default(), Name::new("stock").expect("a name"));
        let heard = |answer: Answer| {
            avoided.heard(&name, 2, &answer, LONGEST);
            avoided.contains(&name, 2)
        };
        let refused = |kind| Answer::Claim(Verdict::Refused(StoreError::new(kind, "no")));
        let busy = |retry_in| Answer::Claim(Verdict::busy(0, retry_in));
        let granted = || Answer::Claim(Verdict::Granted(Grant { number: 7, floor: 7, remaining: LONGEST }));
        assert!(!heard(refused(StoreErrorKind::Unreachable)), "it passes");
        assert!(heard(refused(StoreErrorKind::Denied)));
        assert!(!avoided.contains(&name, 1) && !avoided.contains(&Name::new("other").expect("a name"), 2));
        assert!(heard(Answer::Leave(Left::NotThere)), "it says nothing about claims");
        assert!(!heard(granted()));
        assert!(!heard(busy(LONGEST)));
        assert!(heard(busy(LONGEST * 2)), "its clock went back");
        assert!(!heard(busy(LONGEST / 2)));
    }

    #[test]
    fn however_many_are_avoided_the_last_one_is() {
        let avoided = Avoided::default();
        for nth in 0..3 * MOST {
            let name = Name::new(nth.to_string()).expect("a name");
            let refused = Verdict::Refused(StoreError::new(StoreErrorKind::Denied, "no"));
            avoided.heard(&name, 0, &Answer::Claim(refused), LONGEST);
            assert!(avoided.contains(&name, 0), "{name}");
            assert!(support::lock(&avoided.gates).len() <= MOST);
        }
    }
}
