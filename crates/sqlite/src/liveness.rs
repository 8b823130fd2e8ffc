//! Life files: they show which keepers are alive, and which have crashed.
//!
//! Each keeper locks a file named by its random id before it writes its first row, and keeps it open. The operating
//! system ends the lock with the process, also in a crash. It is a `flock`, because a record lock would end with any
//! close of the same file in the process.

use std::{
    collections::BTreeSet,
    fs::{self, File, OpenOptions},
    io::{self, Write as _},
    os::{fd::OwnedFd, unix::fs::OpenOptionsExt},
    path::Path,
    sync::{Mutex, MutexGuard},
};

use lockkeeper_core::{KeeperId, StoreError, support};
use rustix::fs::FlockOperation;

use crate::{
    file::DatabaseFile,
    new_file::is_old,
    paths::{LIFE, NEW, WAKE, file_of, life_of},
    trouble::file_trouble,
};

/// The state of a keeper, as far as its life file shows it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Liveness {
    /// Its process runs.
    Alive,
    /// Its process has ended without closing the keeper.
    Crashed,
    /// It has no life file, or one that cannot be looked at. Its leases decide.
    Unknown,
}

/// A keeper's own life file, locked until this and every [`life_line`](Self::life_line) is closed.
#[derive(Debug)]
pub(crate) struct LifeFile {
    file: File,
    keeper: KeeperId,
}

/// The keepers of this process. Process ids cannot tell, because two containers may have the same.
static OURS: Mutex<BTreeSet<KeeperId>> = Mutex::new(BTreeSet::new());

fn ours() -> MutexGuard<'static, BTreeSet<KeeperId>> {
    support::lock(&OURS)
}

/// Whether this is a keeper of this process.
pub(crate) fn is_of_this_process(keeper: KeeperId) -> bool {
    ours().contains(&keeper)
}

impl LifeFile {
    /// Shows that `keeper` is alive.
    pub(crate) fn begin(database: &DatabaseFile, keeper: KeeperId) -> Result<Self, StoreError> {
        // Other processes may look at a file with the final name at any time, so it is locked before it gets that name.
        let new = file_of(&database.keepers, keeper, NEW);
        let begin = || {
            let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
            database.share(&new)?;
            rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive)?;
            // A full disk is no reason to fail: without this text, others look at the lock more often.
            drop(file.write_all(text_of(std::process::id()).unwrap_or_default().as_bytes()));
            fs::rename(&new, life_of(&database.keepers, keeper))?;
            ours().insert(keeper);
            Ok(Self { file, keeper })
        };
        begin().map_err(|error| file_trouble("make the life file", &new, error))
    }

    /// Another handle of the same lock, for a process that outlives this one.
    pub(crate) fn life_line(&self) -> io::Result<OwnedFd> {
        Ok(self.file.try_clone()?.into())
    }
}

impl Drop for LifeFile {
    fn drop(&mut self) {
        ours().remove(&self.keeper);
    }
}

/// The text of a life file: the process id, and the namespace in which it is valid.
fn text_of(pid: u32) -> Option<String> {
    let namespace = fs::read_link("/proc/self/ns/pid").ok()?;
    Some(format!("{pid} {}\n", namespace.display()))
}

/// The id of a keeper's process, if it is valid in the namespace of this process.
pub(crate) fn process_of(keepers: &Path, keeper: KeeperId) -> Option<u32> {
    let text = fs::read_to_string(life_of(keepers, keeper)).ok()?;
    let pid = text.split_once(' ')?.0.parse().ok()?;
    (text_of(pid)? == text).then_some(pid)
}

/// Whether a keeper is alive. It never makes a file, because an unlocked file would show a live keeper as crashed.
pub(crate) fn of(keepers: &Path, keeper: KeeperId) -> Liveness {
    look_at(&life_of(keepers, keeper)).unwrap_or(Liveness::Unknown)
}

/// Reads the state of a keeper from its life file. After an error the keeper may be alive or not.
fn look_at(path: &Path) -> io::Result<Liveness> {
    let file = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Liveness::Unknown),
        file => file?,
    };
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared) {
        Ok(()) => Ok(Liveness::Crashed),
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(Liveness::Alive),
        Err(error) => Err(error.into()),
    }
}

/// Removes a keeper's files from the folder, once its rows are gone.
pub(crate) fn remove_files(keepers: &Path, keeper: KeeperId) {
    // Other processes find a crashed keeper by its life file, so that goes last.
    for kind in [WAKE, LIFE] {
        // Another process may have removed it first.
        drop(fs::remove_file(file_of(keepers, keeper, kind)));
    }
}

/// Whether any keeper in the folder is alive; an error if one that may be alive cannot be looked at.
pub(crate) fn any_alive(keepers: &Path) -> Result<bool, StoreError> {
    let unreadable = |error| file_trouble("look into", keepers, error);
    for entry in fs::read_dir(keepers).map_err(unreadable)? {
        let path = entry.map_err(unreadable)?.path();
        if path.extension().is_some_and(|kind| kind == LIFE)
            && look_at(&path).map_err(|error| file_trouble("look at", &path, error))? == Liveness::Alive
        {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Returns the crashed keepers in the folder. Also removes life files that no keeper came to use.
pub(crate) fn crashed(keepers: &Path) -> Vec<KeeperId> {
    let mut crashed = Vec::new();
    let is_free = |path: &Path| matches!(look_at(path), Ok(Liveness::Crashed));
    for entry in fs::read_dir(keepers).into_iter().flatten().flatten() {
        let path = entry.path();
        let kind = path.extension().and_then(|kind| kind.to_str());
        let keeper = path.file_stem().and_then(|stem| stem.to_str()?.parse::<KeeperId>().ok());
        match (kind, keeper) {
            (Some(LIFE), Some(keeper)) if is_free(&path) => crashed.push(keeper),
            // A process crashed between making and naming it. Young files are not looked at: that takes their lock for
            // a moment, just when the process that makes them needs it.
            (Some(NEW), Some(_)) if is_old(&path) && is_free(&path) => {
                drop(fs::remove_file(&path));
            }
            _ => {}
        }
    }
    crashed
}

#[cfg(test)]
pub(crate) mod tests {
    use std::{
        sync::atomic::{AtomicBool, Ordering},
        thread,
    };

    use super::*;

    /// The text of a life file of another process of this container.
    pub(crate) fn beside_this() -> String {
        text_of(std::os::unix::process::parent_id()).expect("it is Linux")
    }

    /// The text of a life file of another container, in which a process has the id that this one has here.
    pub(crate) fn elsewhere() -> String {
        format!("{} pid:[1]\n", std::process::id())
    }

    /// Makes a life file as another process does, which is alive until the file is closed.
    pub(crate) fn begin_as_another(keepers: &Path, keeper: KeeperId, text: &str) -> File {
        let path = life_of(keepers, keeper);
        fs::write(&path, text).expect("written");
        let file = File::open(&path).expect("opened");
        rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).expect("locked");
        file
    }

    #[test]
    fn a_process_is_known_by_an_id_of_its_own_namespace_only() {
        let (_folder, file) = file();
        let keeper = KeeperId::random();
        let _life = LifeFile::begin(&file, keeper).expect("begun");
        assert!(is_of_this_process(keeper));
        assert_eq!(process_of(&file.keepers, keeper), Some(std::process::id()));
        for text in ["", "1", "1 pid:[1]\n", "1 pid"] {
            fs::write(life_of(&file.keepers, keeper), text).expect("written");
            assert_eq!(process_of(&file.keepers, keeper), None, "{text:?}");
        }
    }

    fn file() -> (tempfile::TempDir, DatabaseFile) {
        let folder = tempfile::tempdir().expect("a folder");
        let file = DatabaseFile::prepare(&folder.path().join("locks.db")).expect("prepared");
        (folder, file)
    }

    #[test]
    fn alive_while_open_and_crashed_afterwards() {
        let (_folder, file) = file();
        let keeper = KeeperId::random();
        assert_eq!(of(&file.keepers, keeper), Liveness::Unknown);
        assert_eq!(fs::read_dir(&file.keepers).expect("listed").count(), 0, "looking makes nothing");
        let life = LifeFile::begin(&file, keeper).expect("begun");
        assert_eq!(of(&file.keepers, keeper), Liveness::Alive);
        assert_eq!(of(&file.keepers, keeper), Liveness::Alive, "looking changes nothing");
        let life_line = life.life_line().expect("another handle");
        drop(life);
        assert_eq!(of(&file.keepers, keeper), Liveness::Alive, "its life line is still open");
        drop(life_line);
        assert_eq!(of(&file.keepers, keeper), Liveness::Crashed);
        assert_eq!(crashed(&file.keepers), [keeper]);
        remove_files(&file.keepers, keeper);
        assert_eq!(of(&file.keepers, keeper), Liveness::Unknown);
    }

    /// Of many that start at once, some look for crashed keepers while others have made their files and not locked
    /// them.
    #[test]
    fn looking_for_crashed_keepers_keeps_no_keeper_from_starting() {
        let (_folder, file) = file();
        let begun = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                while !begun.load(Ordering::Relaxed) {
                    crashed(&file.keepers);
                }
            });
            let begin = |_| {
                LifeFile::begin(&file, KeeperId::random())
                    .map(|life| remove_files(&file.keepers, life.keeper))
            };
            let all: Result<Vec<()>, StoreError> = (0..2000).map(begin).collect();
            begun.store(true, Ordering::Relaxed);
            all.expect("begun");
        });
    }

    #[test]
    fn a_removed_life_file_proves_nothing() {
        let (_folder, file) = file();
        let keeper = KeeperId::random();
        let _life = LifeFile::begin(&file, keeper).expect("begun");
        fs::remove_file(life_of(&file.keepers, keeper)).expect("removed");
        assert_eq!(of(&file.keepers, keeper), Liveness::Unknown);
        assert!(crashed(&file.keepers).is_empty());
    }

    /// If a live keeper were taken for crashed, its locks would be freed.
    #[test]
    fn a_keeper_that_cannot_be_looked_at_may_be_alive() {
        let (_folder, file) = file();
        let lives = || any_alive(&file.keepers).ok();
        assert_eq!(lives(), Some(false));
        let keeper = KeeperId::random();
        let life = LifeFile::begin(&file, keeper).expect("begun");
        assert_eq!(lives(), Some(true));
        drop(life);
        assert_eq!(lives(), Some(false), "it has ended");
        // Not even root can open this one.
        let endless = life_of(&file.keepers, KeeperId::random());
        std::os::unix::fs::symlink(&endless, &endless).expect("linked");
        assert_eq!(lives(), None, "a file that cannot be opened");
        assert!(any_alive(&file.path).is_err(), "a folder that cannot be read");
    }
}
