//! Entries as text: words with a space between, in ASCII, which every encoding of a database can store.

use std::{fmt::Write as _, sync::Arc};

use lockkeeper_core::{
    model::WAIT_LEASE,
    store::{Details, ProcessInfo, StoreTime},
    support::percent,
};

use crate::{BadRow, EntryRow, kind_from};

/// Writes an entry as text.
pub fn encode(row: &EntryRow) -> String {
    let mut text = String::with_capacity(192);
    let flags = [row.queued, row.confirmed, row.renewed, row.evicted, row.retired, row.detached];
    let letters = flags.iter().zip("qcrexd".chars()).filter(|(set, _)| **set).map(|(_, letter)| letter);
    // Writing to a string cannot fail.
    _ = write!(text, "{} -{} {}", row.contender, letters.collect::<String>(), row.turn);
    for number in [
        row.number,
        row.units,
        row.lease,
        row.min_hold,
        row.began,
        row.since,
        row.expires,
        row.stamp,
        row.at_least,
        row.details.process.pid.into(),
    ] {
        _ = write!(text, " {number}");
    }
    let details = &row.details;
    push(&mut text, Some(details.kind.word()));
    push(&mut text, Some(&details.process.host));
    push(&mut text, Some(&details.process.program));
    push(&mut text, details.label.as_deref());
    push(&mut text, details.value.as_deref());
    push(&mut text, row.reason.as_deref());
    text
}

/// Appends a word. Text is written with a letter in front, so that none and empty differ.
fn push(text: &mut String, word: Option<&str>) {
    text.push(' ');
    match word {
        None => text.push('-'),
        Some(word) => {
            text.push('=');
            let plain = |_, byte: u8| byte.is_ascii_graphic() && byte != b'%';
            text.push_str(&percent::encode(word, plain));
        }
    }
}

/// Reads an entry from its text.
///
/// # Errors
/// If this program does not write such a text.
pub fn decode(text: &str) -> Result<EntryRow, BadRow> {
    read(text).ok_or(BadRow::at("entry"))
}

fn read(text: &str) -> Option<EntryRow> {
    let mut words = text.split(' ');
    let contender = words.next()?.parse().ok()?;
    let flags = words.next()?.strip_prefix('-')?;
    let flag = |letter| flags.contains(letter);
    let mut number = || words.next()?.parse::<i64>().ok();
    let (turn, number, units, lease, min_hold, began, since, expires, stamp, at_least, pid) = (
        number()?,
        number()?,
        number()?,
        number()?,
        number()?,
        number()?,
        number()?,
        number()?,
        number()?,
        number()?,
        number()?,
    );
    let mut word = || -> Option<Option<String>> {
        match words.next()? {
            "-" => Some(None),
            word => Some(Some(percent::decode(word.strip_prefix('=')?)?)),
        }
    };
    let kind = kind_from(&word()??).ok()?;
    let (host, program) = (word()??, word()??);
    let process = Arc::new(ProcessInfo { host, pid: u32::try_from(pid).ok()?, program });
    let (label, value) = (word()?.map(Arc::from), word()?.map(Arc::from));
    let reason = word()?.map(Arc::from);
    words.next().is_none().then_some(())?;
    Some(EntryRow {
        contender,
        queued: flag('q'),
        turn,
        number,
        units,
        lease,
        min_hold,
        began,
        since,
        expires,
        stamp,
        at_least,
        confirmed: flag('c'),
        renewed: flag('r'),
        evicted: flag('e'),
        retired: flag('x'),
        detached: flag('d'),
        reason,
        details: Details { kind, process, label, value },
    })
}

/// Tells when an entry will have ended, unless it is written again before.
pub fn ends(row: &EntryRow) -> i64 {
    if row.queued {
        StoreTime(row.began.cast_unsigned()).after(WAIT_LEASE).0.cast_signed()
    } else {
        row.expires
    }
}

#[cfg(test)]
mod tests {
    use lockkeeper_core::{ContenderId, KeeperId, store::Kind};

    use super::*;

    fn row() -> EntryRow {
        let process = ProcessInfo { host: "höst 1".into(), pid: u32::MAX, program: String::new() };
        EntryRow {
            contender: ContenderId { keeper: KeeperId::from_u128(7), seq: u64::MAX },
            queued: true,
            turn: 1,
            number: 2,
            units: 3,
            lease: 4,
            min_hold: 5,
            began: 6,
            since: 7,
            expires: 8,
            stamp: i64::MIN,
            at_least: 10,
            confirmed: false,
            renewed: true,
            evicted: false,
            retired: true,
            detached: false,
            reason: Some("a b%\u{0}\n".into()),
            details: Details {
                kind: Kind::RwLock,
                process: Arc::new(process),
                label: None,
                value: Some("".into()),
            },
        }
    }

    #[test]
    fn entries_survive_text() {
        let other =
            EntryRow { queued: false, confirmed: true, evicted: true, detached: true, reason: None, ..row() };
        for row in [row(), other] {
            let text = encode(&row);
            assert!(text.bytes().all(|byte| byte == b' ' || byte.is_ascii_graphic()), "{text}");
            assert_eq!(decode(&text).expect("it was written so"), row, "{text}");
        }
    }

    #[test]
    fn other_text_is_refused() {
        let good = encode(&row());
        let more = format!("{good} x");
        for bad in ["", "x", &good[1..], &good[..good.len() - 4], &more, &good.replace("rw_lock", "door")] {
            assert!(decode(bad).is_err(), "{bad}");
        }
    }
}
