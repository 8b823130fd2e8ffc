//! The details of a claim as text: the kind of lock and the process that asks.

use std::{fmt::Write, sync::Arc};

use lockkeeper_core::{
    store::{Details, Kind, ProcessInfo},
    support::percent,
};

use crate::layout::push_escaped;

/// Appends the details of a claim: words, with percent codes for blanks and control characters, and `-` for no value.
pub(super) fn push_details(text: &mut String, details: &Details) {
    let word = |text: &mut String, word: &str| push_escaped(text, word, |byte| byte <= b' ' || byte == b'%');
    let ProcessInfo { host, pid, program } = &*details.process;
    _ = write!(text, "{} {pid} ", details.kind.word());
    word(text, host);
    text.push(' ');
    word(text, program);
    for optional in [&details.label, &details.value] {
        text.push_str(if optional.is_some() { " =" } else { " -" });
        word(text, optional.as_deref().unwrap_or_default());
    }
}

/// Reads the text that [`push_details`] wrote.
pub(super) fn details(text: &str) -> Option<Details> {
    let mut words = text.split(' ');
    let kind = Kind::from_word(words.next()?)?;
    let pid = words.next()?.parse().ok()?;
    let process =
        ProcessInfo { pid, host: percent::decode(words.next()?)?, program: percent::decode(words.next()?)? };
    let mut optional = || match words.next()?.strip_prefix('=') {
        Some(word) => percent::decode(word).map(|text| Some(Arc::from(text))),
        None => Some(None),
    };
    Some(Details { kind, process: Arc::new(process), label: optional()?, value: optional()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn details_survive_whatever_is_in_them() {
        let process = Arc::new(ProcessInfo { host: String::new(), pid: 7, program: "a b%\n".into() });
        for (label, value) in [(None, Some("")), (Some("=- ü\0\t"), None), (Some(" "), Some("%25"))] {
            let written = Details {
                kind: Kind::Election,
                process: process.clone(),
                label: label.map(Arc::from),
                value: value.map(Arc::from),
            };
            let mut text = String::new();
            push_details(&mut text, &written);
            assert!(!text.contains(['\0', '\n']));
            assert_eq!(details(&text), Some(written));
        }
    }
}
