//! The database file on disk and the folder beside it: finds or makes them, and notices when the path no longer leads
//! to the same file.

use std::{
    fs::{self, DirBuilder},
    io,
    os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
};

use lockkeeper_core::{StoreError, StoreErrorKind};
use rustix::{
    fs::{Mode, OFlags},
    io::Errno,
};

use crate::{
    new_file,
    paths::beside,
    provenance,
    refusals::{refuse_hard_links, refuse_mounted_alone, refuse_network},
    trouble::{bad_file, file_trouble},
};

/// The database file and the folder beside it.
#[derive(Clone, Debug)]
pub(crate) struct DatabaseFile {
    /// The file's real path, without links.
    pub(crate) path: PathBuf,
    /// The folder of the keepers' own files.
    pub(crate) keepers: PathBuf,
    /// The permissions of the file, which our other files get too.
    mode: u32,
    /// The file, its log and its index, as they must stay while they are in use.
    in_use: Option<[FileId; 3]>,
}

/// The identity of a file on this host, whichever path leads to it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub(crate) struct FileId {
    pub(crate) device: u64,
    pub(crate) inode: u64,
}

impl DatabaseFile {
    /// Makes the file if it is not there, and checks that it may be used and that locks can work here. Its folder must
    /// be there: with a path that was mistyped, the locks of this process would mean nothing to the others.
    pub(crate) fn find(path: &Path) -> Result<Self, StoreError> {
        let given = std::path::absolute(path).map_err(|error| file_trouble("find", path, error))?;
        let folder = given.parent().unwrap_or(Path::new("/"));
        refuse_missing(folder)?;
        refuse_network(folder)?;
        if fs::symlink_metadata(&given).is_err() {
            new_file::make(&given)?;
        }
        let path = fs::canonicalize(&given).map_err(|error| file_trouble("find", &given, error))?;
        // A link may have led to another file system.
        let folder = path.parent().unwrap_or(Path::new("/"));
        refuse_network(folder)?;
        let facts = fs::metadata(&path).map_err(|error| file_trouble("look at", &path, error))?;
        if !facts.is_file() {
            return Err(bad_file(&path, "is not a file; name one"));
        }
        // SQLite takes a file of one byte for an empty one.
        if facts.len() == 1 {
            return Err(provenance::no_database(&path));
        }
        refuse_mounted_alone(&path, folder)?;
        refuse_hard_links(&path)?;
        provenance::refuse_foreign_untouched(&path, || beside(&path, "-wal").exists())?;
        let keepers = beside(&path, "-keepers");
        Ok(Self { path, keepers, mode: facts.mode() & 0o666, in_use: None })
    }

    /// Makes the folder of the keepers, once the file is known to be ours. Users that may use the file may use the
    /// folder.
    pub(crate) fn make_keepers_folder(&self) -> Result<(), StoreError> {
        let mode = self.mode | ((self.mode & 0o444) >> 2);
        make_folder(&self.keepers, mode)?;
        self.share_keepers_folder(mode)
            .map_err(|error| file_trouble("share the folder", &self.keepers, error))
    }

    /// Adds the permissions that the umask has removed, or that a crashed process had no time to add. Other bits stay,
    /// such as the one that gives new files the folder's group. A link is left alone, because the folder that it leads
    /// to may be private.
    fn share_keepers_folder(&self, mode: u32) -> io::Result<()> {
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let Ok(folder) = rustix::fs::open(&self.keepers, flags, Mode::empty()) else { return Ok(()) };
        let folder = fs::File::from(folder);
        let facts = folder.metadata()?;
        let has = facts.mode() & 0o7777;
        if has & mode == mode || facts.uid() != rustix::process::geteuid().as_raw() {
            return Ok(());
        }
        folder.set_permissions(fs::Permissions::from_mode(has | mode))
    }

    #[cfg(test)]
    pub(crate) fn prepare(path: &Path) -> Result<Self, StoreError> {
        let file = Self::find(path)?;
        file.make_keepers_folder()?;
        Ok(file)
    }

    /// Gives a file of ours the permissions of the database, regardless of the umask.
    pub(crate) fn share(&self, path: &Path) -> io::Result<()> {
        fs::set_permissions(path, fs::Permissions::from_mode(self.mode))
    }

    /// Syncs the log. SQLite must have it open, and have recovered it.
    ///
    /// Closing this second descriptor ends no lock: SQLite locks the database file and the index, and never the log.
    pub(crate) fn sync_log(&self) -> Result<(), StoreError> {
        let log = beside(&self.path, "-wal");
        let synced = fs::File::open(&log).and_then(|log| log.sync_data());
        synced.map_err(|error| file_trouble("sync", &log, error))
    }

    /// Remembers which files are in use, and returns the id of the database file. SQLite must have them open.
    pub(crate) fn remember(&mut self) -> Result<FileId, StoreError> {
        let in_use = self.file_ids()?;
        self.in_use = Some(in_use);
        Ok(in_use[0])
    }

    /// The database file in use.
    pub(crate) fn id(&self) -> FileId {
        self.in_use.map(|[file, ..]| file).unwrap_or_default()
    }

    /// Checks that the paths still lead to the files in use. If not, other processes may use other files by now, and
    /// locks in these mean nothing to them.
    pub(crate) fn check(&self) -> Result<(), StoreError> {
        let Some(in_use) = &self.in_use else { return Ok(()) };
        if self.file_ids()? == *in_use {
            return Ok(());
        }
        Err(self.replaced())
    }

    fn file_ids(&self) -> Result<[FileId; 3], StoreError> {
        let mut found = [FileId::default(); 3];
        for (id, suffix) in found.iter_mut().zip(["", "-wal", "-shm"]) {
            let path = beside(&self.path, suffix);
            let facts = rustix::fs::stat(&path).map_err(|error| match error {
                Errno::NOENT | Errno::NOTDIR => self.replaced(),
                error => file_trouble("look at", &path, error.into()),
            })?;
            *id = FileId { device: facts.st_dev, inode: facts.st_ino };
        }
        Ok(found)
    }

    fn replaced(&self) -> StoreError {
        StoreError::new(
            StoreErrorKind::Corrupt,
            format!(
                "{} (or its -wal or -shm file) was deleted or replaced while in use, so other processes may see other \
                 locks; put it back or restart every process that uses it",
                self.path.display()
            ),
        )
    }
}

/// Refuses a folder that does not exist.
fn refuse_missing(folder: &Path) -> Result<(), StoreError> {
    match fs::metadata(folder) {
        Ok(facts) if facts.is_dir() => Ok(()),
        Ok(_) => Err(bad_file(folder, "is not a folder; check the path")),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            Err(bad_file(folder, "does not exist; make it, or check the path"))
        }
        Err(error) => Err(file_trouble("look at", folder, error)),
    }
}

/// Makes a folder; an existing one stays as it is.
fn make_folder(folder: &Path, mode: u32) -> Result<(), StoreError> {
    if folder.is_dir() {
        return Ok(());
    }
    let made = DirBuilder::new().recursive(true).mode(mode).create(folder);
    made.map_err(|error| file_trouble("make the folder", folder, error))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode_of(path: &Path) -> u32 {
        fs::metadata(path).expect("it is there").mode() & 0o777
    }

    #[test]
    fn new_files_are_for_the_owner_only() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("locks.db");
        let found = DatabaseFile::prepare(&file).expect("it is made");
        assert_eq!(mode_of(&file), 0o600);
        assert_eq!(mode_of(&found.keepers), 0o700);
    }

    #[test]
    fn users_that_may_use_the_file_may_use_the_folder_beside_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("locks.db");
        fs::write(&file, "").expect("written");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o660)).expect("shared");
        let found = DatabaseFile::prepare(&file).expect("prepared");
        assert_eq!(mode_of(&found.keepers), 0o770);
        assert_eq!(mode_of(&file), 0o660, "an existing file stays as it was");
    }

    /// Else the files in it would belong to the group of the process that made them, and other users of the file's
    /// group could not use them.
    #[test]
    fn the_folder_of_the_keepers_passes_its_group_on_as_the_folder_around_it_does() {
        for (around, within) in [(0o2770, 0o2770), (0o770, 0o770)] {
            let folder = tempfile::tempdir().expect("a folder");
            fs::set_permissions(folder.path(), fs::Permissions::from_mode(around)).expect("shared");
            let file = folder.path().join("locks.db");
            fs::write(&file, "").expect("written");
            fs::set_permissions(&file, fs::Permissions::from_mode(0o660)).expect("shared");
            let found = DatabaseFile::prepare(&file).expect("prepared");
            let mode = fs::metadata(&found.keepers).expect("it is there").mode() & 0o7777;
            assert_eq!(mode, within, "{mode:o} in {around:o}");
        }
    }

    /// The process that made it may have crashed before it shared it.
    #[test]
    fn a_folder_that_was_not_shared_yet_is_shared() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("locks.db");
        fs::write(&file, "").expect("written");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o660)).expect("shared");
        let keepers = folder.path().join("locks.db-keepers");
        DirBuilder::new().mode(0o700).create(&keepers).expect("made");
        DatabaseFile::prepare(&file).expect("prepared");
        assert_eq!(mode_of(&keepers), 0o770);
        // It may be a link that leads to a private folder.
        let private = folder.path().join("private");
        DirBuilder::new().mode(0o700).create(&private).expect("made");
        fs::remove_dir(&keepers).expect("removed");
        std::os::unix::fs::symlink(&private, &keepers).expect("linked");
        DatabaseFile::prepare(&file).expect("prepared");
        assert_eq!(mode_of(&private), 0o700);
    }

    #[test]
    fn links_lead_to_one_file() {
        let folder = tempfile::tempdir().expect("a folder");
        let direct = DatabaseFile::prepare(&folder.path().join("locks.db")).expect("prepared");
        std::os::unix::fs::symlink(&direct.path, folder.path().join("other.db")).expect("linked");
        let linked = DatabaseFile::prepare(&folder.path().join("other.db")).expect("prepared");
        assert_eq!((direct.path, direct.keepers), (linked.path, linked.keepers));
    }

    #[test]
    fn a_folder_is_no_file() {
        let folder = tempfile::tempdir().expect("a folder");
        let error = DatabaseFile::prepare(folder.path()).expect_err("it is a folder");
        assert_eq!(error.kind(), StoreErrorKind::Config, "{error}");
    }
}
