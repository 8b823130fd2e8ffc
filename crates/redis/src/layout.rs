//! The names of keys and channels, and the version of the layout. All names start with the namespace, and all of one
//! resource share a hash tag, so a cluster keeps them together.

use std::{borrow::Cow, sync::LazyLock};

use lockkeeper_core::{
    ContenderId, KeeperId, Name, StoreError, StoreErrorKind, store::Topic, support::percent,
};

/// The version of the layout. All others are refused.
const VERSION: u32 = 2;
/// How many slots a cluster has.
pub(crate) const SLOTS: usize = 16384;

/// Makes the keys of one namespace.
#[derive(Clone, Debug)]
pub(crate) struct Keys {
    /// The namespace and a colon.
    prefix: String,
    /// The key of the high-water mark that all resources share, unless this is a cluster.
    high_water: String,
    /// The key of the record that the server keeps for the quorum that it is a member of.
    member: String,
    /// Whether this is a cluster, where all keys of a script must be in the slot of its resource.
    sharded: bool,
}

impl Keys {
    pub(crate) fn new(namespace: &str, sharded: bool) -> Self {
        let key = |what: &str| format!("{namespace}:{what}");
        Self { prefix: key(""), high_water: key("mark"), member: key("member"), sharded }
    }

    pub(crate) fn is_sharded(&self) -> bool {
        self.sharded
    }

    /// The resource itself: one key.
    pub(crate) fn resource(&self, name: &Name) -> String {
        let mut key = String::with_capacity(self.prefix.len() + name.as_str().len() + 2);
        key.push_str(&self.prefix);
        key.push('{');
        push_escaped(&mut key, name.as_str(), |byte| matches!(byte, b'{' | b'}' | b'%'));
        key.push('}');
        key
    }

    fn of(&self, name: &Name, what: &str) -> String {
        self.resource(name) + what
    }

    /// The high-water mark of grant numbers: one for all resources, or in a cluster one for each slot, since a script
    /// works in one slot.
    pub(crate) fn high_water(&self, name: &Name) -> Cow<'_, str> {
        if !self.sharded {
            return Cow::Borrowed(&self.high_water);
        }
        let tag = TAGS[slot(&self.resource(name))];
        let letters = tag.map(char::from);
        Cow::Owned(format!("{}{{{}{}{}}}:mark", self.prefix, letters[0], letters[1], letters[2]))
    }

    /// The high-water mark that all resources share, unless this is a cluster.
    pub(crate) fn shared_high_water(&self) -> &str {
        &self.high_water
    }

    pub(crate) fn latch(&self, name: &Name) -> String {
        self.of(name, ":latch")
    }

    /// The answer to one operation on a latch, kept for its late copies.
    pub(crate) fn operation(&self, name: &Name, op: ContenderId) -> String {
        format!("{}:op:{op}", self.resource(name))
    }

    pub(crate) fn fence(&self, name: &Name) -> String {
        self.of(name, ":fence")
    }

    /// The key of the record that the server keeps for the quorum that it is a member of.
    pub(crate) fn member(&self) -> &str {
        &self.member
    }

    /// The version of the layout and the id of the store: see [`new_identity`].
    pub(crate) fn identity(&self) -> String {
        format!("{}layout", self.prefix)
    }

    /// The channel of all grants to a keeper, unless this is a cluster.
    pub(crate) fn grants(&self, keeper: KeeperId) -> String {
        format!("{}k:{keeper}", self.prefix)
    }

    /// The channel of `topic` for `keeper`; `None` for topics of a later engine.
    pub(crate) fn channel(&self, topic: &Topic, keeper: KeeperId) -> Option<String> {
        Some(match topic {
            Topic::Grants(name) if self.sharded => format!("{}:k:{keeper}", self.resource(name)),
            Topic::Grants(_) => self.grants(keeper),
            Topic::Changes(name) => self.of(name, ":changed"),
            Topic::Latch(name) => self.of(name, ":latch:changed"),
            _ => return None,
        })
    }

    /// The topic of a message without content on `channel`.
    pub(crate) fn topic(&self, channel: &str) -> Option<Topic> {
        let (key, what) = channel.rsplit_once('}')?;
        let name = self.name_in(key)?;
        match what {
            ":changed" => Some(Topic::Changes(name)),
            ":latch:changed" => Some(Topic::Latch(name)),
            _ => None,
        }
    }

    /// The name of the resource whose key is `key`.
    pub(crate) fn name(&self, key: &str) -> Option<Name> {
        self.name_in(key.strip_suffix('}')?)
    }

    /// The name of the latch whose key is `key`.
    pub(crate) fn name_of_latch(&self, key: &str) -> Option<Name> {
        self.name_in(key.strip_suffix("}:latch")?)
    }

    fn name_in(&self, key: &str) -> Option<Name> {
        Name::new(percent::decode(key.strip_prefix(&self.prefix)?.strip_prefix('{')?)?).ok()
    }

    /// A pattern for `SCAN` that matches resources whose names start with `prefix`, and few other keys.
    pub(crate) fn pattern(&self, prefix: &str) -> String {
        let mut start = self.prefix.clone() + "{";
        push_escaped(&mut start, prefix, |byte| matches!(byte, b'{' | b'}' | b'%'));
        let mut pattern = String::new();
        for letter in start.chars() {
            if matches!(letter, '*' | '?' | '[' | ']' | '\\') {
                pattern.push('\\');
            }
            pattern.push(letter);
        }
        pattern + "*}"
    }

    /// The same for latches.
    pub(crate) fn latch_pattern(&self, prefix: &str) -> String {
        self.pattern(prefix) + ":latch"
    }
}

/// A new value for the key of [`Keys::identity`]: the version and a random id.
pub(crate) fn new_identity() -> String {
    format!("{VERSION} {}", KeeperId::random())
}

/// The id of a store, if its layout has this version.
pub(crate) fn store_id(identity: &str) -> Result<&str, StoreError> {
    let corrupt = |message: &str| Err(StoreError::new(StoreErrorKind::Corrupt, message));
    let Some((version, id)) = identity.split_once(' ') else {
        return corrupt(
            "the key of the layout is not one of this program; choose another namespace= in the URL",
        );
    };
    match version.parse::<u32>() {
        Ok(VERSION) => Ok(id),
        Ok(..VERSION) => corrupt(
            "this namespace was written by an older version of this program; once nothing of it is held, remove the keys \
             that begin with it, except those that end with :fence, or choose another namespace= in the URL",
        ),
        _ => corrupt("this namespace was written by a newer version of this program; update this one"),
    }
}

/// The slot of a key: that of its hash tag.
pub(crate) fn slot(key: &str) -> usize {
    let tag = key.split_once('{').and_then(|(_, rest)| rest.split_once('}')).map(|(tag, _)| tag);
    let tag = tag.filter(|tag| !tag.is_empty()).unwrap_or(key);
    usize::from(crc16(tag.as_bytes())) % SLOTS
}

/// CRC-16/XMODEM, from which a cluster computes the slot of a key.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, byte| crc16_with(crc, *byte))
}

/// The same with one more byte.
fn crc16_with(crc: u16, byte: u8) -> u16 {
    (0..8).fold(
        crc ^ (u16::from(byte) << 8),
        |crc, _| {
            if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 }
        },
    )
}

/// A hash tag for each slot: the first three letters or digits, in order, that are in it.
static TAGS: LazyLock<Vec<[u8; 3]>> = LazyLock::new(|| {
    let letters = || (b'0'..=b'9').chain(b'A'..=b'Z').chain(b'a'..=b'z');
    let mut tags = vec![[0; 3]; SLOTS];
    for first in letters() {
        for second in letters() {
            let two = crc16(&[first, second]);
            for third in letters() {
                let tag = &mut tags[usize::from(crc16_with(two, third)) % SLOTS];
                if tag[0] == 0 {
                    *tag = [first, second, third];
                }
            }
        }
    }
    tags
});

/// Appends `text` with percent codes for the ASCII characters that `special` names. All others stay as they are.
pub(crate) fn push_escaped(into: &mut String, text: &str, special: impl Fn(u8) -> bool) {
    // Almost no text has such characters, and every request has texts.
    if !text.bytes().any(|byte| byte.is_ascii() && special(byte)) {
        return into.push_str(text);
    }
    for letter in text.chars() {
        match u8::try_from(letter) {
            Ok(byte) if byte.is_ascii() && special(byte) => {
                into.push('%');
                for digit in [byte >> 4, byte & 15] {
                    into.push(char::from_digit(u32::from(digit), 16).unwrap_or('0').to_ascii_uppercase());
                }
            }
            _ => into.push(letter),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> Name {
        Name::new(text).expect("a good name")
    }

    #[test]
    fn keys_are_injective_and_stay_in_the_slot_of_their_resource() {
        let names = ["a", "a}b", "}", "{}", "{", "a{b}c", "%7D", "%", "ü", "a:latch", "a}:latch", "}:fence"];
        for sharded in [false, true] {
            let keys = Keys::new("ns", sharded);
            let mut seen = std::collections::HashSet::new();
            for text in names {
                let name = name(text);
                let key = keys.resource(&name);
                assert_eq!(keys.name(&key), Some(name.clone()));
                assert_eq!(keys.name_of_latch(&keys.latch(&name)), Some(name.clone()));
                assert_eq!(keys.name_of_latch(&key), None);
                for other in [key.clone(), keys.latch(&name), keys.fence(&name)] {
                    assert_eq!(slot(&other), slot(&key), "{other}");
                    assert!(seen.insert(other.clone()) && other.starts_with("ns:"), "{other}");
                }
                if sharded {
                    let mark = keys.high_water(&name);
                    assert_eq!(slot(&mark), slot(&key));
                    assert!(mark.starts_with("ns:{") && mark.ends_with("}:mark"), "{mark}");
                    assert_eq!(keys.name(&mark), None, "no resource has such a key");
                }
                for topic in [Topic::Changes(name.clone()), Topic::Latch(name)] {
                    let channel = keys.channel(&topic, KeeperId::from_u128(1)).expect("known");
                    assert_eq!(keys.topic(&channel), Some(topic));
                }
            }
        }
    }

    #[test]
    fn slots_are_those_of_the_servers() {
        assert_eq!(slot("foo"), 12182);
        assert_eq!(slot("ns:{foo}:x"), 12182);
        assert_eq!(slot("123456789"), 12739);
    }

    #[test]
    fn every_slot_has_a_tag() {
        for (slot, tag) in TAGS.iter().enumerate() {
            assert!(tag.iter().all(u8::is_ascii_alphanumeric), "{slot}: {tag:?}");
            assert_eq!(usize::from(crc16(tag)) % SLOTS, slot, "{tag:?}");
        }
    }

    #[test]
    fn patterns_match_nothing_by_accident() {
        assert_eq!(Keys::new("ns", false).pattern("a*[%"), "ns:{a\\*\\[%25*}");
    }
}
