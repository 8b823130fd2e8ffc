//! The record that a member keeps for its quorum, as text.
//!
//! `lkq2 NAME MAX_LEASE OWN SEATS SINCE VOTER`: the name of the quorum, the longest lease in milliseconds, the place of
//! this member, the seats, the mark with which the member began to vote, and the incarnation in which it votes, or `-`.
//! Seats are `TURN:ID:LABEL`, in the order of the members, with commas between.

use std::{cmp::Ordering, fmt, sync::Arc, time::Duration};

use lockkeeper_core::{GrantNumber, KeeperId, store::Membership, support::percent};

const VERSION: &str = "lkq2";

/// A server's right to a place in the quorum, from the moment when it was seated there. A server that may have lost its
/// data, and one that takes the place of another, gets a new seat with the next turn. Seats with higher turns win.
#[derive(Clone, Debug)]
pub(crate) struct Seat {
    /// How many had the place before. Nobody has turn 0.
    pub(crate) turn: u64,
    /// Random, so that no two servers have the same seat.
    id: Arc<str>,
    /// The URL of the server without a password, for people, and to tell a server that lost its data from another one.
    pub(crate) label: Arc<str>,
}

impl Seat {
    /// A place that nobody has had yet.
    pub(crate) fn empty(label: &str) -> Self {
        Self { turn: 0, id: Arc::default(), label: label.into() }
    }

    /// The seat of the next one at this place.
    pub(crate) fn next(&self, label: &str) -> Self {
        let id = KeeperId::random().to_string();
        Self { turn: self.turn + 1, id: id.into(), label: label.into() }
    }

    fn key(&self) -> (u64, &str) {
        (self.turn, &self.id)
    }
}

impl PartialEq for Seat {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl Eq for Seat {}

impl PartialOrd for Seat {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Seat {
    fn cmp(&self, other: &Self) -> Ordering {
        self.key().cmp(&other.key())
    }
}

/// The name of a quorum, its longest lease, and its seats. Clients of another one are refused: two quorums that share
/// members could each get a majority.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Identity {
    /// Made of the ids of the stores that it was founded with.
    pub(crate) name: u64,
    pub(crate) max_lease: Duration,
    /// In the order of the members.
    pub(crate) seats: Vec<Seat>,
}

impl Identity {
    /// Whether it is the same quorum, with any owners of its places.
    pub(crate) fn is_same_quorum(&self, other: &Self) -> bool {
        let key = |it: &Self| (it.name, it.max_lease, it.seats.len());
        key(self) == key(other)
    }

    /// Takes over the seats of `other` that are later than its own, and returns their places.
    pub(crate) fn join(&mut self, other: &Self) -> Vec<usize> {
        let mut changed = Vec::new();
        for (place, (seat, other)) in self.seats.iter_mut().zip(&other.seats).enumerate() {
            if *other > *seat {
                *seat = other.clone();
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

impl fmt::Display for Seat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.turn, word(&self.id), word(&self.label))
    }
}

impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { quorum: Identity { name, max_lease, seats }, own, since, voter } = self;
        let seats: Vec<String> = seats.iter().map(Seat::to_string).collect();
        let voter = voter.as_ref().map_or_else(|| "-".to_owned(), |voter| format!("+{}", word(voter)));
        write!(f, "{VERSION} {name:x} {} {own} {} {since} {voter}", max_lease.as_millis(), seats.join(","))
    }
}

impl Seat {
    fn parse(text: &str) -> Option<Self> {
        let mut words = text.split(':');
        let turn = words.next()?.parse().ok()?;
        let id = percent::decode(words.next()?)?.into();
        let label = percent::decode(words.next()?)?.into();
        words.next().is_none().then_some(Self { turn, id, label })
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
        let seats = next()?.split(',').map(Seat::parse).collect::<Option<Vec<_>>>()?;
        let since = next()?.parse().ok()?;
        let voter = match next()? {
            "-" => None,
            voter => Some(percent::decode(voter.strip_prefix('+')?)?.into()),
        };
        let whole = next().is_none() && own < seats.len();
        let quorum = Identity { name, max_lease, seats };
        whole.then_some(Self { quorum, own, since, voter })
    }

    pub(crate) fn of(membership: &Membership) -> Option<Self> {
        Self::parse(membership.record.as_deref()?)
    }

    /// The seat of the member that keeps this.
    pub(crate) fn seat(&self) -> &Seat {
        &self.quorum.seats[self.own]
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
        let seats = ["a", "b, c:", "ü %"].map(|label| Seat::empty(label).next(label)).to_vec();
        Identity { name: 0xfeed, max_lease: Duration::from_secs(60), seats }
    }

    #[test]
    fn records_are_text_and_back() {
        let quorum = identity();
        for voter in [None, Some(Arc::from("host 3306 - 1")), Some(Arc::from("-"))] {
            let record = Record { quorum: quorum.clone(), own: 2, since: 7, voter };
            let read = Record::parse(&record.to_string()).expect("read");
            assert_eq!(read, record);
            assert_eq!(*read.quorum.seats[1].label, *"b, c:");
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
    fn later_seats_win_at_each_place() {
        let (first, mut other) = (identity(), identity());
        other.seats[0] = first.seats[0].next("new");
        other.seats[1] = first.seats[1].clone();
        other.seats[2] = Seat::empty("ü %");
        let mut joined = first.clone();
        assert_eq!(joined.join(&other), [0]);
        assert_eq!((&*joined.seats[0].label, &joined.seats[2]), ("new", &first.seats[2]));
        assert_eq!(joined.clone().join(&first), [0; 0]);
        assert!(joined.is_same_quorum(&first));
        assert!(!joined.is_same_quorum(&Identity { max_lease: Duration::from_secs(61), ..first }));
    }
}
