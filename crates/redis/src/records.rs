//! The record of the server as last heard, and the tag in front of it at the server.
//!
//! A record is long, and comes with every answer to a member's client. So each record that is written has a new tag, and a
//! script that finds the tag that the client knows need not send the record.

use std::sync::{Arc, Mutex};

use lockkeeper_core::{KeeperId, support};

/// The tag of no record.
const NO_TAG: &str = "-";
/// The first character of a tag, and the number of its bytes.
const BEGINS: char = '#';
const LENGTH: usize = 16;

/// A tag that no record has had.
pub(crate) fn new_tag() -> String {
    format!("{BEGINS}{}", KeeperId::random()).chars().take(LENGTH).collect()
}

/// A record with its tag.
#[derive(Debug)]
struct Tagged {
    tag: Box<str>,
    record: Arc<str>,
}

/// A record as it was known at some moment.
#[derive(Clone, Debug)]
pub(crate) struct Known(Option<Arc<Tagged>>);

impl Known {
    /// The tag that scripts compare, or the mark of no record.
    pub(crate) fn tag(&self) -> &str {
        self.0.as_ref().map_or(NO_TAG, |known| &known.tag)
    }

    /// The record, if a script has found its tag.
    pub(crate) fn record(&self) -> Option<Arc<str>> {
        self.0.as_ref().map(|known| known.record.clone())
    }
}

/// The record as last heard.
#[derive(Debug, Default)]
pub(crate) struct Records(Mutex<Option<Arc<Tagged>>>);

impl Records {
    pub(crate) fn known(&self) -> Known {
        Known(support::lock(&self.0).clone())
    }

    /// Returns the record in the text that the server keeps, and knows it from now on; `None` if it keeps none.
    pub(crate) fn learn(&self, kept: &str) -> Option<Arc<str>> {
        if kept.is_empty() {
            return None;
        }
        let (tag, record) = match kept.split_at_checked(LENGTH) {
            Some((tag, record)) if tag.starts_with(BEGINS) => (tag, Arc::from(record)),
            _ => return Some(kept.into()),
        };
        *support::lock(&self.0) = Some(Arc::new(Tagged { tag: tag.into(), record: Arc::clone(&record) }));
        Some(record)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_known_by_its_tag() {
        let records = Records::default();
        assert_eq!((records.known().tag(), records.known().record()), (NO_TAG, None));
        let tag = new_tag();
        assert!(tag.len() == LENGTH && tag.starts_with(BEGINS) && tag != new_tag(), "{tag}");
        assert_eq!(records.learn(&format!("{tag}a record")).as_deref(), Some("a record"));
        let known = records.known();
        assert_eq!((known.tag(), known.record().as_deref()), (&*tag, Some("a record")));
        // Neither of these can be told by a tag.
        assert_eq!(records.learn("").as_deref(), None);
        let strange = "a record that another program wrote";
        assert_eq!(records.learn(strange).as_deref(), Some(strange));
        assert_eq!(records.known().tag(), &*tag);
        // A script answers about the tag that was sent, even if another was learnt meanwhile.
        records.learn(&format!("{}another one", new_tag()));
        assert_eq!(known.record().as_deref(), Some("a record"));
    }
}
