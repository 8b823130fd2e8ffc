//! The file's place on disk: makes it, refuses where it cannot work, and notices when it is no
//! longer the same file.

use std::{
    ffi::OsStr,
    fs::{self, DirBuilder, OpenOptions},
    io,
    os::unix::{
        ffi::OsStrExt,
        fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt},
    },
    path::{Path, PathBuf},
};

use lockkeeper_core::{KeeperId, StoreError, StoreErrorKind};
use rustix::{
    fs::{AtFlags, CWD, Mode, OFlags, RenameFlags, StatxFlags},
    io::Errno,
};

use crate::{
    layout,
    liveness::{is_old, keeper_from},
    trouble::file_trouble,
};

/// The database file and what lies beside it.
#[derive(Clone, Debug)]
pub(crate) struct DatabaseFile {
    /// The file's real path, without links.
    pub(crate) path: PathBuf,
    /// The folder of the keepers' own files.
    pub(crate) keepers: PathBuf,
    /// The permissions of the file, which those beside it get too.
    mode: u32,
    /// The file, its log and its index, as they must stay while they are in use.
    same: Option<[FileId; 3]>,
}

/// Which file a path meant.
pub(crate) type FileId = (u64, u64);

impl DatabaseFile {
    /// Makes the file if it is not there, and checks that it may be used and that locks can work here.
    pub(crate) fn find(path: &Path) -> Result<Self, StoreError> {
        let path = std::path::absolute(path).map_err(|error| file_trouble("find", path, error))?;
        let folder = path.parent().unwrap_or(Path::new("/"));
        make_folder(folder, 0o700)?;
        refuse_network(folder)?;
        if fs::symlink_metadata(&path).is_err() {
            make_file(&path)?;
        }
        let file = fs::canonicalize(&path).map_err(|error| file_trouble("find", &path, error))?;
        // A link may have led to another file system.
        let folder = file.parent().unwrap_or(Path::new("/"));
        refuse_network(folder)?;
        let facts = fs::metadata(&file).map_err(|error| file_trouble("look at", &file, error))?;
        if !facts.is_file() {
            return Err(config(&file, "is not a file; name one"));
        }
        refuse_mounted_alone(&file, folder)?;
        refuse_hard_links(&file)?;
        layout::refuse_untouched(&file, || beside(&file, "-wal").exists())?;
        let keepers = beside(&file, "-keepers");
        Ok(Self { path: file, keepers, mode: facts.mode() & 0o666, same: None })
    }

    /// Makes the folder of the keepers, once the file is known to be ours. Who may use the file may use the folder.
    pub(crate) fn make_room(&self) -> Result<(), StoreError> {
        let mode = self.mode | ((self.mode & 0o444) >> 2);
        make_folder(&self.keepers, mode)?;
        self.share_room(mode).map_err(|error| file_trouble("share the folder", &self.keepers, error))
    }

    /// Adds what the umask has taken, or what a maker who died did not come to. What else is set stays, such as the bit
    /// that gives new files the folder's group. A link is left alone: where it leads may not be meant to be shared.
    fn share_room(&self, mode: u32) -> io::Result<()> {
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
        file.make_room()?;
        Ok(file)
    }

    /// Gives a file of ours the permissions of the database, whatever the umask is.
    pub(crate) fn share(&self, path: &Path) -> io::Result<()> {
        fs::set_permissions(path, fs::Permissions::from_mode(self.mode))
    }

    /// Remembers which files are in use, and gives the database's own identity. Called while they
    /// are open, so SQLite keeps them there.
    pub(crate) fn remember(&mut self) -> Result<FileId, StoreError> {
        let same = self.identities()?;
        self.same = Some(same);
        Ok(same[0])
    }

    /// Whether the paths still mean the files that are in use. If not, others may be using other
    /// ones by now, and locks in these mean nothing to them.
    pub(crate) fn check(&self) -> Result<(), StoreError> {
        let Some(same) = &self.same else { return Ok(()) };
        if self.identities()? == *same {
            return Ok(());
        }
        Err(self.replaced())
    }

    fn identities(&self) -> Result<[FileId; 3], StoreError> {
        let mut found = [(0, 0); 3];
        for (identity, suffix) in found.iter_mut().zip(["", "-wal", "-shm"]) {
            let path = beside(&self.path, suffix);
            let facts = rustix::fs::stat(&path).map_err(|error| match error {
                Errno::NOENT | Errno::NOTDIR => self.replaced(),
                error => file_trouble("look at", &path, error.into()),
            })?;
            *identity = (facts.st_dev, facts.st_ino);
        }
        Ok(found)
    }

    fn replaced(&self) -> StoreError {
        StoreError::new(
            StoreErrorKind::Corrupt,
            format!(
                "{} (or its -wal or -shm file) was deleted or replaced while in use, so others may see other \
                 locks; put it back or restart every process that uses it",
                self.path.display()
            ),
        )
    }
}

/// The file with `suffix` added to its name, as SQLite names those beside it.
fn beside(file: &Path, suffix: &str) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

fn config(file: &Path, what: &str) -> StoreError {
    StoreError::new(StoreErrorKind::Config, format!("{} {what}", file.display()))
}

/// Makes a folder; one that is there stays as it is.
fn make_folder(folder: &Path, mode: u32) -> Result<(), StoreError> {
    if folder.is_dir() {
        return Ok(());
    }
    let made = DirBuilder::new().recursive(true).mode(mode).create(folder);
    made.map_err(|error| file_trouble("make the folder", folder, error))
}

/// Makes an empty file for its owner only. It is made under another name: closing a file that is
/// in use in this process would end SQLite's locks on it.
fn make_file(path: &Path) -> Result<(), StoreError> {
    clear_unnamed(path, is_old);
    let new = beside(path, &format!("{UNNAMED}{}", KeeperId::random()));
    let made = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new);
    made.map_err(|error| file_trouble("make", path, error))?;
    let moved = match rustix::fs::renameat_with(CWD, &new, CWD, path, RenameFlags::NOREPLACE) {
        // File systems that cannot rename so can link so.
        Err(Errno::INVAL | Errno::NOSYS) => {
            let linked = fs::hard_link(&new, path);
            // Whoever finds two names of one file removes this one, too.
            drop(fs::remove_file(&new));
            linked
        }
        Err(error) => fs::remove_file(&new).and(Err(error.into())),
        Ok(()) => Ok(()),
    };
    match moved {
        // Somebody else was faster, with the same file in mind.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        moved => moved.map_err(|error| file_trouble("make", path, error)),
    }
}

/// Between the name of a file and an id, it is the name under which the file is made.
const UNNAMED: &str = "-new-";

/// Removes files that were made to become `path`, and whose makers died, as far as `is_over` says so.
fn clear_unnamed(path: &Path, is_over: impl Fn(&Path) -> bool) {
    let Some(start) = beside(path, UNNAMED).file_name().map(OsStr::to_owned) else { return };
    let folder = path.parent().unwrap_or(Path::new("/"));
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let id = name.as_bytes().strip_prefix(start.as_bytes()).and_then(|id| str::from_utf8(id).ok());
        if id.and_then(keeper_from).is_some() && is_over(&entry.path()) {
            // Somebody else may have been faster.
            drop(fs::remove_file(entry.path()));
        }
    }
}

/// File systems whose files other hosts may have open too, by the number that `statfs` gives.
const NETWORK: &[(u32, &str)] = &[
    (0x0000_6969, "NFS"),
    (0x0000_517b, "SMB"),
    (0xff53_4d42, "CIFS"),
    (0xfe53_4d42, "SMB2"),
    (0x5346_414f, "AFS"),
    (0x00c3_6400, "Ceph"),
    (0x0102_1997, "9P"),
    (0x0116_1970, "GFS2"),
    (0x7461_636f, "OCFS2"),
    (0x0bd0_0bd0, "Lustre"),
    (0x4750_4653, "GPFS"),
    (0x1983_0326, "BeeGFS"),
    (0x2003_0528, "PVFS2"),
    (0x7375_7245, "Coda"),
    (0x0000_564c, "NCP"),
    (0x786f_4256, "a VirtualBox shared folder"),
    (0x6573_5546, "FUSE, which may be remote"),
];

fn refuse_network(folder: &Path) -> Result<(), StoreError> {
    let facts = rustix::fs::statfs(folder).map_err(|error| file_trouble("look at", folder, error.into()))?;
    match network_name(facts.f_type as u32) {
        None => Ok(()),
        Some(name) => Err(config(
            folder,
            &format!(
                "is on {name}: there SQLite's locks do not hold between hosts, and hosts share no clock; put \
                 the file on a local disk, or use a store with a server"
            ),
        )),
    }
}

fn network_name(kind: u32) -> Option<&'static str> {
    NETWORK.iter().find(|(number, _)| *number == kind).map(|(_, name)| *name)
}

/// A file that is mounted by itself (as into a container) has its log elsewhere than outside.
fn refuse_mounted_alone(file: &Path, folder: &Path) -> Result<(), StoreError> {
    let mount_of = |path: &Path| {
        let facts = rustix::fs::statx(CWD, path, AtFlags::empty(), StatxFlags::MNT_ID).ok()?;
        (facts.stx_mask & StatxFlags::MNT_ID.bits() != 0).then_some(facts.stx_mnt_id)
    };
    match (mount_of(file), mount_of(folder)) {
        (Some(file_mount), Some(folder_mount)) if file_mount != folder_mount => Err(config(
            file,
            "is mounted as a single file, so that SQLite's log beside it is not shared; mount its folder",
        )),
        _ => Ok(()),
    }
}

/// Each name of a file has a log of its own, so the locks of two names would not meet.
fn refuse_hard_links(file: &Path) -> Result<(), StoreError> {
    let look = || fs::metadata(file).map_err(|error| file_trouble("look at", file, error));
    let facts = look()?;
    if facts.nlink() <= 1 {
        return Ok(());
    }
    // Where it cannot be made otherwise, a new file has two names until its maker removes one, who may have died.
    let identity = (facts.dev(), facts.ino());
    let is_same = |other: &Path| fs::metadata(other).is_ok_and(|it| (it.dev(), it.ino()) == identity);
    clear_unnamed(file, is_same);
    if look()?.nlink() <= 1 {
        return Ok(());
    }
    Err(config(
        file,
        "has more than one name (a hard link), and SQLite would mix up their logs; keep one name",
    ))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn mode_of(path: &Path) -> u32 {
        fs::metadata(path).expect("it is there").mode() & 0o777
    }

    #[test]
    fn what_it_makes_is_for_the_owner_only() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("new/deep/locks.db");
        let found = DatabaseFile::prepare(&file).expect("it is made");
        assert_eq!(mode_of(&folder.path().join("new")), 0o700);
        assert_eq!(mode_of(&folder.path().join("new/deep")), 0o700);
        assert_eq!(mode_of(&file), 0o600);
        assert_eq!(mode_of(&found.keepers), 0o700);
    }

    #[test]
    fn who_may_use_the_file_may_use_the_folder_beside_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("locks.db");
        fs::write(&file, "").expect("written");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o660)).expect("shared");
        let found = DatabaseFile::prepare(&file).expect("prepared");
        assert_eq!(mode_of(&found.keepers), 0o770);
        assert_eq!(mode_of(&file), 0o660, "what was there stays as it was");
    }

    /// Else the files in it would belong to the group of whoever made them, and the others of the
    /// file's group could not use them.
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

    /// Whoever made it may have died before it could share it.
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
        // Somebody may have put a link there that leads to what is not meant for others.
        let private = folder.path().join("private");
        DirBuilder::new().mode(0o700).create(&private).expect("made");
        fs::remove_dir(&keepers).expect("removed");
        std::os::unix::fs::symlink(&private, &keepers).expect("linked");
        DatabaseFile::prepare(&file).expect("prepared");
        assert_eq!(mode_of(&private), 0o700);
    }

    /// Where a file is made by linking, its maker may die before the name that it was made under is gone.
    #[test]
    fn what_a_maker_of_the_file_left_is_cleared_away() {
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

    #[test]
    fn links_lead_to_one_place() {
        let folder = tempfile::tempdir().expect("a folder");
        let direct = DatabaseFile::prepare(&folder.path().join("locks.db")).expect("prepared");
        std::os::unix::fs::symlink(&direct.path, folder.path().join("other.db")).expect("linked");
        let linked = DatabaseFile::prepare(&folder.path().join("other.db")).expect("prepared");
        assert_eq!((direct.path, direct.keepers), (linked.path, linked.keepers));
    }

    #[test]
    fn network_file_systems_are_known() {
        assert_eq!(network_name(0x6969), Some("NFS"));
        assert_eq!(network_name(0xff53_4d42), Some("CIFS"));
        assert_eq!(network_name(0xef53), None, "ext4 is local");
        assert_eq!(network_name(0x0102_1994), None, "tmpfs is local");
    }

    #[test]
    fn a_folder_is_no_file() {
        let folder = tempfile::tempdir().expect("a folder");
        let error = DatabaseFile::prepare(folder.path()).expect_err("it is a folder");
        assert_eq!(error.kind(), StoreErrorKind::Config, "{error}");
    }
}
