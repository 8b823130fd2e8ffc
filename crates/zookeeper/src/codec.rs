//! Turns names and values into node names and node data, and back. Pure.
//!
//! A resource's folder has these children:
//!
//! ```text
//! c-<contender>-<units>-<capacity>-<sequence>    a claim: ephemeral, the server appends the sequence
//! d-<contender>-<units>                          a marker beside a claim: it holds only so many units any more
//! ```
//!
//! The names contain everything that admission needs, so one listing of the children decides it. The data of a claim's
//! node is rows of text, for operators and for a keeper that takes the claim over.

use std::{sync::Arc, time::Duration};

use lockkeeper_core::{
    Capacity, ContenderId, GrantNumber, Name, Units,
    store::{Attachment, Claim, Details, Kind, ProcessInfo, Renewed},
    support::percent,
};

/// Writes `text` as one part of a path. A dot at the start becomes a percent code, since ZooKeeper has no nodes `.` and
/// `..`.
pub(crate) fn encode(text: &str) -> String {
    percent::encode(text, |position, byte| {
        byte.is_ascii_alphanumeric() || b"-_:,+=@#".contains(&byte) || (byte == b'.' && position > 0)
    })
}

/// The text from which [`encode`] makes `encoded`; `None` if there is none.
fn decode(encoded: &str) -> Option<String> {
    percent::decode(encoded).filter(|text| encode(text) == encoded)
}

/// The resource of a child of `locks`; `None` for a node that Lockkeeper did not make.
pub(crate) fn name_of(encoded: &str) -> Option<Name> {
    Name::new(decode(encoded)?).ok()
}

/// The highest sequence of a claim that is let in. The sequence is a counter of the folder with 32 bits: past 2147483647
/// servers go on below zero or repeat the last one. The million above this is for claims that are turned away.
const LAST_SEQUENCE: u64 = i32::MAX as u64 - 1_000_000;

/// The name of a claim's node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct ClaimNode {
    pub(crate) contender: ContenderId,
    /// The units that it holds or asks for. [`Queue`](crate::queue::Queue) lowers them if there is a marker.
    pub(crate) units: Units,
    pub(crate) capacity: Capacity,
    /// Its order of arrival.
    pub(crate) sequence: u64,
    /// The node's name in the folder.
    pub(crate) name: String,
}

impl ClaimNode {
    /// Reads a claim's node name; `None` for anything else.
    pub(crate) fn parse(name: &str) -> Option<Self> {
        let mut parts = name.strip_prefix("c-")?.splitn(5, '-');
        let mut next = || parts.next();
        Some(Self {
            contender: contender(next()?, next()?)?,
            units: next()?.parse().ok()?,
            capacity: next()?.parse().ok()?,
            sequence: sequence(next()?)?,
            name: name.to_owned(),
        })
    }

    /// Whether the sequences of its folder are used up, so that the claim is not let in.
    pub(crate) fn is_used_up(&self) -> bool {
        self.sequence > LAST_SEQUENCE
    }
}

/// Reads a sequence. One that overflowed comes after those that did not.
fn sequence(text: &str) -> Option<u64> {
    let digits = text.strip_prefix('-').unwrap_or(text);
    if digits.len() < 10 || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    text.parse::<u64>()
        .or_else(|_| text.parse::<i32>().map(|overflowed| u64::from(overflowed.cast_unsigned())))
        .ok()
}

fn contender(keeper: &str, seq: &str) -> Option<ContenderId> {
    format!("{keeper}-{seq}").parse().ok()
}

/// The name of a claim's node, up to the sequence that the server appends.
pub(crate) fn claim_prefix(contender: ContenderId, units: Units, capacity: Capacity) -> String {
    format!("c-{contender}-{units}-{capacity}-")
}

/// Whether the claim under `next` arrived right after the one under `before`.
pub(crate) fn follows(before: &str, next: &str) -> bool {
    let claims = ClaimNode::parse(before).zip(ClaimNode::parse(next));
    claims.is_some_and(|(before, next)| !next.is_used_up() && next.sequence == before.sequence + 1)
}

/// The name of the marker of a claim that holds only `units` any more.
pub(crate) fn marker(contender: ContenderId, units: Units) -> String {
    format!("d-{contender}-{units}")
}

/// Reads a marker's name.
pub(crate) fn parse_marker(name: &str) -> Option<(ContenderId, Units)> {
    let mut parts = name.strip_prefix("d-")?.splitn(3, '-');
    let mut next = || parts.next();
    Some((contender(next()?, next()?)?, next()?.parse().ok()?))
}

/// The data of a claim's node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct ClaimData {
    pub(crate) lease: Duration,
    pub(crate) details: Details,
    /// The grant number of a claim that was taken over; otherwise the node's own transaction is the number.
    pub(crate) number: Option<GrantNumber>,
    /// The claim waited and was admitted. Waiters behind it list the queue again when they see this change.
    pub(crate) granted: bool,
    /// An operator wants it back.
    pub(crate) evicted: bool,
    /// The operator's reason for wanting it back, in words.
    pub(crate) reason: Option<Arc<str>>,
    /// Nobody renews it.
    pub(crate) fixed: bool,
    /// How long it was held when its data was written, if it is detached.
    pub(crate) held: Option<Duration>,
    /// Only its lease ends it.
    pub(crate) detached: bool,
    /// Its owner has left before the minimum hold.
    pub(crate) retired: bool,
}

impl ClaimData {
    pub(crate) fn new(lease: Duration, details: Details) -> Self {
        Self {
            lease,
            details,
            number: None,
            granted: false,
            evicted: false,
            reason: None,
            fixed: false,
            held: None,
            detached: false,
            retired: false,
        }
    }

    /// The data that the node of a claim begins with.
    pub(crate) fn of(claim: &Claim) -> Self {
        Self {
            fixed: !claim.renewed,
            // A reader of the node sees that the grant is detached even before anybody has confirmed it.
            detached: claim.attachment == Attachment::Detached,
            ..Self::new(claim.lease, claim.details.clone())
        }
    }

    /// The answer to a renewal of a claim that an operator wants back.
    pub(crate) fn refused_renewal(&self) -> Renewed {
        Renewed::Evicted(self.reason.clone())
    }

    /// The grant number of the claim whose node was made by the transaction `czxid`.
    pub(crate) fn number(&self, czxid: i64) -> GrantNumber {
        self.number.unwrap_or_else(|| GrantNumber::try_from(czxid).unwrap_or(0))
    }

    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let Details { kind, process, label, value } = &self.details;
        let mut text = format!(
            "lease {}\nkind {}\nhost {}\npid {}\nprogram {}\n",
            self.lease.as_millis(),
            kind.word(),
            encode(&process.host),
            process.pid,
            encode(&process.program),
        );
        for (word, value) in [("label", label), ("value", value), ("reason", &self.reason)] {
            if let Some(value) = value {
                text.push_str(&format!("{word} {}\n", encode(value)));
            }
        }
        if let Some(number) = self.number {
            text.push_str(&format!("number {number}\n"));
        }
        if let Some(held) = self.held {
            text.push_str(&format!("held {}\n", held.as_millis()));
        }
        let flags = [
            ("granted", self.granted),
            ("evicted", self.evicted),
            ("fixed", self.fixed),
            ("detached", self.detached),
            ("retired", self.retired),
        ];
        for (word, _) in flags.into_iter().filter(|(_, set)| *set) {
            text.push_str(&format!("{word}\n"));
        }
        text.into_bytes()
    }

    /// Reads a node's data. Rows that Lockkeeper does not write are ignored: grants depend on the node's name alone.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Self {
        let text = String::from_utf8_lossy(bytes);
        let mut process = ProcessInfo { host: String::new(), pid: 0, program: String::new() };
        let mut details =
            Details { kind: Kind::Mutex, process: Arc::new(process.clone()), label: None, value: None };
        let mut lease = Duration::ZERO;
        let mut data = Self::new(lease, details.clone());
        for row in text.lines() {
            let (word, value) = row.split_once(' ').unwrap_or((row, ""));
            match word {
                "lease" => lease = Duration::from_millis(value.parse().unwrap_or(0)),
                "kind" => details.kind = Kind::from_word(value).unwrap_or(details.kind),
                "host" => process.host = decode(value).unwrap_or_default(),
                "pid" => process.pid = value.parse().unwrap_or(0),
                "program" => process.program = decode(value).unwrap_or_default(),
                "label" => details.label = decode(value).map(Into::into),
                "value" => details.value = decode(value).map(Into::into),
                "number" => data.number = value.parse().ok(),
                "granted" => data.granted = true,
                "evicted" => data.evicted = true,
                "reason" => data.reason = decode(value).map(Into::into),
                "fixed" => data.fixed = true,
                "held" => data.held = value.parse().ok().map(Duration::from_millis),
                "detached" => data.detached = true,
                "retired" => data.retired = true,
                _ => {}
            }
        }
        details.process = Arc::new(process);
        Self { lease, details, ..data }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockkeeper_core::KeeperId;

    fn node(seq: u64, sequence: &str) -> String {
        let id = ContenderId { keeper: KeeperId::from_u128(7), seq };
        format!("{}{sequence}", claim_prefix(id, Units::All, Capacity::All))
    }

    #[test]
    fn any_name_is_one_part_of_a_path_and_comes_back() {
        for text in ["stock/42", ".", "..", "a.b", "%2F", "zookeeper", "ü \u{10ffff}", "a\\b\"c'd"] {
            let encoded = encode(text);
            assert!(encoded.is_ascii() && !encoded.contains('/') && !encoded.starts_with('.'), "{encoded}");
            assert_eq!(decode(&encoded).as_deref(), Some(text));
        }
    }

    #[test]
    fn a_foreign_node_has_no_name() {
        for foreign in ["", "a/b", "%2f", "%", "%4", "%zz", "%FF", "ü", "%41", "a b"] {
            assert_eq!(name_of(foreign), None, "{foreign:?}");
        }
    }

    #[test]
    fn claim_names_survive_text() {
        let id = ContenderId { keeper: KeeperId::from_u128(7), seq: u64::MAX };
        let (units, capacity) = (Units::count(3).expect("not zero"), Capacity::count(4).expect("not zero"));
        let name = format!("{}-2147483648", claim_prefix(id, units, capacity));
        let parsed = ClaimNode::parse(&name).expect("a claim");
        assert_eq!((parsed.contender.seq, parsed.sequence), (u64::MAX, 2_147_483_648));
        assert_eq!((parsed.units, parsed.capacity), (units, capacity));
    }

    #[test]
    fn a_claim_follows_the_one_right_before_it() {
        let names = ["0000000007", "0000000008", "0000000009", "2147483647", "-2147483648"];
        let names = names.map(|sequence| node(1, sequence));
        let follow = |before: usize, next: usize| follows(&names[before], &names[next]);
        assert!(follow(0, 1) && follow(1, 2));
        assert!(!follow(0, 0) && !follow(0, 2) && !follow(1, 0) && !follow(3, 4));
        assert!(!follows("0000000007", &names[1]), "a foreign node");
    }

    #[test]
    fn the_last_million_sequences_let_nobody_in() {
        let used_up = |sequence: &str| ClaimNode::parse(&node(1, sequence)).expect("a claim").is_used_up();
        assert!(!used_up("0000000000") && !used_up("2146483647"));
        assert!(used_up("2146483648") && used_up("2147483647") && used_up("-2147483648"));
        assert!(used_up("0000002147483648"));
    }

    #[test]
    fn claim_data_survives_text() {
        let process = ProcessInfo { host: "host \"1\"\n".into(), pid: 7, program: String::new() };
        let details = Details {
            kind: Kind::Election,
            process: Arc::new(process),
            label: Some("two\nlines, ü %".into()),
            value: Some("".into()),
        };
        let data = ClaimData {
            number: Some(9),
            evicted: true,
            reason: Some("a\nb".into()),
            fixed: true,
            held: Some(Duration::from_secs(2)),
            ..ClaimData::new(Duration::from_secs(30), details)
        };
        assert_eq!(ClaimData::from_bytes(&data.to_bytes()), data);
    }

    #[test]
    fn foreign_data_is_left_blank() {
        let data = ClaimData::from_bytes(b"\xff\xfe\nlease many\nkind none\n\n %%% \npid -1");
        assert_eq!((data.lease, data.details.process.pid), (Duration::ZERO, 0));
    }
}
