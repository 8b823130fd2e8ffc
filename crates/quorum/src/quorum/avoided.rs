//! The members that cannot be the gate of a name, because nobody is served there.

use std::{
    collections::HashMap,
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

/// Why a gate serves nobody.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Because {
    /// It refuses the name for good, or its clock went back.
    ForGood,
    /// It refuses the name for a reason that passes, or could do nothing for it, however often it was asked.
    ForNow,
}

/// Gates that claims pass over, by name and member.
#[derive(Default)]
pub(super) struct Avoided {
    gates: Mutex<HashMap<(Name, usize), Because>>,
    /// Whether there are any: mostly there are none, and each claim asks.
    any: AtomicBool,
}

impl Avoided {
    /// Whether this member cannot be the gate of this name.
    pub(super) fn contains(&self, name: &Name, member: usize) -> bool {
        self.because(name, member).is_some()
    }

    /// Whether it is of no use to ask this member again by itself: the next claim is soon enough.
    pub(super) fn contains_for_good(&self, name: &Name, member: usize) -> bool {
        self.because(name, member) == Some(Because::ForGood)
    }

    /// Whether this member cannot be the gate for now, and is to be asked again.
    pub(super) fn contains_for_now(&self, name: &Name, member: usize) -> bool {
        self.because(name, member) == Some(Because::ForNow)
    }

    fn because(&self, name: &Name, member: usize) -> Option<Because> {
        let any = self.any.load(Ordering::Acquire);
        any.then(|| support::lock(&self.gates).get(&(name.clone(), member)).copied()).flatten()
    }

    /// Takes note of an answer about this name. No hold lasts for longer than `longest`, so a member that shows a
    /// longer one has a clock that went back, and would keep everybody from a lock whose holder may be gone.
    pub(super) fn heard(&self, name: &Name, member: usize, answer: &Answer, longest: Duration) {
        match answer {
            Answer::Claim(Verdict::Refused(error)) if error.is_passing() => {
                self.avoid(name, member, Because::ForNow);
            }
            Answer::Claim(Verdict::Refused(_)) => self.avoid(name, member, Because::ForGood),
            Answer::Claim(Verdict::Busy { retry_in, .. }) if *retry_in > longest => {
                self.avoid(name, member, Because::ForGood);
            }
            Answer::Claim(Verdict::Busy { .. } | Verdict::Granted(_)) => self.serves(name, member),
            _ => {}
        }
    }

    /// Takes note that a member could do nothing for this name, however often it was asked. Once says nothing: a row is
    /// locked for a moment whenever somebody uses it.
    pub(super) fn can_do_nothing(&self, name: &Name, member: usize) {
        self.avoid(name, member, Because::ForNow);
    }

    fn avoid(&self, name: &Name, member: usize, because: Because) {
        let (mut gates, gate) = (support::lock(&self.gates), (name.clone(), member));
        if gates.len() >= MOST && !gates.contains_key(&gate) {
            gates.clear();
        }
        gates.insert(gate, because);
        self.any.store(true, Ordering::Release);
    }

    /// Takes note that a member serves this name. It does so as well if it serves somebody else: those that go on
    /// waiting at another gate would be in the way of those that wait here.
    fn serves(&self, name: &Name, member: usize) {
        if !self.any.load(Ordering::Acquire) {
            return;
        }
        let mut gates = support::lock(&self.gates);
        gates.remove(&(name.clone(), member));
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
        assert!(heard(refused(StoreErrorKind::Denied)));
        assert!(!avoided.contains(&name, 1) && !avoided.contains(&Name::new("other").expect("a name"), 2));
        assert!(heard(Answer::Leave(Left::NotThere)), "it says nothing about claims");
        assert!(!heard(granted()));
        assert!(!heard(busy(LONGEST)));
        assert!(heard(busy(LONGEST * 2)), "its clock went back");
        assert!(!heard(busy(LONGEST / 2)));
        let not_now = StoreError::new(StoreErrorKind::Conflict, "its row is locked");
        assert!(!heard(Answer::Claim(Verdict::NotNow(not_now))), "once says nothing");
        avoided.can_do_nothing(&name, 2);
        assert!(avoided.contains(&name, 2) && !avoided.contains_for_good(&name, 2));
        assert!(!heard(busy(LONGEST)), "its row is free again");
        assert!(heard(refused(StoreErrorKind::Conflict)) && !avoided.contains_for_good(&name, 2));
        assert!(heard(refused(StoreErrorKind::Denied)) && avoided.contains_for_good(&name, 2));
        assert!(!heard(granted()));
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
