//! Where things are kept: paths under the namespace, and names written so that any of them is a valid
//! and unambiguous part of a path.
//!
//! ```text
//! <chroot>/<namespace>               "lockkeeper 1 <id of the store>"
//! <chroot>/<namespace>/locks/NAME    one per resource in use, with a node per claim; vanishes when empty
//! <chroot>/<namespace>/latches/NAME  a latch's counter
//! <chroot>/<namespace>/counted/OP    the answer to a latch operation, until its asker has it
//! <chroot>/<namespace>/fences/NAME   the highest floor that a fence has seen
//! ```

use lockkeeper_core::{ContenderId, Name};

/// The paths of one namespace.
#[derive(Clone, Debug)]
pub(crate) struct Paths {
    pub(crate) root: String,
}

/// What is kept beside each other under the root.
pub(crate) const FOLDERS: [&str; 4] = ["locks", "latches", "counted", "fences"];

impl Paths {
    pub(crate) fn folder(&self, folder: &str) -> String {
        format!("{}/{folder}", self.root)
    }

    pub(crate) fn locks(&self) -> String {
        self.folder("locks")
    }

    pub(crate) fn lock(&self, name: &Name) -> String {
        format!("{}/locks/{}", self.root, encode(name.as_str()))
    }

    pub(crate) fn latch(&self, name: &Name) -> String {
        format!("{}/latches/{}", self.root, encode(name.as_str()))
    }

    pub(crate) fn counted(&self, op: ContenderId) -> String {
        format!("{}/counted/{op}", self.root)
    }

    pub(crate) fn fence(&self, name: &Name) -> String {
        format!("{}/fences/{}", self.root, encode(name.as_str()))
    }
}

/// Letters, digits and a few signs stay readable; every other byte becomes `%XX`. A dot at the start
/// too, since `.` and `..` are no names to ZooKeeper.
pub(crate) fn encode(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for (place, byte) in text.bytes().enumerate() {
        if byte.is_ascii_alphanumeric() || b"-_:,+=@#".contains(&byte) || (byte == b'.' && place > 0) {
            encoded.push(char::from(byte));
        } else {
            encoded.push_str(&format!("%{byte:02X}"));
        }
    }
    encoded
}

/// The text that [`encode`] made `encoded` of; `None` for what it never makes.
pub(crate) fn decode(encoded: &str) -> Option<String> {
    unescape(encoded).filter(|text| encode(text) == encoded)
}

/// Undoes `%XX`, in paths and in URLs.
pub(crate) fn unescape(escaped: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(escaped.len());
    let mut rest = escaped.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(if byte == b'%' {
            let digit = |digit: u8| char::from(digit).to_digit(16);
            u8::try_from(digit(rest.next()?)? * 16 + digit(rest.next()?)?).ok()?
        } else {
            byte
        });
    }
    String::from_utf8(bytes).ok()
}

/// The name of a child of `locks`; `None` for what Lockkeeper did not put there.
pub(crate) fn name_of(encoded: &str) -> Option<Name> {
    Name::new(decode(encoded)?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_name_is_one_part_of_a_path_and_comes_back() {
        for text in ["stock/42", ".", "..", "a.b", "%2F", "zookeeper", "ü \u{10ffff}", "a\\b\"c'd"] {
            let encoded = encode(text);
            assert!(encoded.is_ascii() && !encoded.contains('/') && !encoded.starts_with('.'), "{encoded}");
            assert_eq!(decode(&encoded).as_deref(), Some(text));
        }
    }

    #[test]
    fn what_is_not_ours_has_no_name() {
        for foreign in ["", "a/b", "%2f", "%", "%4", "%zz", "%FF", "ü", "%41", "a b"] {
            assert_eq!(name_of(foreign), None, "{foreign:?}");
        }
    }
}
