//! Wakes as text: one row per wake, after a header.
//!
//! Pure: the sockets stand in `wakes.rs`.

use std::{fmt::Write as _, time::Duration};

use lockkeeper_core::{
    Name,
    store::{GrantNotice, Topic, Wake},
};

/// The first row of every message. A keeper skips messages of another version, and learns by its next poll instead.
pub(crate) const HEADER: &str = "lockkeeper 1\n";

/// A topic as it is stored and sent. Grants reach their keepers without a subscription.
pub(crate) fn topic_words(topic: &Topic) -> Option<(&'static str, &Name)> {
    match topic {
        Topic::Changes(name) => Some(("holders", name)),
        Topic::Latch(name) => Some(("latch", name)),
        _ => None,
    }
}

/// Adds a wake to a message. Names have no control characters, so tabs and line ends can separate them.
pub(crate) fn write(message: &mut String, wake: &Wake) {
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

/// The wakes in a message. What this version does not know is skipped.
pub(crate) fn read(message: &[u8]) -> impl Iterator<Item = Wake> {
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

    #[test]
    fn wakes_survive_text() {
        let grant = GrantNotice {
            contender: ContenderId { keeper: KeeperId::random(), seq: 7 },
            number: 1 << 52,
            floor: 3,
            stamp: u64::MAX,
            waited: Duration::from_micros(12),
            lease: Duration::from_secs(3),
        };
        let name = Name::new("stock/42 \"é\"").expect("valid");
        let mut message = HEADER.to_owned();
        write(&mut message, &Wake::Granted(name.clone(), grant));
        write(&mut message, &Wake::Changed(Topic::Changes(name.clone())));
        write(&mut message, &Wake::Changed(Topic::Latch(name.clone())));
        let wakes: Vec<Wake> = read(message.as_bytes()).collect();
        let [Wake::Granted(first, read_grant), Wake::Changed(second), Wake::Changed(third)] = &wakes[..]
        else {
            panic!("{wakes:?}")
        };
        assert_eq!((first, read_grant), (&name, &grant));
        assert_eq!((second, third), (&Topic::Changes(name.clone()), &Topic::Latch(name)));
        for nonsense in ["", "granted", "granted\tx\ty", "other\tx"] {
            assert!(read_row(nonsense).is_none(), "{nonsense:?}");
        }
        assert_eq!(read(b"lockkeeper 2\nlatch\tx\n").count(), 0, "another version");
    }
}
