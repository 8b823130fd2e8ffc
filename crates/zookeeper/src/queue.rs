//! The line of a resource: what the names of its child nodes say, their order, and who is admitted.
//! Pure; the one place that knows how node names are written.
//!
//! ```text
//! c-<contender>-<units>-<capacity>-<sequence>    a claim: ephemeral, the sequence given by the server
//! d-<contender>-<units>                          beside a claim: it holds only so much any more
//! ```
//!
//! All that admission needs stands in the names, so one listing of the children decides it.

use std::{collections::HashMap, num::NonZeroU32};

use lockkeeper_core::{Capacity, ContenderId, Units};

/// A claim's node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Node {
    pub(crate) contender: ContenderId,
    /// What it holds or asks for, lowered by its marker if it has one.
    pub(crate) units: Units,
    pub(crate) capacity: Capacity,
    sequence: Sequence,
    /// The node's name under the resource.
    pub(crate) name: String,
}

/// The number that the server appends to a sequential node: a counter of the parent. At 2147483647 servers overflow,
/// go on, or stay there (3.8 does), and then nobody knows any more who came first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Sequence(i64);

/// From here on no claim is let in, so that the line becomes empty and begins anew. What lies above is for those who
/// are turned away.
const LAST: i64 = i32::MAX as i64 - 1_000_000;

impl Sequence {
    fn parse(text: &str) -> Option<Self> {
        let digits = text.strip_prefix('-').unwrap_or(text);
        let plain = digits.len() >= 10 && digits.bytes().all(|byte| byte.is_ascii_digit());
        text.parse().ok().filter(|_| plain).map(Self)
    }

    /// How far behind `some` other one it came. Those of one resource are never 2^31 apart, so past the overflow the
    /// smaller distance counts; whatever was forged, there is an order.
    fn distance_from(self, some: Self) -> i64 {
        match (i32::try_from(self.0), i32::try_from(some.0)) {
            (Ok(own), Ok(some)) => i64::from(own.wrapping_sub(some)),
            _ => self.0.saturating_sub(some.0),
        }
    }
}

/// What a claim's node is called, up to the sequence that the server appends.
pub(crate) fn claim_prefix(contender: ContenderId, units: Units, capacity: Capacity) -> String {
    format!("c-{contender}-{units}-{capacity}-")
}

/// What marks that a claim holds only `units` any more.
pub(crate) fn marker(contender: ContenderId, units: Units) -> String {
    format!("{}{units}", marker_prefix(contender))
}

fn marker_prefix(contender: ContenderId) -> String {
    format!("d-{contender}-")
}

/// Whether the claim under `next` came right after the one under `before`, with nobody between them.
pub(crate) fn follows(before: &str, next: &str) -> bool {
    let sequence = |name| Node::parse(name).map(|node| node.sequence.0);
    sequence(before).zip(sequence(next)).is_some_and(|(before, next)| before >= 0 && next == before + 1)
}

fn count(text: &str) -> Option<NonZeroU32> {
    text.parse().ok().filter(|_| text.bytes().all(|byte| byte.is_ascii_digit()))
}

fn units(text: &str) -> Option<Units> {
    if text == "all" { Some(Units::All) } else { count(text).map(Units::Count) }
}

fn capacity(text: &str) -> Option<Capacity> {
    if text == "all" { Some(Capacity::All) } else { count(text).map(Capacity::Count) }
}

fn contender(keeper: &str, seq: &str) -> Option<ContenderId> {
    format!("{keeper}-{seq}").parse().ok()
}

impl Node {
    /// The claim that `name` stands for; `None` for anything else.
    pub(crate) fn parse(name: &str) -> Option<Self> {
        let mut parts = name.strip_prefix("c-")?.splitn(5, '-');
        let mut next = || parts.next();
        Some(Self {
            contender: contender(next()?, next()?)?,
            units: units(next()?)?,
            capacity: capacity(next()?)?,
            sequence: Sequence::parse(next()?)?,
            name: name.to_owned(),
        })
    }
}

/// Everybody who holds or waits, in order of arrival.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Queue {
    pub(crate) nodes: Vec<Node>,
    markers: HashMap<ContenderId, Vec<String>>,
    /// Children that are no claims: they neither hold nor block anything.
    pub(crate) strangers: Vec<String>,
}

/// Where somebody stands in a line.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Standing {
    /// Whether it holds.
    pub(crate) admitted: bool,
    /// How many wait before it.
    pub(crate) ahead: usize,
    /// The nodes of which any may let it in by going or changing.
    pub(crate) waits_for: Vec<String>,
    /// Whether those in `waits_for` wait themselves: then their admission is news too.
    pub(crate) behind_a_waiter: bool,
}

impl Queue {
    /// The line that these children make.
    pub(crate) fn new(children: Vec<String>) -> Self {
        let mut queue = Self::default();
        for name in children {
            if let Some(node) = Node::parse(&name) {
                queue.nodes.push(node);
            } else if let Some((id, _)) = parse_marker(&name) {
                queue.markers.entry(id).or_default().push(name);
            } else {
                queue.strangers.push(name);
            }
        }
        if let Some(some) = queue.nodes.first().map(|node| node.sequence) {
            queue.nodes.sort_by_cached_key(|node| (node.sequence.distance_from(some), node.name.clone()));
        }
        for node in &mut queue.nodes {
            for lowered in queue.markers.get(&node.contender).into_iter().flatten() {
                if let Some((_, units)) = parse_marker(lowered).filter(|(_, units)| units.below(node.units)) {
                    node.units = units;
                }
            }
        }
        queue
    }

    /// The markers beside a claim.
    pub(crate) fn markers_of(&self, contender: ContenderId) -> &[String] {
        self.markers.get(&contender).map_or(&[], Vec::as_slice)
    }

    /// The capacity that counts for newcomers: that of the first in line.
    pub(crate) fn capacity(&self) -> Option<Capacity> {
        self.nodes.first().map(|first| first.capacity)
    }

    /// The claim that just came under `name` disagrees with the first in line about the capacity.
    pub(crate) fn disagrees(&self, name: &str) -> Option<Capacity> {
        let me = self.nodes.iter().find(|node| node.name == name)?;
        self.capacity().filter(|first| *first != me.capacity)
    }

    /// Whether the numbers of this line are used up for the claim under `name`.
    pub(crate) fn is_used_up(&self, name: &str) -> bool {
        let me = self.nodes.iter().find(|node| node.name == name);
        me.is_some_and(|me| (LAST + 1..=i64::from(i32::MAX)).contains(&me.sequence.0))
    }

    /// Everybody, each with whether it is admitted. One who is not stops everybody behind: nobody overtakes (I10). Those
    /// of different capacities never hold together: each counts on room that the other does not know of (I2).
    pub(crate) fn admissions(&self) -> impl Iterator<Item = (&Node, bool)> {
        let mut before: Vec<&Node> = Vec::new();
        self.nodes.iter().map(move |node| {
            let fits = fits(&before, node.units, node.capacity);
            before.push(node);
            (node, fits)
        })
    }

    /// Whether one who came now would be admitted, how many wait before it, and who disagrees.
    pub(crate) fn newcomer(&self, units: Units, wanted: Capacity) -> Result<(bool, usize), Capacity> {
        match self.capacity() {
            Some(in_use) if in_use != wanted => return Err(in_use),
            _ => {}
        }
        let waiting = self.admissions().filter(|(_, admitted)| !admitted).count();
        Ok((fits(&self.nodes.iter().collect::<Vec<_>>(), units, wanted), waiting))
    }

    /// Where the claim under `name` stands; `None` if it is not there.
    pub(crate) fn standing(&self, name: &str) -> Option<Standing> {
        let me = self.nodes.iter().find(|node| node.name == name)?;
        let before: Vec<(&Node, bool)> =
            self.admissions().take_while(|(node, _)| node.name != name).collect();
        let nodes: Vec<&Node> = before.iter().map(|(node, _)| *node).collect();
        let admitted = fits(&nodes, me.units, me.capacity);
        let ahead = before.iter().filter(|(_, admitted)| !admitted).count();
        let last = |stops: &dyn Fn(&Node) -> bool| {
            let last = nodes.iter().rev().find(|node| stops(node));
            last.map(|node| node.name.clone()).into_iter().collect::<Vec<_>>()
        };
        let disagrees = |node: &Node| node.capacity != me.capacity;
        let (waits_for, behind_a_waiter) = match (me.capacity, me.units) {
            _ if admitted => (Vec::new(), false),
            // A writer: the last request before it.
            (Capacity::All, Units::All) => (last(&|_| true), false),
            // A reader: the last before it that it cannot read beside.
            (Capacity::All, Units::Count(_)) => {
                (last(&|node| node.units == Units::All || disagrees(node)), false)
            }
            // Of those with another size, the last has to go before anything else counts.
            (Capacity::Count(_), _) if nodes.iter().any(|node| disagrees(node)) => (last(&disagrees), false),
            // Behind one who waits for permits: the last request before it.
            (Capacity::Count(_), _) if ahead > 0 => (last(&|_| true), true),
            // The first that waits for permits: any holder may make room.
            (Capacity::Count(_), _) => (nodes.iter().map(|node| node.name.clone()).collect(), false),
        };
        Some(Standing { admitted, ahead, waits_for, behind_a_waiter })
    }

    /// Those behind the claim under `name`, in order; `None` if somebody of another capacity is among them, who may be
    /// about to leave.
    pub(crate) fn behind(&self, name: &str) -> Option<Vec<String>> {
        let capacity = self.capacity();
        let after = self.nodes.iter().skip_while(|node| node.name != name).skip(1);
        after.map(|node| (Some(node.capacity) == capacity).then(|| node.name.clone())).collect()
    }

    /// Whether nobody stands behind the claim under `name`.
    pub(crate) fn is_last(&self, name: &str) -> bool {
        self.nodes.last().is_some_and(|last| last.name == name)
    }

    /// The nodes of a contender, in order.
    pub(crate) fn of(&self, contender: ContenderId) -> impl Iterator<Item = &Node> {
        self.nodes.iter().filter(move |node| node.contender == contender)
    }
}

/// Whether so many units of `capacity` fit beside all of `before`.
fn fits(before: &[&Node], units: Units, capacity: Capacity) -> bool {
    before.iter().all(|node| node.capacity == capacity)
        && capacity.fits(before.iter().map(|node| node.units), units)
}

fn parse_marker(name: &str) -> Option<(ContenderId, Units)> {
    let mut parts = name.strip_prefix("d-")?.splitn(3, '-');
    let mut next = || parts.next();
    Some((contender(next()?, next()?)?, units(next()?)?))
}

#[cfg(test)]
mod tests {
    use super::*;
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

    #[test]
    fn names_survive_text() {
        let name = node(18_446_744_073_709_551_615, permits(3), "-2147483648");
        let parsed = Node::parse(&name).expect("a claim");
        assert_eq!((parsed.contender.seq, parsed.sequence), (u64::MAX, Sequence(-2_147_483_648)));
        assert_eq!((parsed.units, parsed.capacity), permits(3));
    }

    #[test]
    fn strangers_neither_panic_nor_block() {
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
        assert_eq!(queue.strangers.len(), odd.len() + almost.len());
        assert!(queue.standing(&mine).expect("there").admitted);
    }

    #[test]
    fn i10_the_order_goes_on_past_the_overflow() {
        let [a, b, c] = ["2147483646", "2147483647", "-2147483648"];
        let (a, b, c) = (node(1, WRITE, a), node(2, WRITE, b), node(3, WRITE, c));
        let queue = queue(&[&c, &b, &a]);
        assert_eq!(queue.nodes.iter().map(|node| &node.name).collect::<Vec<_>>(), [&a, &b, &c]);
        assert_eq!(queue.standing(&c).expect("there").waits_for, [b]);
        let (long, longer) = (node(4, WRITE, "0000002147483648000"), node(5, WRITE, "0000002147483648001"));
        assert!(Queue::new(vec![longer, long.clone()]).standing(&long).expect("there").admitted);
    }

    #[test]
    fn who_follows_comes_right_after() {
        let names = ["0000000007", "0000000008", "0000000009", "2147483647", "-2147483648"];
        let names = names.map(|sequence| node(1, WRITE, sequence));
        let follow = |before: usize, next: usize| follows(&names[before], &names[next]);
        assert!(follow(0, 1) && follow(1, 2));
        assert!(!follow(0, 0) && !follow(0, 2) && !follow(1, 0) && !follow(3, 4));
        assert!(!follows("0000000007", &names[1]), "a stranger");
    }

    #[test]
    fn a_reader_waits_for_the_last_writer_and_a_writer_for_the_last_request() {
        let names: Vec<String> = [READ, READ, WRITE, WRITE, READ, READ, WRITE]
            .into_iter()
            .enumerate()
            .map(|(nth, kind)| node(nth as u64, kind, &format!("{nth:010}")))
            .collect();
        let queue = queue(&names.iter().collect::<Vec<_>>());
        let waits_for = |nth: usize| queue.standing(&names[nth]).expect("there").waits_for;
        assert!(queue.standing(&names[1]).expect("there").admitted, "readers share");
        assert_eq!(waits_for(2), names[1..2]);
        assert_eq!((waits_for(4), waits_for(5)), (names[3..4].to_vec(), names[3..4].to_vec()));
        assert_eq!(waits_for(6), names[5..6]);
        assert_eq!(queue.standing(&names[6]).expect("there").ahead, 4);
    }

    #[test]
    fn only_the_first_who_waits_for_permits_watches_the_holders() {
        let names: Vec<String> = [2, 2, 3, 1]
            .into_iter()
            .enumerate()
            .map(|(nth, units)| node(nth as u64, permits(units), &format!("{nth:010}")))
            .collect();
        let queue = queue(&names.iter().collect::<Vec<_>>());
        assert_eq!(queue.standing(&names[2]).expect("there").waits_for, names[..2]);
        let last = queue.standing(&names[3]).expect("there");
        assert!(!last.admitted && last.behind_a_waiter, "a small request does not overtake: {last:?}");
        assert_eq!(last.waits_for, names[2..3]);
    }

    #[test]
    fn a_marker_lowers_what_is_held() {
        let (writer, reader) = (node(1, WRITE, "0000000001"), node(2, READ, "0000000002"));
        let lowered = marker(id(1), Units::ONE);
        assert!(!queue(&[&writer, &reader]).standing(&reader).expect("there").admitted);
        assert!(queue(&[&writer, &reader, &lowered]).standing(&reader).expect("there").admitted);
        assert_eq!(queue(&[&reader, &lowered]).strangers.len(), 0);
    }

    /// Whoever is before it and of another capacity may hold: nobody of either fits beside the other.
    #[test]
    fn i2_nobody_is_admitted_behind_another_capacity() {
        let five = (Units::ONE, Capacity::count(5).expect("not zero"));
        let names = [permits(1), five, permits(1), READ, WRITE];
        let names: Vec<String> =
            (0..).zip(names).map(|(nth, kind)| node(nth, kind, &format!("{nth:010}"))).collect();
        let all = queue(&names.iter().collect::<Vec<_>>());
        let admitted: Vec<bool> = all.admissions().map(|(_, admitted)| admitted).collect();
        assert_eq!(admitted, [true, false, false, false, false]);
        for nth in 1..names.len() {
            let standing = all.standing(&names[nth]).expect("there");
            assert!(!standing.admitted);
            assert_eq!(standing.waits_for, names[nth - 1..nth], "the last that it cannot hold beside");
        }
        assert_eq!(all.disagrees(&names[1]), Some(permits(1).1));
        assert_eq!(all.disagrees(&names[2]), None, "it waits");
        // The first has left, and the next holds, whatever stands behind it.
        let rest = queue(&names[1..].iter().collect::<Vec<_>>());
        assert!(rest.standing(&names[1]).expect("there").admitted);
        assert_eq!(rest.disagrees(&names[1]), None);
        assert!(!rest.standing(&names[2]).expect("there").admitted);
        assert_eq!(all.newcomer(Units::ONE, permits(1).1), Ok((false, 4)));
    }
}
