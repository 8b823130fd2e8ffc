//! The rare properties of claims, as one word of a row: a dash for all others, so that they cost nothing.
//!
//! The word has these parts, in this order and without blanks: `f` (the lease is fixed: nobody renews it), `d` (born
//! detached), `n` and digits (the number of its grant is at least this), `r` and text (the reason of its eviction, with
//! percent codes). Versions that do not know a part pass it on. None of them decides who holds.

use std::{fmt::Write, sync::Arc};

use lockkeeper_core::{
    store::{Attachment, Claim},
    support::percent,
};

use crate::layout::push_escaped;

/// The properties in a row beyond those that every row has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Rarities {
    pub(super) fixed: bool,
    pub(super) detached: bool,
}

/// Appends the word of a claim.
pub(super) fn push(text: &mut String, claim: &Claim) {
    let before = text.len();
    if !claim.renewed {
        text.push('f');
    }
    if claim.attachment == Attachment::Detached {
        text.push('d');
    }
    if claim.at_least > 0 {
        // Writing to a string cannot fail.
        _ = write!(text, "n{}", claim.at_least);
    }
    if text.len() == before {
        text.push('-');
    }
}

/// Reads the properties that the view of a holder needs.
pub(super) fn read(word: &str) -> Rarities {
    let rest = word.strip_prefix('f');
    let fixed = rest.is_some();
    Rarities { fixed, detached: rest.unwrap_or(word).starts_with('d') }
}

/// The reason of an eviction as `evict.lua` takes it: `=` and text, or a dash if there is none.
pub(crate) fn reason_argument(reason: Option<&str>) -> String {
    let Some(reason) = reason else { return "-".to_owned() };
    let mut text = String::from("=");
    push_escaped(&mut text, reason, |byte| byte <= b' ' || byte == b'%');
    text
}

/// The reason that `renew.lua` gives.
pub(super) fn reason(word: &str) -> Option<Arc<str>> {
    percent::decode(word.strip_prefix('=')?).map(Into::into)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rarities_survive_text() {
        for (word, fixed, detached) in [
            ("-", false, false),
            ("f", true, false),
            ("d", false, true),
            ("fdn7", true, true),
            ("n7rfd", false, false),
        ] {
            assert_eq!(read(word), Rarities { fixed, detached }, "{word}");
        }
        for text in ["", "-", "a b%\n=", "ü"] {
            let word = reason_argument(Some(text));
            assert!(!word.contains(' ') && reason(&word).as_deref() == Some(text), "{word}");
        }
        assert_eq!(reason(&reason_argument(None)), None);
    }
}
