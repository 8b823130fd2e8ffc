//! What stands in a claim's node, for people and for whoever takes the claim over: lines of text.

use std::{sync::Arc, time::Duration};

use lockkeeper_core::{
    GrantNumber,
    store::{Card, Facts, Kind},
};

use crate::path::{decode, encode};

/// The data of a claim's node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Note {
    pub(crate) lease: Duration,
    pub(crate) card: Card,
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

impl Note {
    pub(crate) fn new(lease: Duration, card: Card) -> Self {
        let (granted, evicted, detached, retired) = (false, false, false, false);
        Self { lease, card, number: None, granted, evicted, detached, retired }
    }

    /// The number of the claim whose node was made by the transaction `czxid`.
    pub(crate) fn number(&self, czxid: i64) -> GrantNumber {
        self.number.unwrap_or_else(|| GrantNumber::try_from(czxid).unwrap_or(0))
    }

    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let Card { kind, facts, label, value } = &self.card;
        let mut text = format!(
            "lease {}\nkind {}\nhost {}\npid {}\nprogram {}\n",
            self.lease.as_millis(),
            kind.word(),
            encode(&facts.host),
            facts.pid,
            encode(&facts.program),
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
        let mut facts = Facts { host: String::new(), pid: 0, program: String::new() };
        let mut card = Card { kind: Kind::Mutex, facts: Arc::new(facts.clone()), label: None, value: None };
        let mut lease = Duration::ZERO;
        let mut note = Self::new(lease, card.clone());
        for line in text.lines() {
            let (word, said) = line.split_once(' ').unwrap_or((line, ""));
            match word {
                "lease" => lease = Duration::from_millis(said.parse().unwrap_or(0)),
                "kind" => card.kind = Kind::from_word(said).unwrap_or(card.kind),
                "host" => facts.host = decode(said).unwrap_or_default(),
                "pid" => facts.pid = said.parse().unwrap_or(0),
                "program" => facts.program = decode(said).unwrap_or_default(),
                "label" => card.label = decode(said).map(Into::into),
                "value" => card.value = decode(said).map(Into::into),
                "number" => note.number = said.parse().ok(),
                "granted" => note.granted = true,
                "evicted" => note.evicted = true,
                "detached" => note.detached = true,
                "retired" => note.retired = true,
                _ => {}
            }
        }
        card.facts = Arc::new(facts);
        Self { lease, card, ..note }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_survive_text() {
        let facts = Facts { host: "host \"1\"\n".into(), pid: 7, program: String::new() };
        let card = Card {
            kind: Kind::Election,
            facts: Arc::new(facts),
            label: Some("two\nlines, ü %".into()),
            value: Some("".into()),
        };
        let note = Note { number: Some(9), evicted: true, ..Note::new(Duration::from_secs(30), card) };
        assert_eq!(Note::from_bytes(&note.to_bytes()), note);
    }

    #[test]
    fn foreign_data_is_no_trouble() {
        let note = Note::from_bytes(b"\xff\xfe\nlease many\nkind none\n\n %%% \npid -1");
        assert_eq!((note.lease, note.card.facts.pid), (Duration::ZERO, 0));
    }
}
