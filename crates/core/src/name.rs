//! Names of resources: validated once, cheap to copy, compared byte for byte.

use std::{
    collections::HashMap,
    fmt,
    hash::{BuildHasher, BuildHasherDefault, Hash, Hasher, RandomState},
    sync::{Arc, LazyLock},
};

use crate::invalid::InvalidInput;

/// The name of a resource, latch or fence: 1 to 512 bytes of UTF-8 without control characters.
///
/// Names are compared byte for byte: `Stock` and `stock` are two resources.
///
/// ```
/// use lockkeeper::store::Name;
///
/// assert!(Name::new("stock/42").is_ok());
/// assert!(Name::new("").is_err());
/// assert!(Name::new("two\nlines").is_err());
/// ```
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Name {
    text: Arc<str>,
    /// Computed once: names are looked up several times for each lock.
    hash: u64,
}

/// A map by name that uses the hash which each name carries.
pub(crate) type NameMap<V> = HashMap<Name, V, BuildHasherDefault<NameHasher>>;

/// Takes the hash of a name as it is.
#[derive(Default)]
pub(crate) struct NameHasher(u64);

impl Hasher for NameHasher {
    fn write(&mut self, _: &[u8]) {
        unreachable!("a name hashes as one number");
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

impl Hash for Name {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.hash);
    }
}

impl Name {
    /// The longest name, in bytes.
    pub const MAX_BYTES: usize = 512;

    /// Checks `text` and makes a name of it.
    pub fn new(text: impl AsRef<str>) -> Result<Self, InvalidInput> {
        let text = text.as_ref();
        if text.is_empty() {
            return Err(InvalidInput::new("the name is empty; give 1 to 512 bytes of text"));
        }
        if text.len() > Self::MAX_BYTES {
            return Err(InvalidInput::new(format!(
                "the name has {} bytes; the longest allowed has {}: shorten or hash it",
                text.len(),
                Self::MAX_BYTES
            )));
        }
        if let Some(bad) = text.chars().find(|c| c.is_control()) {
            return Err(InvalidInput::new(format!(
                "the name contains the control character U+{:04X}; remove it",
                bad as u32
            )));
        }
        // With keys of this process, so that nobody can choose names that collide.
        static KEYS: LazyLock<RandomState> = LazyLock::new(RandomState::new);
        Ok(Self { text: text.into(), hash: KEYS.hash_one(text) })
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.text
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.text, f)
    }
}

impl std::str::FromStr for Name {
    type Err = InvalidInput;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::new(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_in_bytes_and_inclusive() {
        assert!(Name::new("a".repeat(512)).is_ok());
        assert!(Name::new("a".repeat(513)).is_err());
        assert!(Name::new("é".repeat(256)).is_ok());
        assert!(Name::new("é".repeat(257)).is_err());
    }

    #[test]
    fn control_characters_are_named() {
        let error = Name::new("a\u{1b}[31m").expect_err("escape is a control character");
        assert!(error.to_string().contains("U+001B"), "{error}");
        assert!(Name::new("a\u{85}b").is_err(), "C1 controls count too");
    }
}
