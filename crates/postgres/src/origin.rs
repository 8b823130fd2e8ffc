//! The server process and the store that a session belongs to, and the check that a read was answered there. Pure.

use lockkeeper_core::StoreError;

use crate::trouble::{corrupt, pooler, replica};

/// The place that a session's answers must come from.
///
/// Prepared statements have names that other programs use as well. On another server process, which a transaction pooler
/// may choose at any time, the same name may stand for a stranger's statement, on other tables. So each read says where it
/// was answered before anything is written.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Origin {
    /// The server process that has the prepared statements. `None` behind a pooler: nothing is prepared there.
    pub(crate) backend: Option<i64>,
    /// The id of the store.
    pub(crate) store: String,
}

/// A read's account of its transaction, in the text that [`HEADER`](crate::statements) makes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Header {
    /// The transaction, if it has locked anything.
    pub(crate) transaction: Option<String>,
    /// Whether commits wait for replicas.
    pub(crate) waits_for_replicas: bool,
}

impl Origin {
    /// Takes the header of a read that `backend` answered; 0 stands for a replica.
    ///
    /// # Errors
    /// If it was answered by another server process, or from another store.
    pub(crate) fn header(&self, backend: i64, text: &str) -> Result<Header, StoreError> {
        if backend == 0 {
            return Err(replica());
        }
        if self.backend.is_some_and(|own| own != backend) {
            return Err(pooler());
        }
        let mut words = text.split(' ');
        let (Some(transaction), Some(commits), Some(store), None) =
            (words.next(), words.next(), words.next(), words.next())
        else {
            return Err(corrupt("the table store has an id that Lockkeeper does not write; restore it"));
        };
        if store != self.store {
            return Err(another_store());
        }
        let transaction = Some(transaction).filter(|text| *text != "-").map(str::to_owned);
        Ok(Header { transaction, waits_for_replicas: commits != "alone" })
    }
}

/// The tables are those of another store than at first.
pub(crate) fn another_store() -> StoreError {
    corrupt(
        "another store answers under this URL: its tables were made anew, or the URL leads elsewhere now; connect again",
    )
}

#[cfg(test)]
mod tests {
    use lockkeeper_core::StoreErrorKind;

    use super::*;

    #[test]
    fn only_answers_of_its_own_process_and_store_count() {
        let origin = Origin { backend: Some(7), store: "abc".into() };
        let header = origin.header(7, "123 alone abc").expect("its own");
        assert_eq!(header, Header { transaction: Some("123".into()), waits_for_replicas: false });
        let header = origin.header(7, "- replicated abc").expect("its own");
        assert_eq!(header, Header { transaction: None, waits_for_replicas: true });
        let elsewhere = origin.header(8, "123 alone abc").expect_err("another process");
        assert!(elsewhere.to_string().contains("pooler=true") && !elsewhere.maybe_applied(), "{elsewhere}");
        for wrong in ["123 alone other", "", "123 alone", "123 alone abc d"] {
            assert_eq!(origin.header(7, wrong).expect_err(wrong).kind(), StoreErrorKind::Corrupt);
        }
        assert!(origin.header(0, "- alone abc").expect_err("a replica").is_passing());
        let pooled = Origin { backend: None, store: "abc".into() };
        assert!(pooled.header(8, "- alone abc").is_ok());
        assert!(Origin::default().header(8, "- alone abc").is_err(), "no store is known yet");
    }
}
