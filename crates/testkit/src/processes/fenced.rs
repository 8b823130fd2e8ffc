//! A counter that checks tokens, in a file: the resource of the tests between processes.

use std::{
    fs::{File, OpenOptions},
    io::{self, Read as _, Seek as _, SeekFrom, Write as _},
    path::Path,
};

/// A counter that refuses tokens below the highest floor it has seen.
#[derive(Debug)]
pub struct FencedCounter(File);

/// The contents of the file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Seen {
    /// The highest floor of all writes that were let through.
    pub highest: u64,
    /// How many workers asked to write.
    pub asked: u64,
    /// How many were let through.
    pub accepted: u64,
}

impl FencedCounter {
    /// The counter in this file, which is made if it is not there.
    ///
    /// # Errors
    /// If the file cannot be opened.
    pub fn open(path: &Path) -> io::Result<Self> {
        OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path).map(Self)
    }

    /// Asks to write with a token: gives the place among all requests to write, and whether it was let through.
    ///
    /// # Errors
    /// If the file cannot be read or written.
    pub fn admit(&mut self, token: u64, floor: u64) -> io::Result<(u64, bool)> {
        self.0.lock()?;
        let done = self.admit_locked(token, floor);
        self.0.unlock()?;
        done
    }

    fn admit_locked(&mut self, token: u64, floor: u64) -> io::Result<(u64, bool)> {
        let mut seen = self.seen()?;
        let accepted = token >= seen.highest;
        seen.asked += 1;
        if accepted {
            seen.accepted += 1;
            seen.highest = seen.highest.max(floor);
        }
        let bytes = [seen.highest, seen.asked, seen.accepted].map(u64::to_le_bytes).concat();
        self.0.seek(SeekFrom::Start(0))?;
        self.0.write_all(&bytes)?;
        Ok((seen.asked, accepted))
    }

    /// Reads the contents of the file.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn seen(&mut self) -> io::Result<Seen> {
        let mut bytes = Vec::new();
        self.0.seek(SeekFrom::Start(0))?;
        self.0.read_to_end(&mut bytes)?;
        let number = |place: usize| {
            let bytes = bytes.get(place * 8..place * 8 + 8).and_then(|bytes| bytes.try_into().ok());
            u64::from_le_bytes(bytes.unwrap_or_default())
        };
        Ok(Seen { highest: number(0), asked: number(1), accepted: number(2) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn older_tokens_are_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("counter");
        let mut counter = FencedCounter::open(&path).expect("opened");
        assert_eq!(counter.admit(5, 5).expect("asked"), (1, true));
        assert_eq!(counter.admit(4, 4).expect("asked"), (2, false));
        assert_eq!(counter.admit(7, 5).expect("asked"), (3, true));
        assert_eq!(counter.admit(6, 5).expect("asked"), (4, true), "those who hold together pass");
        let mut again = FencedCounter::open(&path).expect("opened");
        assert_eq!(again.seen().expect("read"), Seen { highest: 5, asked: 4, accepted: 3 });
    }
}
