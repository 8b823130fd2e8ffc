//! Notices that files have changed: looks once a second, which works on every file system and for links that are switched.

use std::{
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    time::Duration,
};

/// How often files are looked at.
const EVERY: Duration = Duration::from_secs(1);

/// What tells one version of a file from another.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Version {
    inode: u64,
    length: u64,
    changed: (i64, i64),
}

fn version(file: &Path) -> Option<Version> {
    let found = fs::metadata(file).ok()?;
    Some(Version { inode: found.ino(), length: found.len(), changed: (found.mtime(), found.mtime_nsec()) })
}

/// Calls `changed` each time that one of `files` is another than before. A file that is not there for a moment, while it is
/// replaced, is waited for.
pub(crate) async fn follow(files: Vec<PathBuf>, mut changed: impl FnMut()) {
    let look =
        |files: &[PathBuf]| -> Vec<Option<Version>> { files.iter().map(|file| version(file)).collect() };
    let mut seen = look(&files);
    loop {
        tokio::time::sleep(EVERY).await;
        let now = look(&files);
        if now != seen && now.iter().all(Option::is_some) {
            seen = now;
            changed();
        }
    }
}
