//! What stands in a claim's node, for people and for whoever takes the claim over: lines of text.

use std::{sync::Arc, time::Duration};

use lockkeeper_core::{
    GrantNumber,
    store::{Details, Kind, ProcessInfo},
};

use crate::layout::{decode, encode};

/// The data of a claim's node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct ClaimData {
    pub(crate) lease: Duration,
    pub(crate) details: Details,
    /// The number, where it is not that of the node itself: the claim was taken over.
    pub(crate) number: Option<GrantNumber>,
    /// It waited and was admitted: those behind it look again when they see this change.
    pub(crate) granted: bool,
    /// An operator wants it back.
    pub(crate) evicted: bool,
    /// Only its lease ends it.
    pub(crate) detached: bool,
    /// Its owner has left before the minimum hold.
    pub(crate) retired: bool,
}

impl ClaimData {
    pub(crate) fn new(lease: Duration, details: Details) -> Self {
        let (granted, evicted, detached, retired) = (false, false, false, false);
        Self { lease, details, number: None, granted, evicted, detached, retired }
    }

    /// The number of the claim whose node was made by the transaction `czxid`.
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
        for (word, said) in [("label", label), ("value", value)] {
            if let Some(said) = said {
                text.push_str(&format!("{word} {}\n", encode(said)));
            }
        }
        if let Some(number) = self.number {
            text.push_str(&format!("number {number}\n"));
        }
        let flags = [
            ("granted", self.granted),
            ("evicted", self.evicted),
            ("detached", self.detached),
            ("retired", self.retired),
        ];
        for (word, _) in flags.into_iter().filter(|(_, set)| *set) {
            text.push_str(&format!("{word}\n"));
        }
        text.into_bytes()
    }

    /// Reads a node. Data that is not ours leaves blanks, since the node's name alone decides.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Self {
        let text = String::from_utf8_lossy(bytes);
        let mut process = ProcessInfo { host: String::new(), pid: 0, program: String::new() };
        let mut details =
            Details { kind: Kind::Mutex, process: Arc::new(process.clone()), label: None, value: None };
        let mut lease = Duration::ZERO;
        let mut note = Self::new(lease, details.clone());
        for line in text.lines() {
            let (word, said) = line.split_once(' ').unwrap_or((line, ""));
            match word {
                "lease" => lease = Duration::from_millis(said.parse().unwrap_or(0)),
                "kind" => details.kind = Kind::from_word(said).unwrap_or(details.kind),
                "host" => process.host = decode(said).unwrap_or_default(),
                "pid" => process.pid = said.parse().unwrap_or(0),
                "program" => process.program = decode(said).unwrap_or_default(),
                "label" => details.label = decode(said).map(Into::into),
                "value" => details.value = decode(said).map(Into::into),
                "number" => note.number = said.parse().ok(),
                "granted" => note.granted = true,
                "evicted" => note.evicted = true,
                "detached" => note.detached = true,
                "retired" => note.retired = true,
                _ => {}
            }
        }
        details.process = Arc::new(process);
        Self { lease, details, ..note }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_survive_text() {
        let process = ProcessInfo { host: "host \"1\"\n".into(), pid: 7, program: String::new() };
        let details = Details {
            kind: Kind::Election,
            process: Arc::new(process),
            label: Some("two\nlines, ü %".into()),
            value: Some("".into()),
        };
        let note =
            ClaimData { number: Some(9), evicted: true, ..ClaimData::new(Duration::from_secs(30), details) };
        assert_eq!(ClaimData::from_bytes(&note.to_bytes()), note);
    }

    #[test]
    fn foreign_data_is_no_trouble() {
        let note = ClaimData::from_bytes(b"\xff\xfe\nlease many\nkind none\n\n %%% \npid -1");
        assert_eq!((note.lease, note.details.process.pid), (Duration::ZERO, 0));
    }
}
