//! Names of resources: validated once, cheap to copy, compared byte for byte.

use std::{fmt, sync::Arc};

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
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(Arc<str>);

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
        Ok(Self(text.into()))
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
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
