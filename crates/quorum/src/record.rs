//! The record that a member keeps for its quorum, as text.
//!
//! `lkq2 NAME MAX_LEASE OWN MEMBERS SINCE VOTER`: the name of the quorum, the longest lease in milliseconds, the place
//! of this member, the member ids, the mark with which the member began to vote, and the incarnation in which it votes,
//! or `-`. Member ids are `TURN:RANDOM:LABEL`, in the order of the members, with commas between.

use std::{cmp::Ordering, fmt, sync::Arc, time::Duration};

use lockkeeper_core::{GrantNumber, KeeperId, store::Membership, support::percent};

const VERSION: &str = "lkq2";

/// Which server has a place of the quorum, from the moment when it got the place. A server that may have lost its
/// data, and one that takes the place of another, gets a new member id with the next turn. Those with higher turns win.
#[derive(Clone, Debug)]
pub(crate) struct MemberId {
    /// How many had the place before. Nobody has turn 0.
    pub(crate) turn: u64,
    /// Random, so that no two servers have the same member id.
    random: Arc<str>,
    /// The URL of the server without a password, for people, and to tell a server that lost its data from another one.
    pub(crate) label: Arc<str>,
}

impl MemberId {
    /// A place that nobody has had yet.
    pub(crate) fn empty(label: &str) -> Self {
        Self { turn: 0, random: Arc::default(), label: label.into() }
    }

    /// The member id of the next one at this place.
    pub(crate) fn next(&self, label: &str) -> Self {
        let random = KeeperId::random().to_string();
        Self { turn: self.turn + 1, random: random.into(), label: label.into() }
    }

    fn key(&self) -> (u64, &str) {
        (self.turn, &self.random)
    }
}

impl PartialEq for MemberId {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl Eq for MemberId {}

impl PartialOrd for MemberId {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for MemberId {
    fn cmp(&self, other: &Self) -> Ordering {
        self.key().cmp(&other.key())
    }
}

/// The name of a quorum, its longest lease, and its member ids. Clients of another one are refused: two quorums that
/// share members could each get a majority.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Identity {
    /// Made of the ids of the stores that it was founded with.
    pub(crate) name: u64,
    pub(crate) max_lease: Duration,
    /// In the order of the members.
    pub(crate) ids: Vec<MemberId>,
}

impl Identity {
    /// Whether it is the same quorum, with any owners of its places.
    pub(crate) fn is_same_quorum(&self, other: &Self) -> bool {
        let key = |it: &Self| (it.name, it.max_lease, it.ids.len());
        key(self) == key(other)
    }

    /// Takes over the member ids of `other` that are later than its own, and returns their places.
    pub(crate) fn join(&mut self, other: &Self) -> Vec<usize> {
        let mut changed = Vec::new();
        for (place, (id, other)) in self.ids.iter_mut().zip(&other.ids).enumerate() {
            if *other > *id {
                *id = other.clone();
                changed.push(place);
            }
        }
        changed
    }
}

/// The record of a member.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Record {
    pub(crate) quorum: Identity,
    /// The place of the member that keeps this.
    pub(crate) own: usize,
    /// The mark with which it began to vote. Grants with numbers up to this were made before, and do not count.
    pub(crate) since: GrantNumber,
    /// The incarnation in which it votes.
    pub(crate) voter: Option<Arc<str>>,
}

/// A word without spaces, commas and colons.
fn word(text: &str) -> String {
    percent::encode(text, |_, byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
}

impl fmt::Display for MemberId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.turn, word(&self.random), word(&self.label))
    }
}

impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { quorum: Identity { name, max_lease, ids }, own, since, voter } = self;
        let ids: Vec<String> = ids.iter().map(MemberId::to_string).collect();
        let voter = voter.as_ref().map_or_else(|| "-".to_owned(), |voter| format!("+{}", word(voter)));
        write!(f, "{VERSION} {name:x} {} {own} {} {since} {voter}", max_lease.as_millis(), ids.join(","))
    }
}

impl MemberId {
    fn parse(text: &str) -> Option<Self> {
        let mut words = text.split(':');
        let turn = words.next()?.parse().ok()?;
        let random = percent::decode(words.next()?)?.into();
        let label = percent::decode(words.next()?)?.into();
        words.next().is_none().then_some(Self { turn, random, label })
    }
}

impl Record {
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let mut words = text.split(' ');
        let mut next = || words.next();
        if next()? != VERSION {
            return None;
        }
        let name = u64::from_str_radix(next()?, 16).ok()?;
        let max_lease = Duration::from_millis(next()?.parse().ok()?);
        let own = next()?.parse().ok()?;
        let ids = next()?.split(',').map(MemberId::parse).collect::<Option<Vec<_>>>()?;
        let since = next()?.parse().ok()?;
        let voter = match next()? {
            "-" => None,
            voter => Some(percent::decode(voter.strip_prefix('+')?)?.into()),
        };
        let whole = next().is_none() && own < ids.len();
        let quorum = Identity { name, max_lease, ids };
        whole.then_some(Self { quorum, own, since, voter })
    }

    pub(crate) fn of(membership: &Membership) -> Option<Self> {
        Self::parse(membership.record.as_deref()?)
    }

    /// The member id of the member that keeps this.
    pub(crate) fn id(&self) -> &MemberId {
        &self.quorum.ids[self.own]
    }
}

/// Whether a member votes for a quorum, as its membership says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Vote {
    /// It votes, since this mark.
    Since(GrantNumber),
    /// It does not.
    None,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity() -> Identity {
        let ids = ["a", "b, c:", "ü %"].map(|label| MemberId::empty(label).next(label)).to_vec();
        Identity { name: 0xfeed, max_lease: Duration::from_secs(60), ids }
    }

    #[test]
    fn records_are_text_and_back() {
        let quorum = identity();
        for voter in [None, Some(Arc::from("host 3306 - 1")), Some(Arc::from("-"))] {
            let record = Record { quorum: quorum.clone(), own: 2, since: 7, voter };
            let read = Record::parse(&record.to_string()).expect("read");
            assert_eq!(read, record);
            assert_eq!(*read.quorum.ids[1].label, *"b, c:");
        }
        let good = Record { quorum, own: 0, since: 0, voter: None }.to_string();
        for wrong in [
            "",
            "lkq2",
            &good.replace("lkq2", "lkq3"),
            &format!("{good} x"),
            &good.replace("feed", "x"),
            &good.replace(" 0 -", " 0 voter"),
            &good.replace("60000 0", "60000 3"),
        ] {
            assert_eq!(Record::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn later_ids_win_at_each_place() {
        let (first, mut other) = (identity(), identity());
        other.ids[0] = first.ids[0].next("new");
        other.ids[1] = first.ids[1].clone();
        other.ids[2] = MemberId::empty("ü %");
        let mut joined = first.clone();
        assert_eq!(joined.join(&other), [0]);
        assert_eq!((&*joined.ids[0].label, &joined.ids[2]), ("new", &first.ids[2]));
        assert_eq!(joined.clone().join(&first), [0; 0]);
        assert!(joined.is_same_quorum(&first));
        assert!(!joined.is_same_quorum(&Identity { max_lease: Duration::from_secs(61), ..first }));
    }
}
