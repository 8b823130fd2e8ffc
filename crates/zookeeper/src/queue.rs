//! The queue of a resource: the order of its claims, and which of them are admitted. Pure.

use std::collections::HashMap;

use lockkeeper_core::{Capacity, ContenderId, Units};

use crate::codec::{ClaimNode, parse_marker};

/// The claims of one resource in order of arrival: first the holders, then the waiters.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Queue {
    pub(crate) claims: Vec<ClaimNode>,
    markers: HashMap<ContenderId, Vec<String>>,
    /// Children that are no claims. They neither hold nor block anything.
    pub(crate) foreign: Vec<String>,
}

/// Whether a claim holds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Admission {
    Holds,
    Waits(Obstacles),
}

/// The claims that keep a waiter from holding.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Obstacles {
    /// How many claims wait before it.
    pub(crate) ahead: usize,
    /// The nodes of which any may let it in by going or changing.
    pub(crate) nodes: Vec<String>,
    /// Whether those `nodes` wait themselves. The waiter then also has to notice when they are admitted.
    pub(crate) wait_themselves: bool,
}

/// The verdict on a claim that would arrive now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Newcomer {
    Holds,
    Waits { ahead: usize },
    Mismatch { in_use: Capacity },
}

impl Queue {
    /// The queue that the children of a resource's folder make.
    pub(crate) fn new(children: Vec<String>) -> Self {
        let mut queue = Self::default();
        for name in children {
            if let Some(claim) = ClaimNode::parse(&name) {
                queue.claims.push(claim);
            } else if let Some((contender, _)) = parse_marker(&name) {
                queue.markers.entry(contender).or_default().push(name);
            } else {
                queue.foreign.push(name);
            }
        }
        // Past the last sequence servers give the same one to many. The name then makes the order the same for everybody.
        queue.claims.sort_by(|a, b| (a.sequence, &a.name).cmp(&(b.sequence, &b.name)));
        for claim in &mut queue.claims {
            for marker in queue.markers.get(&claim.contender).into_iter().flatten() {
                if let Some((_, units)) = parse_marker(marker).filter(|(_, units)| units.below(claim.units)) {
                    claim.units = units;
                }
            }
        }
        queue
    }

    /// The paths of the markers beside a claim.
    pub(crate) fn marker_paths(&self, folder: &str, contender: ContenderId) -> Vec<String> {
        let markers = self.markers.get(&contender).into_iter().flatten();
        markers.map(|marker| format!("{folder}/{marker}")).collect()
    }

    /// The capacity that newcomers have to agree with: that of the first claim.
    pub(crate) fn capacity(&self) -> Option<Capacity> {
        self.claims.first().map(|first| first.capacity)
    }

    fn find(&self, name: &str) -> Option<&ClaimNode> {
        self.claims.iter().find(|claim| claim.name == name)
    }

    /// The capacity in use, if the claim under `name` disagrees with it.
    pub(crate) fn mismatch(&self, name: &str) -> Option<Capacity> {
        let own = self.find(name)?.capacity;
        self.capacity().filter(|in_use| *in_use != own)
    }

    /// Whether the claim under `name` is not let in because the sequences are used up.
    pub(crate) fn is_used_up(&self, name: &str) -> bool {
        self.find(name).is_some_and(ClaimNode::is_used_up)
    }

    /// Every claim, with whether it holds. A claim that waits stops everybody behind it: nobody overtakes (I10). Claims of
    /// different capacities never hold together, since neither counts the room that the other takes (I2).
    pub(crate) fn admissions(&self) -> impl Iterator<Item = (&ClaimNode, bool)> {
        let mut before: Vec<&ClaimNode> = Vec::new();
        self.claims.iter().map(move |claim| {
            let fits = fits(&before, claim.units, claim.capacity);
            before.push(claim);
            (claim, fits)
        })
    }

    /// The claim of `contender` that holds.
    pub(crate) fn holder(&self, contender: ContenderId) -> Option<&ClaimNode> {
        let mut admissions = self.admissions();
        admissions.find(|(claim, holds)| *holds && claim.contender == contender).map(|(claim, _)| claim)
    }

    /// Judges a claim that would arrive now.
    pub(crate) fn newcomer(&self, units: Units, capacity: Capacity) -> Newcomer {
        match self.capacity() {
            Some(in_use) if in_use != capacity => return Newcomer::Mismatch { in_use },
            _ => {}
        }
        if fits(&self.claims.iter().collect::<Vec<_>>(), units, capacity) {
            return Newcomer::Holds;
        }
        Newcomer::Waits { ahead: self.admissions().filter(|(_, holds)| !holds).count() }
    }

    /// Whether the claim under `name` holds; `None` if the claim is not in the queue.
    pub(crate) fn admission(&self, name: &str) -> Option<Admission> {
        let own = self.find(name)?;
        let before: Vec<(&ClaimNode, bool)> =
            self.admissions().take_while(|(claim, _)| claim.name != name).collect();
        let claims: Vec<&ClaimNode> = before.iter().map(|(claim, _)| *claim).collect();
        if fits(&claims, own.units, own.capacity) {
            return Some(Admission::Holds);
        }
        let ahead = before.iter().filter(|(_, holds)| !holds).count();
        let last = |blocks: &dyn Fn(&ClaimNode) -> bool| -> Vec<String> {
            claims
                .iter()
                .rev()
                .find(|claim| blocks(claim))
                .map(|claim| claim.name.clone())
                .into_iter()
                .collect()
        };
        let disagrees = |claim: &ClaimNode| claim.capacity != own.capacity;
        let (nodes, wait_themselves) = match (own.capacity, own.units) {
            // A writer waits for the last claim before it.
            (Capacity::All, Units::All) => (last(&|_| true), false),
            // A reader waits for the last claim before it that it cannot share with.
            (Capacity::All, Units::Count(_)) => {
                (last(&|claim| claim.units == Units::All || disagrees(claim)), false)
            }
            // All claims of another capacity have to go first, the last of them at the end.
            (Capacity::Count(_), _) if claims.iter().any(|claim| disagrees(claim)) => {
                (last(&disagrees), false)
            }
            // Behind another waiter for permits, it waits for the last claim before it.
            (Capacity::Count(_), _) if ahead > 0 => (last(&|_| true), true),
            // For the first waiter for permits, any holder may make room.
            (Capacity::Count(_), _) => (claims.iter().map(|claim| claim.name.clone()).collect(), false),
        };
        Some(Admission::Waits(Obstacles { ahead, nodes, wait_themselves }))
    }

    /// The claims behind the one under `name`, in order; `None` if one of them has another capacity, since it may be about
    /// to leave.
    pub(crate) fn behind(&self, name: &str) -> Option<Vec<String>> {
        let capacity = self.capacity();
        let after = self.claims.iter().skip_while(|claim| claim.name != name).skip(1);
        after.map(|claim| (Some(claim.capacity) == capacity).then(|| claim.name.clone())).collect()
    }

    /// Whether no claim is behind the one under `name`.
    pub(crate) fn is_last(&self, name: &str) -> bool {
        self.claims.last().is_some_and(|last| last.name == name)
    }

    /// The claims of a contender, in order.
    pub(crate) fn of(&self, contender: ContenderId) -> impl Iterator<Item = &ClaimNode> {
        self.claims.iter().filter(move |claim| claim.contender == contender)
    }
}

/// Whether so many units of `capacity` fit beside all of `before`.
fn fits(before: &[&ClaimNode], units: Units, capacity: Capacity) -> bool {
    before.iter().all(|claim| claim.capacity == capacity)
        && capacity.fits(before.iter().map(|claim| claim.units), units)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::{claim_prefix, marker};
    use lockkeeper_core::KeeperId;

    fn id(seq: u64) -> ContenderId {
        ContenderId { keeper: KeeperId::from_u128(7), seq }
    }

    fn permits(n: u32) -> (Units, Capacity) {
        (Units::count(n).expect("not zero"), Capacity::count(4).expect("not zero"))
    }

    fn node(seq: u64, (units, capacity): (Units, Capacity), sequence: &str) -> String {
        format!("{}{sequence}", claim_prefix(id(seq), units, capacity))
    }

    const WRITE: (Units, Capacity) = (Units::All, Capacity::All);
    const READ: (Units, Capacity) = (Units::ONE, Capacity::All);

    fn queue(names: &[&String]) -> Queue {
        Queue::new(names.iter().map(|name| (*name).clone()).collect())
    }

    impl Queue {
        fn holds(&self, name: &str) -> bool {
            self.admission(name).expect("there") == Admission::Holds
        }

        fn obstacles(&self, name: &str) -> Obstacles {
            match self.admission(name).expect("there") {
                Admission::Waits(obstacles) => obstacles,
                Admission::Holds => panic!("{name} holds"),
            }
        }
    }

    #[test]
    fn foreign_nodes_neither_panic_nor_block() {
        let mine = node(1, WRITE, "0000000007");
        let odd = ["", "c-", "0", "_c_x-lock-0000000000", "ü-lock-0000000001", "c-ü-1-all-all-0000000001"]
            .map(str::to_owned);
        let almost = [
            mine.replace("0000000007", "7"),
            mine.replace("0000000007", "00000000+7"),
            mine.replace("-all-all-", "-0-all-"),
            mine.replace("-all-all-", "-+1-all-"),
        ];
        let children = odd.iter().chain(&almost).chain([&mine]).cloned().collect();
        let queue = Queue::new(children);
        assert_eq!(queue.foreign.len(), odd.len() + almost.len());
        assert!(queue.holds(&mine));
    }

    #[test]
    fn i10_the_order_goes_on_past_the_overflow() {
        let [a, b, c] = ["2147483646", "2147483647", "-2147483648"];
        let (a, b, c) = (node(1, WRITE, a), node(2, WRITE, b), node(3, WRITE, c));
        let queue = queue(&[&c, &b, &a]);
        assert_eq!(queue.claims.iter().map(|claim| &claim.name).collect::<Vec<_>>(), [&a, &b, &c]);
        assert_eq!(queue.obstacles(&c).nodes, [b]);
        let (long, longer) = (node(4, WRITE, "0000002147483648000"), node(5, WRITE, "0000002147483648001"));
        assert!(Queue::new(vec![longer, long.clone()]).holds(&long));
    }

    #[test]
    fn a_reader_waits_for_the_last_writer_and_a_writer_for_the_last_claim() {
        let names: Vec<String> = [READ, READ, WRITE, WRITE, READ, READ, WRITE]
            .into_iter()
            .enumerate()
            .map(|(nth, kind)| node(nth as u64, kind, &format!("{nth:010}")))
            .collect();
        let queue = queue(&names.iter().collect::<Vec<_>>());
        let waits_for = |nth: usize| queue.obstacles(&names[nth]).nodes;
        assert!(queue.holds(&names[1]), "readers share");
        assert_eq!(waits_for(2), names[1..2]);
        assert_eq!((waits_for(4), waits_for(5)), (names[3..4].to_vec(), names[3..4].to_vec()));
        assert_eq!(waits_for(6), names[5..6]);
        assert_eq!(queue.obstacles(&names[6]).ahead, 4);
    }

    #[test]
    fn only_the_first_waiter_for_permits_watches_the_holders() {
        let names: Vec<String> = [2, 2, 3, 1]
            .into_iter()
            .enumerate()
            .map(|(nth, units)| node(nth as u64, permits(units), &format!("{nth:010}")))
            .collect();
        let queue = queue(&names.iter().collect::<Vec<_>>());
        assert_eq!(queue.obstacles(&names[2]).nodes, names[..2]);
        let last = queue.obstacles(&names[3]);
        assert!(last.wait_themselves, "a small request does not overtake: {last:?}");
        assert_eq!(last.nodes, names[2..3]);
    }

    #[test]
    fn a_marker_lowers_the_units_of_its_claim() {
        let (writer, reader) = (node(1, WRITE, "0000000001"), node(2, READ, "0000000002"));
        let lowered = marker(id(1), Units::ONE);
        assert!(!queue(&[&writer, &reader]).holds(&reader));
        assert!(queue(&[&writer, &reader, &lowered]).holds(&reader));
        assert_eq!(queue(&[&reader, &lowered]).foreign.len(), 0);
    }

    /// A claim of another capacity may hold, and nobody fits beside it.
    #[test]
    fn i2_nobody_is_admitted_behind_another_capacity() {
        let five = (Units::ONE, Capacity::count(5).expect("not zero"));
        let names = [permits(1), five, permits(1), READ, WRITE];
        let names: Vec<String> =
            (0..).zip(names).map(|(nth, kind)| node(nth, kind, &format!("{nth:010}"))).collect();
        let all = queue(&names.iter().collect::<Vec<_>>());
        let admitted: Vec<bool> = all.admissions().map(|(_, holds)| holds).collect();
        assert_eq!(admitted, [true, false, false, false, false]);
        for nth in 1..names.len() {
            let obstacles = all.obstacles(&names[nth]);
            assert_eq!(obstacles.nodes, names[nth - 1..nth], "the last that it cannot hold beside");
        }
        assert_eq!(all.mismatch(&names[1]), Some(permits(1).1));
        assert_eq!(all.mismatch(&names[2]), None, "it waits");
        // The first has left, and the next holds, no matter which claims are behind it.
        let rest = queue(&names[1..].iter().collect::<Vec<_>>());
        assert!(rest.holds(&names[1]));
        assert_eq!(rest.mismatch(&names[1]), None);
        assert!(!rest.holds(&names[2]));
        assert_eq!(all.newcomer(Units::ONE, permits(1).1), Newcomer::Waits { ahead: 4 });
    }
}
