//! Notices changes of files by looking once a second, which works on every file system and for links that are switched.

use std::{
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    time::Duration,
};

/// The pause between two looks at the files.
const EVERY: Duration = Duration::from_secs(1);

/// A file that is not there for so many looks in a row is reported.
const MISSING: u32 = 5;

/// The facts that tell one version of a file from another. `changed` also covers its owner and rights, which decide
/// whether it can be read.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Version {
    inode: u64,
    length: u64,
    written: (i64, i64),
    changed: (i64, i64),
}

fn version(file: &Path) -> Option<Version> {
    let found = fs::metadata(file).ok()?;
    Some(Version {
        inode: found.ino(),
        length: found.len(),
        written: (found.mtime(), found.mtime_nsec()),
        changed: (found.ctime(), found.ctime_nsec()),
    })
}

/// Files, and the versions of them that were read.
pub(crate) struct Followed {
    files: Vec<PathBuf>,
    read: Vec<Option<Version>>,
}

/// Whether these versions are tried for the first time. Only then a failure is logged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Attempt {
    First,
    Again,
}

/// Whether files could be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Loaded {
    Good,
    Bad,
}

impl Followed {
    /// Takes files that are read right after this: a change in between is noticed later.
    pub(crate) fn before_reading(files: Vec<PathBuf>) -> Self {
        let read = look(&files);
        Self { files, read }
    }

    /// Calls `load` each time that one of the files has changed, and every second while the files cannot be used. It
    /// waits for a file that is being written, or that is not there for a moment while it is replaced. A file that
    /// stays away is loaded anyway, so that the failure is reported.
    pub(crate) async fn follow(mut self, mut load: impl FnMut(Attempt) -> Loaded) {
        let mut before = self.read.clone();
        let mut failed: Option<Vec<Option<Version>>> = None;
        let mut missing = 0;
        loop {
            tokio::time::sleep(EVERY).await;
            let now = look(&self.files);
            let rests = std::mem::replace(&mut before, now.clone()) == now;
            missing = if now.iter().all(Option::is_some) { 0 } else { missing + 1 };
            if now == self.read || !rests || (1..MISSING).contains(&missing) {
                continue;
            }
            let attempt = if failed.as_ref() == Some(&now) { Attempt::Again } else { Attempt::First };
            match load(attempt) {
                // A file that changed while it was read is read once more when it rests.
                Loaded::Good if look(&self.files) == now => self.read = now,
                Loaded::Good => {}
                Loaded::Bad => failed = Some(now),
            }
        }
    }
}

fn look(files: &[PathBuf]) -> Vec<Option<Version>> {
    files.iter().map(|file| version(file)).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use lockkeeper::support;

    use super::*;

    #[tokio::test]
    async fn a_file_that_stays_away_is_told_once() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("file");
        fs::write(&file, "one").expect("written");
        let followed = Followed::before_reading(vec![file.clone()]);
        fs::remove_file(&file).expect("removed");
        let (attempts, mut heard) = tokio::sync::mpsc::unbounded_channel();
        let follow = followed.follow(|attempt| {
            attempts.send(attempt).expect("a reader");
            Loaded::Bad
        });
        let heard = async {
            let first = heard.recv().await;
            (first, heard.recv().await)
        };
        tokio::select! {
            () = follow => {}
            heard = heard => assert_eq!(heard, (Some(Attempt::First), Some(Attempt::Again))),
            () = tokio::time::sleep(EVERY * 30) => panic!("it is not told"),
        }
    }

    #[tokio::test]
    async fn a_file_that_cannot_be_used_is_tried_again_and_one_that_can_is_not() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("file");
        fs::write(&file, "one").expect("written");
        let followed = Followed::before_reading(vec![file.clone()]);
        // After it was read for the first time, and before it is followed.
        fs::write(&file, "other").expect("written");
        let attempts = Arc::new(Mutex::new(Vec::new()));
        let load = |attempt| {
            let mut attempts = support::lock(&attempts);
            attempts.push(attempt);
            if attempts.len() < 3 { Loaded::Bad } else { Loaded::Good }
        };
        let follow = followed.follow(load);
        assert!(tokio::time::timeout(EVERY * 13 / 2, follow).await.is_err());
        assert_eq!(*support::lock(&attempts), [Attempt::First, Attempt::Again, Attempt::Again]);
    }
}
