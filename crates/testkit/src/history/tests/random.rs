//! Random legal histories, of which the judge must accept every one, and the same with one wrong field.

use super::*;
use crate::dice::Dice;

const LEASE: u64 = 50;
const PERMITS: u32 = 3;

fn all_rules() -> Rules {
    Rules {
        capacity: HashMap::from([(0, PERMITS)]),
        fifo: HashSet::from([0, 1]),
        crashes: true,
        bound: Some(1),
        ..Rules::default()
    }
}

/// A lock that is used at random and served in exact order: resource 0 is a semaphore, resource 1 a read-write lock.
#[derive(Default)]
struct RandomLock {
    resource: u32,
    now: u64,
    token: u64,
    /// The highest floor of an accepted write.
    top: u64,
    queue: Vec<(u64, Share)>,
    holding: Vec<Section>,
    /// Sections that have ended and will write once more.
    stale: Vec<Section>,
}

impl RandomLock {
    fn new(resource: u32) -> Self {
        Self { resource, now: 1, token: 1024, ..Self::default() }
    }

    fn fits(&self, share: Share) -> bool {
        match share {
            Share::Units(units) if self.resource == 0 => {
                let units_of = |s: &Section| if let Share::Units(units) = s.share { units } else { 0 };
                self.holding.iter().map(units_of).sum::<u32>() + units <= PERMITS
            }
            Share::Units(_) => self.holding.iter().all(|s| !s.exclusive()),
            _ => self.holding.is_empty(),
        }
    }

    fn ask(&mut self, dice: &mut Dice) {
        let units = Share::Units(if self.resource == 0 { 1 + dice.below(3) as u32 } else { 1 });
        let alone = self.resource == 1 && dice.below(2) == 0;
        self.queue.push((self.now, if alone { Share::Exclusive } else { units }));
    }

    fn end_a_section(&mut self, dice: &mut Dice, history: &mut History) {
        let mut s = self.holding.swap_remove(dice.below(self.holding.len() as u64) as usize);
        s.end = *dice.choose(&[End::Released, End::Released, End::Lost, End::Crashed]);
        s.ended = self.now;
        s.deadline = if s.end == End::Released { self.now + LEASE } else { self.now };
        history.sections.push(s);
        self.stale.push(s);
    }

    fn give_up_the_last_wait(&mut self, history: &mut History) {
        let (asked, _) = self.queue.pop().expect("it is not empty");
        let wait = Wait { worker: 0, resource: self.resource, asked, gave_up: Some(self.now) };
        history.waits.push(wait);
    }

    fn grant(&mut self, contender: &mut u64) {
        while self.queue.first().is_some_and(|(_, share)| self.fits(*share)) {
            let (asked, share) = self.queue.remove(0);
            self.token += 1024;
            *contender += 1;
            self.holding.push(Section {
                worker: *contender as u32,
                resource: self.resource,
                contender: *contender,
                token: self.token,
                floor: self.holding.iter().map(|s| s.token).min().unwrap_or(self.token),
                share,
                asked,
                granted: self.now,
                ended: self.now,
                end: End::Open,
                deadline: self.now,
            });
        }
    }

    /// A current holder writes, and one for which it may be too late.
    fn write(&mut self, history: &mut History) {
        for s in self.holding.last().into_iter().chain(self.stale.pop().as_ref()) {
            let accepted = s.token >= self.top;
            self.top = if accepted { s.floor.max(self.top) } else { self.top };
            let at = history.writes.len() as u64;
            history.writes.push(Write {
                resource: self.resource,
                token: s.token,
                floor: s.floor,
                at,
                accepted,
            });
        }
    }
}

/// A legal history of both locks. Each section writes once while it holds and once more when that may be too late.
fn play(seed: u64) -> History {
    let mut dice = Dice::new(seed);
    let mut history = History::default();
    let mut contender = 0;
    for resource in 0..2 {
        let mut lock = RandomLock::new(resource);
        for step in 0..400 {
            lock.now += 1 + dice.below(5);
            if step < 300 && (dice.below(2) == 0 || lock.holding.is_empty()) {
                lock.ask(&mut dice);
            } else if !lock.holding.is_empty() {
                lock.end_a_section(&mut dice, &mut history);
            } else if lock.queue.is_empty() {
                break;
            }
            if dice.below(10) == 0 && lock.queue.len() > 1 {
                lock.give_up_the_last_wait(&mut history);
            }
            lock.grant(&mut contender);
            lock.write(&mut history);
        }
        assert!(lock.queue.is_empty() && lock.holding.is_empty(), "the last steps only end sections");
    }
    history
}

/// Changes one field of one record such that the history becomes illegal; says which rule must notice, or
/// nothing if this history has no record to do it with.
fn spoil(history: &mut History, dice: &mut Dice, way: u64) -> Option<Rule> {
    let rule = match way {
        0..=9 => {
            let chosen = dice.below(history.sections.len() as u64) as usize;
            let original = history.sections[chosen];
            let of_others = |other: &&Section| other.resource == original.resource && **other != original;
            let others: Vec<Section> = history.sections.iter().filter(of_others).copied().collect();
            spoil_section(&mut history.sections[chosen], &others, dice, way)?
        }
        10 => {
            let waits = &mut history.waits;
            let wait = dice.below(waits.len() as u64) as usize;
            waits[wait].gave_up = None;
            Rule::Unserved
        }
        11 => {
            history.waits[0].gave_up = Some(1_000_000);
            Rule::Stalled
        }
        _ => {
            let write = dice.below(history.writes.len() as u64) as usize;
            let write = &mut history.writes[write];
            write.accepted = !write.accepted;
            if write.accepted { Rule::WentBack } else { Rule::Refused }
        }
    };
    Some(rule)
}

/// The ways that change a section.
fn spoil_section(s: &mut Section, others: &[Section], dice: &mut Dice, way: u64) -> Option<Rule> {
    let rule = match way {
        0 => {
            s.token = dice.choose(others).token;
            Rule::TokenTwice
        }
        1 => {
            s.contender = dice.choose(others).contender;
            Rule::ContenderTwice
        }
        2 => {
            // One less is no multiple of 1024, so it belongs to nobody.
            s.token = others.iter().filter(|o| o.granted < s.asked).map(|o| o.token).min()? - 1;
            Rule::TokenFell
        }
        3 => {
            s.ended =
                others.iter().filter(|o| o.granted >= s.ended && o.exclusive()).map(|o| o.granted).min()? + 1;
            Rule::Overlap
        }
        4 => {
            s.share = Share::Units(PERMITS + 1);
            (s.resource == 0 && s.granted < s.ended).then_some(Rule::Overlap)?
        }
        5 => {
            s.floor = s.token + 1;
            Rule::Floor
        }
        6 => {
            s.floor = others.iter().filter(|o| o.exclusive() && o.token < s.token).map(|o| o.token).max()?;
            Rule::Floor
        }
        7 => {
            s.ended = s.deadline + 1;
            (s.end != End::Crashed).then_some(Rule::LateEnd)?
        }
        8 => {
            s.asked = s.granted + 1;
            Rule::BadRecord
        }
        _ => {
            // Long before all others, so everyone with a smaller token has overtaken it.
            s.asked = 0;
            others.iter().any(|o| o.token < s.token).then_some(Rule::OutOfOrder)?
        }
    };
    Some(rule)
}

#[test]
fn legal_histories_pass_and_one_wrong_field_does_not() {
    let mut noticed: BTreeMap<Rule, u64> = BTreeMap::new();
    for seed in 1..=40 {
        let history = play(seed);
        let report = check(&history, &all_rules());
        assert_eq!(report.verdict, Verdict::Safe, "seed {seed}: {report}");
        let mut dice = Dice::new(seed);
        for way in 0..=12 {
            let mut spoilt = history.clone();
            if let Some(rule) = spoil(&mut spoilt, &mut dice, way) {
                let report = check(&spoilt, &all_rules());
                assert!(report.count(rule) > 0, "seed {seed}, way {way}: {rule:?} not in {report}");
                *noticed.entry(rule).or_default() += 1;
            }
        }
    }
    assert!(noticed.len() == 12 && noticed.values().all(|times| *times >= 5), "{noticed:?}");
}

/// A million sections of 64 workers on 4 resources, each worker's in a history of its own.
fn million() -> History {
    let mut dice = Dice::new(1);
    let mut workers = vec![History::default(); 64];
    let mut free_at = [100; 4];
    for turn in 1..=1_000_000_u64 {
        let resource = (turn % 4) as u32;
        let worker = dice.below(64) as u32;
        let granted = free_at[resource as usize] + 1 + dice.below(20);
        let ended = granted + 1 + dice.below(50);
        free_at[resource as usize] = ended;
        let asked = granted - dice.below(100);
        let contender = turn.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let section = Section { worker, resource, contender, asked, ..alone(turn * 1024, granted, ended) };
        workers[worker as usize].sections.push(section);
    }
    workers.into_iter().collect()
}

#[test]
fn one_overlap_among_a_million_is_named() {
    let mut history = million();
    safe(&history, &Rules { bound: Some(1_000), least: 1_000_000, ..Rules::default() });

    // The 700,000th and its successor on the same resource.
    let find = |history: &History, turn: u64| {
        history.sections.iter().position(|s| s.token == turn * 1024).expect("every turn is there")
    };
    let (early, next) = (find(&history, 700_000), find(&history, 700_004));
    history.sections[early].ended = history.sections[next].granted + 1;
    let met = [history.sections[early], history.sections[next]];
    breaks(&history, &Rules::default(), Rule::Overlap, &met);
}
