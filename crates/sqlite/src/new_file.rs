//! Makes the database file if there is none, and removes the leftovers of processes that crashed in the middle of that.

use std::{
    ffi::OsStr,
    fs::{self, OpenOptions},
    io,
    os::unix::{ffi::OsStrExt, fs::OpenOptionsExt},
    path::Path,
    time::Duration,
};

use lockkeeper_core::{KeeperId, StoreError};
use rustix::{
    fs::{CWD, RenameFlags},
    io::Errno,
};

use crate::{paths::beside, trouble::file_trouble};

/// Makes an empty file for its owner only, unless there is one.
///
/// The file is made under another name, because closing a file that is in use in this process would end SQLite's locks
/// on it.
pub(crate) fn make(path: &Path) -> Result<(), StoreError> {
    clear_unnamed(path, is_old);
    let new = beside(path, &format!("{UNNAMED}{}", KeeperId::random()));
    let made = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new);
    made.map_err(|error| file_trouble("make", path, error))?;
    let moved = match rustix::fs::renameat_with(CWD, &new, CWD, path, RenameFlags::NOREPLACE) {
        // File systems that cannot rename like this can link.
        Err(Errno::INVAL | Errno::NOSYS) => {
            let linked = fs::hard_link(&new, path);
            // If this fails, the next process that finds two names of one file removes it.
            drop(fs::remove_file(&new));
            linked
        }
        Err(error) => fs::remove_file(&new).and(Err(error.into())),
        Ok(()) => Ok(()),
    };
    match moved {
        // Another process has just made the same file.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        moved => moved.map_err(|error| file_trouble("make", path, error)),
    }
}

/// The text between the name of the database and an id, in the name under which the file is made.
const UNNAMED: &str = "-new-";

/// Removes the files that crashed processes left on the way to `path`: those for which `is_left` is true.
pub(crate) fn clear_unnamed(path: &Path, is_left: impl Fn(&Path) -> bool) {
    let Some(start) = beside(path, UNNAMED).file_name().map(OsStr::to_owned) else { return };
    let folder = path.parent().unwrap_or(Path::new("/"));
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let id = name.as_bytes().strip_prefix(start.as_bytes()).and_then(|id| str::from_utf8(id).ok());
        if id.is_some_and(|id| id.parse::<KeeperId>().is_ok()) && is_left(&entry.path()) {
            // Another process may have removed it first.
            drop(fs::remove_file(entry.path()));
        }
    }
}

/// Whether a file is older than any process takes to make and name one.
pub(crate) fn is_old(path: &Path) -> bool {
    let age = fs::metadata(path).and_then(|facts| facts.modified()).map(|at| at.elapsed());
    matches!(age, Ok(Ok(age)) if age > Duration::from_secs(60))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::file::DatabaseFile;

    /// Where a file is made by linking, its maker may be killed before it removes the first name.
    #[test]
    fn leftovers_of_making_the_file_are_removed() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("locks.db");
        let new = |id| beside(&file, &format!("-new-{}", KeeperId::from_u128(id)));
        let long_ago = std::time::SystemTime::now() - Duration::from_secs(3600);
        fs::File::create(new(1)).expect("made").set_modified(long_ago).expect("set");
        fs::File::create(new(2)).expect("made");
        DatabaseFile::find(&file).expect("made");
        assert!(!new(1).exists(), "its maker is gone");
        assert!(new(2).exists(), "its maker may be about to name it");
        fs::hard_link(&file, new(3)).expect("linked");
        DatabaseFile::find(&file).expect("it has one name again");
        assert!(!new(3).exists());
    }
}
