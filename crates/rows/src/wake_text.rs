//! Wakes as text: one row per wake, after a header.

use std::{fmt::Write as _, time::Duration};

use lockkeeper_core::{
    Name,
    store::{GrantNotice, Topic, Wake},
};

/// The first row of every message. A keeper skips messages of another version, and learns by its next poll instead.
pub const HEADER: &str = "lockkeeper 1\n";

/// No wake needs more bytes than this, the header not counted.
pub const LARGEST_ROW: usize = Name::MAX_BYTES + 256;

/// A topic as it is stored and sent: a word and a name. `None` for grants, which reach their keepers without a
/// subscription.
pub fn topic_words(topic: &Topic) -> Option<(&'static str, &Name)> {
    match topic {
        Topic::Changes(name) => Some(("holders", name)),
        Topic::Latch(name) => Some(("latch", name)),
        _ => None,
    }
}

/// Packs all wakes that can be sent into messages of at most `limit` bytes each, which has to fit the header and a row.
pub fn messages<'a>(wakes: impl IntoIterator<Item = &'a Wake>, limit: usize) -> Vec<String> {
    debug_assert!(limit >= HEADER.len() + LARGEST_ROW, "a message has room for one wake");
    let mut messages: Vec<String> = Vec::new();
    for wake in wakes {
        let mut row = String::new();
        write_row(&mut row, wake);
        match messages.last_mut() {
            Some(message) if message.len() + row.len() <= limit => message.push_str(&row),
            _ if row.is_empty() => {}
            _ => messages.push(format!("{HEADER}{row}")),
        }
    }
    messages
}

/// Names have no control characters, so tabs and line ends can separate them.
fn write_row(message: &mut String, wake: &Wake) {
    let written = match wake {
        Wake::Granted(name, grant) => writeln!(
            message,
            "granted\t{name}\t{}\t{}\t{}\t{}\t{}\t{}",
            grant.contender,
            grant.number,
            grant.floor,
            grant.stamp,
            grant.waited.as_micros(),
            grant.lease.as_micros()
        ),
        Wake::Changed(topic) => match topic_words(topic) {
            Some((word, name)) => writeln!(message, "{word}\t{name}"),
            None => Ok(()),
        },
        // No keeper sends the others.
        _ => Ok(()),
    };
    written.expect("writing to a string cannot fail");
}

/// Reads the wakes in a message. Rows that this version does not know are skipped.
pub fn read(message: &[u8]) -> impl Iterator<Item = Wake> {
    let rows = str::from_utf8(message).ok().and_then(|message| message.strip_prefix(HEADER));
    rows.into_iter().flat_map(str::lines).filter_map(read_row)
}

fn read_row(row: &str) -> Option<Wake> {
    let mut words = row.split('\t');
    let word = words.next()?;
    let name = Name::new(words.next()?).ok()?;
    match word {
        "holders" => Some(Wake::Changed(Topic::Changes(name))),
        "latch" => Some(Wake::Changed(Topic::Latch(name))),
        "granted" => {
            let contender = words.next()?.parse().ok()?;
            let mut number = || words.next()?.parse::<u64>().ok();
            let grant = GrantNotice {
                contender,
                number: number()?,
                floor: number()?,
                stamp: number()?,
                waited: Duration::from_micros(number()?),
                lease: Duration::from_micros(number()?),
            };
            Some(Wake::Granted(name, grant))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use lockkeeper_core::{ContenderId, KeeperId};

    use super::*;

    fn grant(number: u64) -> GrantNotice {
        GrantNotice {
            contender: ContenderId { keeper: KeeperId::from_u128(u128::MAX), seq: u64::MAX },
            number,
            floor: 3,
            stamp: u64::MAX,
            waited: Duration::from_micros(12),
            lease: Duration::from_secs(3),
        }
    }

    #[test]
    fn wakes_survive_text() {
        let name = Name::new("stock/42 \"é\"").expect("valid");
        let sent = [
            Wake::Granted(name.clone(), grant(1 << 52)),
            Wake::Resync,
            Wake::Changed(Topic::Changes(name.clone())),
            Wake::Changed(Topic::Grants(name.clone())),
            Wake::Changed(Topic::Latch(name.clone())),
        ];
        let messages = messages(&sent, 8000);
        let [message] = &messages[..] else { panic!("{messages:?}") };
        let wakes: Vec<Wake> = read(message.as_bytes()).collect();
        let [Wake::Granted(first, read_grant), Wake::Changed(second), Wake::Changed(third)] = &wakes[..]
        else {
            panic!("{wakes:?}")
        };
        assert_eq!((first, *read_grant), (&name, grant(1 << 52)));
        assert_eq!((second, third), (&Topic::Changes(name.clone()), &Topic::Latch(name)));
        for nonsense in ["", "granted", "granted\tx\ty", "other\tx"] {
            assert!(read_row(nonsense).is_none(), "{nonsense:?}");
        }
        assert_eq!(read(b"lockkeeper 2\nlatch\tx\n").count(), 0, "another version");
    }

    #[test]
    fn many_wakes_are_split_and_none_is_lost() {
        let longest = Name::new("n".repeat(Name::MAX_BYTES)).expect("valid");
        let all = GrantNotice {
            number: u64::MAX,
            floor: u64::MAX,
            waited: Duration::from_micros(u64::MAX),
            lease: Duration::from_micros(u64::MAX),
            ..grant(0)
        };
        let mut row = String::new();
        write_row(&mut row, &Wake::Granted(longest.clone(), all));
        assert!(row.len() <= LARGEST_ROW, "{}", row.len());
        let sent: Vec<Wake> = (1..=100).map(|number| Wake::Granted(longest.clone(), grant(number))).collect();
        let messages = messages(&sent, 7999);
        assert!(messages.len() > 1 && messages.iter().all(|message| message.len() <= 7999));
        let numbers = messages.iter().flat_map(|message| read(message.as_bytes())).map(|wake| match wake {
            Wake::Granted(_, grant) => grant.number,
            other => panic!("{other:?}"),
        });
        assert!(numbers.eq(1..=100));
        assert!(super::messages(&[Wake::Resync], 7999).is_empty(), "nothing to send is no message");
    }
}
