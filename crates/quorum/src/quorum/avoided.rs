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
    clock::BootTime,
    store::{Answer, Verdict},
    support,
};

/// The most names and members that are remembered. One more forgets all of them: a claim meets such a gate once more,
/// and passes over it from then on. If the new one were not remembered instead, its name would be starved.
const MOST: usize = 4096;

/// How often a member may answer *not now*. Then a claim counts as not answered, and the member as one that serves
/// nobody.
pub(super) const NOT_NOW_TRIES: u32 = 20;
/// The pause between a claim that was answered *not now* and its next copy.
pub(super) const NOT_NOW_PAUSE: Duration = Duration::from_millis(15);
/// Answers *not now* that come within this time count as one: a row that many use is locked for all of them at once.
const AT_ONCE: Duration = Duration::from_millis(12);

/// Why a gate serves nobody.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Because {
    /// It refuses the name for good, or its clock went back.
    ForGood,
    /// It refuses the name for a reason that passes, or could do nothing for it, however often it was asked.
    ForNow,
}

/// Answers *not now* of one member about one name, with no other answer in between. All claims of this keeper add to
/// them: one that ends early would never come to as many.
#[derive(Clone, Copy, Debug)]
struct Series {
    answers: u32,
    /// The time of the last answer that counted.
    last: BootTime,
}

/// What is known of gates, by name and member.
#[derive(Default)]
struct Known {
    avoided: HashMap<(Name, usize), Because>,
    not_now: HashMap<(Name, usize), Series>,
}

/// Gates that claims pass over, by name and member.
#[derive(Default)]
pub(super) struct Avoided {
    known: Mutex<Known>,
    /// Whether anything is known: mostly nothing is, and each claim asks.
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
        any.then(|| support::lock(&self.known).avoided.get(&(name.clone(), member)).copied()).flatten()
    }

    /// Takes note of an answer about this name, which came at `now`. No hold lasts for longer than `longest`, so a
    /// member that shows a longer one has a clock that went back, and would keep everybody from a lock whose holder may
    /// be gone.
    pub(super) fn heard(
        &self,
        name: &Name,
        member: usize,
        answer: &Answer,
        longest: Duration,
        now: BootTime,
    ) {
        match answer {
            Answer::Claim(Verdict::NotNow(_)) => self.can_do_nothing(name, member, now),
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

    /// Takes note that a member could do nothing for this name. A few times say nothing: a row is locked for a moment
    /// whenever somebody uses it.
    fn can_do_nothing(&self, name: &Name, member: usize, now: BootTime) {
        let (mut known, gate) = (support::lock(&self.known), (name.clone(), member));
        make_room(&mut known.not_now, &gate);
        let series = known.not_now.entry(gate.clone()).or_insert(Series { answers: 0, last: BootTime(0) });
        if now.since(series.last) >= AT_ONCE {
            (series.answers, series.last) = (series.answers + 1, now);
        }
        if series.answers >= NOT_NOW_TRIES {
            known.avoid(gate, Because::ForNow);
        }
        self.any.store(true, Ordering::Release);
    }

    fn avoid(&self, name: &Name, member: usize, because: Because) {
        support::lock(&self.known).avoid((name.clone(), member), because);
        self.any.store(true, Ordering::Release);
    }

    /// Takes note that a member serves this name. It does so as well if it serves somebody else: those that go on
    /// waiting at another gate would be in the way of those that wait here.
    fn serves(&self, name: &Name, member: usize) {
        if !self.any.load(Ordering::Acquire) {
            return;
        }
        let (mut known, gate) = (support::lock(&self.known), (name.clone(), member));
        known.avoided.remove(&gate);
        known.not_now.remove(&gate);
        self.any.store(!known.avoided.is_empty() || !known.not_now.is_empty(), Ordering::Release);
    }
}

impl Known {
    fn avoid(&mut self, gate: (Name, usize), because: Because) {
        self.not_now.remove(&gate);
        make_room(&mut self.avoided, &gate);
        self.avoided.insert(gate, because);
    }
}

/// Makes room for one more if there are too many.
fn make_room<T>(gates: &mut HashMap<(Name, usize), T>, gate: &(Name, usize)) {
    if gates.len() >= MOST && !gates.contains_key(gate) {
        gates.clear();
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
    const NOW: BootTime = BootTime(1_000_000_000_000);

    fn not_now() -> Answer {
        Answer::Claim(Verdict::NotNow(StoreError::new(StoreErrorKind::Conflict, "its row is locked")))
    }

    #[test]
    fn a_gate_is_avoided_until_it_serves_somebody() {
        let (avoided, name) = (Avoided::default(), Name::new("stock").expect("a name"));
        let heard = |answer: Answer| {
            avoided.heard(&name, 2, &answer, LONGEST, NOW);
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
        assert!(heard(refused(StoreErrorKind::Conflict)) && !avoided.contains_for_good(&name, 2));
        assert!(heard(refused(StoreErrorKind::Denied)) && avoided.contains_for_good(&name, 2));
        assert!(!heard(granted()));
    }

    #[test]
    fn a_gate_that_can_do_nothing_is_avoided_after_many_answers_that_do_not_come_at_once() {
        let (avoided, name) = (Avoided::default(), Name::new("stock").expect("a name"));
        let heard = |answer: Answer, now: BootTime| {
            avoided.heard(&name, 2, &answer, LONGEST, now);
            avoided.contains_for_now(&name, 2)
        };
        // Each one that comes at the same time as another counts with it.
        let is_avoided = |begun: BootTime, nth: u32| {
            let now = begun.after(NOT_NOW_PAUSE * nth);
            let at_once = (0..3 * NOT_NOW_TRIES).any(|_| heard(not_now(), now));
            assert!(!avoided.contains(&name, 1) && !avoided.contains_for_good(&name, 2));
            at_once
        };
        for nth in 0..NOT_NOW_TRIES - 1 {
            assert!(!is_avoided(NOW, nth), "{nth}");
        }
        assert!(!heard(Answer::Leave(Left::NotThere), NOW), "it says nothing about claims");
        assert!(!heard(Answer::Claim(Verdict::busy(0, LONGEST)), NOW), "its row is free");
        let begun = NOW.after(LONGEST);
        for nth in 0..NOT_NOW_TRIES {
            assert_eq!(is_avoided(begun, nth), nth == NOT_NOW_TRIES - 1, "{nth}");
        }
        assert!(is_avoided(begun, NOT_NOW_TRIES));
        assert!(!heard(Answer::Claim(Verdict::busy(0, LONGEST)), begun), "its row is free again");
        assert!(!heard(not_now(), begun.after(LONGEST)), "it begins anew");
    }

    #[test]
    fn however_many_are_avoided_the_last_one_is() {
        let avoided = Avoided::default();
        for nth in 0..3 * MOST {
            let name = Name::new(nth.to_string()).expect("a name");
            let refused = Verdict::Refused(StoreError::new(StoreErrorKind::Denied, "no"));
            avoided.heard(&name, 0, &Answer::Claim(refused), LONGEST, NOW);
            assert!(avoided.contains(&name, 0), "{name}");
            avoided.heard(&name, 1, &not_now(), LONGEST, NOW);
            let known = support::lock(&avoided.known);
            assert!(known.avoided.len() <= MOST && known.not_now.len() <= MOST);
        }
    }
}
