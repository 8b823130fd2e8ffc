//! The record that a member keeps for its quorum, as text.
//!
//! `lkq1 MAX_LEASE MEMBERS SINCE VOTER`: the longest lease in milliseconds, the ids of all members in order with commas
//! between, the mark with which the member began to vote, and the incarnation in which it votes, or `-`.

use std::{fmt, sync::Arc, time::Duration};

use lockkeeper_core::{GrantNumber, store::Membership, support::percent};

const VERSION: &str = "lkq1";

/// Which quorum it is. Clients of another one are refused: two quorums that share members could each get a majority.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Identity {
    pub(crate) max_lease: Duration,
    /// The ids of the members' stores, in order.
    pub(crate) members: Vec<Arc<str>>,
}

/// What a member keeps.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Record {
    pub(crate) quorum: Identity,
    /// The mark with which it began to vote. Grants with numbers up to this were made before, and do not count.
    pub(crate) since: GrantNumber,
    /// The incarnation in which it votes.
    pub(crate) voter: Option<Arc<str>>,
}

/// A word without spaces and commas.
fn word(text: &str) -> String {
    percent::encode(text, |_, byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
}

impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { quorum: Identity { max_lease, members }, since, voter } = self;
        let members: Vec<String> = members.iter().map(|member| word(member)).collect();
        let voter = voter.as_ref().map_or_else(|| "-".to_owned(), |voter| format!("+{}", word(voter)));
        write!(f, "{VERSION} {} {} {since} {voter}", max_lease.as_millis(), members.join(","))
    }
}

impl Record {
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let mut words = text.split(' ');
        let mut next = || words.next();
        if next()? != VERSION {
            return None;
        }
        let max_lease = Duration::from_millis(next()?.parse().ok()?);
        let members = next()?.split(',').map(|member| percent::decode(member).map(Arc::from));
        let members = members.collect::<Option<Vec<_>>>()?;
        let since = next()?.parse().ok()?;
        let voter = match next()? {
            "-" => None,
            voter => Some(percent::decode(voter.strip_prefix('+')?)?.into()),
        };
        let quorum = Identity { max_lease, members };
        next().is_none().then_some(Self { quorum, since, voter })
    }

    pub(crate) fn of(membership: &Membership) -> Option<Self> {
        Self::parse(membership.record.as_deref()?)
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

impl Vote {
    pub(crate) fn of(membership: &Membership, quorum: &Identity) -> Self {
        match Record::of(membership) {
            Some(record)
                if record.quorum == *quorum && record.voter.as_ref() == Some(&membership.incarnation) =>
            {
                Self::Since(record.since)
            }
            _ => Self::None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_text_and_back() {
        let quorum = Identity {
            max_lease: Duration::from_secs(60),
            members: ["a", "b, c", "ü %"].map(Arc::from).to_vec(),
        };
        for voter in [None, Some(Arc::from("host 3306 - 1")), Some(Arc::from("-"))] {
            let record = Record { quorum: quorum.clone(), since: 7, voter };
            assert_eq!(Record::parse(&record.to_string()), Some(record));
        }
        for wrong in ["", "lkq1", "lkq2 1 a 0 -", "lkq1 1 a 0 - x", "lkq1 x a 0 -", "lkq1 1 a 0 voter"] {
            assert_eq!(Record::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_member_votes_for_its_own_quorum_in_its_own_incarnation() {
        let quorum = Identity { max_lease: Duration::from_secs(60), members: vec!["a".into()] };
        let record = Record { quorum: quorum.clone(), since: 7, voter: Some("x".into()) };
        let membership = |record: &Record, incarnation: &str| Membership {
            record: Some(record.to_string().into()),
            incarnation: incarnation.into(),
        };
        assert_eq!(Vote::of(&membership(&record, "x"), &quorum), Vote::Since(7));
        assert_eq!(Vote::of(&membership(&record, "y"), &quorum), Vote::None);
        let other = Identity { max_lease: Duration::from_secs(61), ..quorum.clone() };
        assert_eq!(Vote::of(&membership(&record, "x"), &other), Vote::None);
        let silent = Record { voter: None, ..record };
        assert_eq!(Vote::of(&membership(&silent, "x"), &quorum), Vote::None);
    }
}
