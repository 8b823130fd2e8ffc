//! The owners of the places of a quorum, as one client knows them, and the standing of a member that follows from that.
//!
//! A client only ever learns of later member ids. It then forgets the answers of the server that had the place before:
//! see [`Quorum::learn`](crate::quorum::Quorum::learn).

use std::{
    sync::{
        Mutex, MutexGuard,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use lockkeeper_core::{
    GrantNumber,
    store::Membership,
    support::{self, duration::show},
};

use crate::record::{Identity, MemberId, Record, Vote};

/// The member ids, as this client knows them.
#[derive(Debug)]
pub(crate) struct MemberIds {
    pub(crate) max_lease: Duration,
    identity: Mutex<Identity>,
    /// Grows with every change.
    version: AtomicU64,
}

/// The vote of a member, as it came with an answer.
pub(crate) struct HeardVote<'a> {
    ids: &'a MemberIds,
    place: usize,
    /// The membership that the member told with this answer.
    membership: Membership,
    vote: Vote,
    /// The version of the member ids before it was judged.
    version: u64,
}

impl HeardVote<'_> {
    /// Returns the vote. If other member ids were learned since it was judged, it is judged again. The caller must have
    /// the lock of a contest: then a thread that learns of other member ids later also forgets the answer that is taken
    /// with this vote.
    pub(crate) fn that_counts(&self) -> Vote {
        match self.ids.version() == self.version {
            true => self.vote,
            false => self.ids.vote(self.place, &self.membership),
        }
    }
}

/// The standing of a server in the quorum, at the place where a client reaches it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Standing {
    /// It has the place and votes, since this mark.
    Votes(GrantNumber),
    /// It has the place, and will vote when it was watched for long enough.
    Watched,
    /// It has no member id that counts: it is new, or may have lost its data.
    Vacant,
    /// It votes with a member id that another one has taken over.
    Outdated,
    /// It cannot have the place, for this reason.
    Refused(String),
}

impl MemberIds {
    pub(crate) fn new(identity: Identity) -> Self {
        Self { max_lease: identity.max_lease, identity: Mutex::new(identity), version: AtomicU64::new(0) }
    }

    fn lock(&self) -> MutexGuard<'_, Identity> {
        support::lock(&self.identity)
    }

    pub(crate) fn identity(&self) -> Identity {
        self.lock().clone()
    }

    pub(crate) fn id(&self, place: usize) -> Option<MemberId> {
        self.lock().ids.get(place).cloned()
    }

    /// Grows with every change.
    pub(crate) fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// Returns the vote of the member at `place`, which told this membership, judged by the member ids of this version
    /// or by later ones.
    pub(crate) fn heard(
        &self,
        place: usize,
        membership: Membership,
        vote: Vote,
        version: u64,
    ) -> HeardVote<'_> {
        HeardVote { ids: self, place, membership, vote, version }
    }

    /// Takes over later member ids from the record of a member, and returns their places.
    pub(crate) fn learn(&self, membership: &Membership) -> Vec<usize> {
        let Some(record) = Record::of(membership) else { return Vec::new() };
        let mut identity = self.lock();
        if !identity.is_same_quorum(&record.quorum) {
            return Vec::new();
        }
        let changed = identity.join(&record.quorum);
        if !changed.is_empty() {
            self.version.fetch_add(1, Ordering::AcqRel);
        }
        changed
    }

    /// Returns the standing of the server with this membership at `place`, where it is reached as `label`.
    pub(crate) fn standing(&self, place: usize, label: &str, membership: &Membership) -> Standing {
        standing(&self.lock(), place, label, membership)
    }

    /// Whether the server with this membership votes at `place`.
    pub(crate) fn vote(&self, place: usize, membership: &Membership) -> Vote {
        let Some(record) = Record::of(membership) else { return Vote::None };
        let identity = self.lock();
        let votes = identity.is_same_quorum(&record.quorum)
            && record.own == place
            && identity.ids.get(place) == Some(record.id())
            && record.voter.as_ref() == Some(&membership.incarnation);
        if votes { Vote::Since(record.since) } else { Vote::None }
    }
}

/// Returns the standing of the server with this membership at `place`, where it is reached as `label`.
pub(crate) fn standing(identity: &Identity, place: usize, label: &str, membership: &Membership) -> Standing {
    let Some(id) = identity.ids.get(place) else {
        return Standing::Refused("the quorum has fewer members".into());
    };
    let is_known = *id.label == *label || id.turn == 0;
    let vacant = || match is_known {
        true => Standing::Vacant,
        false => Standing::Refused(format!(
            "member {} of the quorum is {} by now; name that one in the URL, or have this one take its place with \
             `lockkeeper quorum replace`",
            place + 1,
            id.label
        )),
    };
    let Some(text) = &membership.record else { return vacant() };
    let Some(record) = Record::parse(text) else {
        return Standing::Refused(
            "it has a record of another version; use the same version everywhere".into(),
        );
    };
    let votes = record.voter.as_ref() == Some(&membership.incarnation);
    let other = |why: String| {
        Standing::Refused(format!("it belongs to another quorum: {why}; use the same URL everywhere"))
    };
    if record.quorum.max_lease != identity.max_lease {
        return other(format!("its max_lease is {}", show(record.quorum.max_lease)));
    }
    if !record.quorum.is_same_quorum(identity) {
        return other("it has other members than the rest".into());
    }
    if record.own != place {
        return other("it has the same members in another order".into());
    }
    match record.id() == id {
        true if votes => Standing::Votes(record.since),
        true if record.voter.is_none() => Standing::Watched,
        true => vacant(),
        false if votes && is_known => Standing::Outdated,
        false => vacant(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn membership(record: &Record, incarnation: &str) -> Membership {
        Membership { record: Some(record.to_string().into()), incarnation: incarnation.into() }
    }

    #[test]
    fn a_member_votes_with_its_own_id_in_its_own_incarnation() {
        let ids = vec![
            MemberId::empty("a").next("a"),
            MemberId::empty("b").next("b"),
            MemberId::empty("c").next("c"),
        ];
        let quorum = Identity { name: 1, max_lease: Duration::from_secs(60), ids };
        let ids = MemberIds::new(quorum.clone());
        let record = Record { quorum: quorum.clone(), own: 1, since: 7, voter: Some("x".into()) };
        let standing = |record: &Record| ids.standing(1, "b", &membership(record, "x"));
        assert_eq!(ids.vote(1, &membership(&record, "x")), Vote::Since(7));
        assert_eq!(standing(&record), Standing::Votes(7));
        assert_eq!(ids.vote(1, &membership(&record, "y")), Vote::None, "it has started again");
        assert_eq!(ids.standing(1, "b", &membership(&record, "y")), Standing::Vacant);
        assert_eq!(ids.vote(2, &membership(&record, "x")), Vote::None, "it has another place");
        assert_eq!(standing(&Record { voter: None, ..record.clone() }), Standing::Watched);
        let other = Identity { name: 2, ..quorum.clone() };
        assert!(matches!(standing(&Record { quorum: other, ..record.clone() }), Standing::Refused(_)));
        // Another one takes the place.
        let mut later = quorum.clone();
        later.ids[1] = quorum.ids[1].next("b");
        let told = Record { quorum: later, own: 0, since: 7, voter: None };
        // Judged before, and taken by another thread before and after this client learns of it.
        let heard = |place: usize| {
            let said = membership(&Record { own: place, ..record.clone() }, "x");
            let (vote, version) = (ids.vote(place, &said), ids.version());
            ids.heard(place, said, vote, version)
        };
        let heard = [heard(1), heard(2)];
        let counts = || heard.iter().map(HeardVote::that_counts).collect::<Vec<_>>();
        assert_eq!(counts(), [Vote::Since(7), Vote::Since(7)]);
        assert_eq!(ids.learn(&membership(&told, "x")), [1]);
        assert_eq!(counts(), [Vote::None, Vote::Since(7)], "only that place has another server");
        assert_eq!(ids.vote(1, &membership(&record, "x")), Vote::None);
        assert_eq!(standing(&record), Standing::Outdated);
        assert_eq!(ids.learn(&membership(&record, "x")), [0; 0], "what is older is not learned");
    }

    #[test]
    fn a_server_under_another_name_is_no_member_that_lost_its_data() {
        let ids = vec![MemberId::empty("a").next("a")];
        let ids = MemberIds::new(Identity { name: 1, max_lease: Duration::from_secs(60), ids });
        let empty = Membership { record: None, incarnation: "x".into() };
        assert_eq!(ids.standing(0, "a", &empty), Standing::Vacant);
        let Standing::Refused(why) = ids.standing(0, "b", &empty) else { panic!("refused") };
        assert!(why.contains("quorum replace") && why.contains("is a by now"), "{why}");
    }
}
