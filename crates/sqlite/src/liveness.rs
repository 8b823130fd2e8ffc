//! Life files: how one process sees that another is dead.
//!
//! Each keeper locks a file named by its random id before it writes its first row, and keeps it
//! open. The operating system ends the lock with the process, however it ends. It is a `flock`,
//! not a record lock, which any close of the same file in the process would end.

use lockkeeper_core::support;
use std::{
    collections::BTreeSet,
    fs::{self, File, OpenOptions},
    io::{self, Write as _},
    os::{fd::OwnedFd, unix::fs::OpenOptionsExt},
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard},
    time::Duration,
};

use lockkeeper_core::{KeeperId, StoreError};
use rustix::fs::FlockOperation;

use crate::{file::DatabaseFile, trouble::file_trouble};

const LIFE: &str = "life";
const WAKE: &str = "wake";
/// A life file that is being made: not yet locked, so not to be judged.
const NEW: &str = "new";

/// What is known of a keeper.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Liveness {
    /// Its process lives.
    Alive,
    /// Its process has ended.
    Crashed,
    /// There is no file: never made, or cleared away. Only its leases can tell.
    Unknown,
}

/// A keeper's own life file, locked until this and every [`life_line`](Self::life_line) is closed.
#[derive(Debug)]
pub(crate) struct LifeFile {
    file: File,
    keeper: KeeperId,
}

/// The keepers of this process. Not told by process id, which two containers may both have.
static OURS: Mutex<BTreeSet<KeeperId>> = Mutex::new(BTreeSet::new());

fn ours() -> MutexGuard<'static, BTreeSet<KeeperId>> {
    support::lock(&OURS)
}

/// Whether this is a keeper of this process.
pub(crate) fn is_of_this_process(keeper: KeeperId) -> bool {
    ours().contains(&keeper)
}

impl LifeFile {
    /// Shows that `keeper` lives.
    pub(crate) fn begin(database: &DatabaseFile, keeper: KeeperId) -> Result<Self, StoreError> {
        // Others may judge any file with its final name at any time, so it gets that name locked.
        let new = file_of(&database.keepers, keeper, NEW);
        let begin = || {
            let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
            database.share(&new)?;
            rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive)?;
            // A full disk is no reason not to begin: who finds nothing here looks at the lock more often.
            drop(file.write_all(about(std::process::id()).unwrap_or_default().as_bytes()));
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

/// What a life file says: the process and the namespace in which that is its id.
fn about(pid: u32) -> Option<String> {
    let namespace = fs::read_link("/proc/self/ns/pid").ok()?;
    Some(format!("{pid} {}\n", namespace.display()))
}

/// The id of a keeper's process, if it has one that means the same here.
pub(crate) fn process_of(keepers: &Path, keeper: KeeperId) -> Option<u32> {
    let said = fs::read_to_string(life_of(keepers, keeper)).ok()?;
    let pid = said.split_once(' ')?.0.parse().ok()?;
    (about(pid)? == said).then_some(pid)
}

fn file_of(keepers: &Path, keeper: KeeperId, kind: &str) -> PathBuf {
    keepers.join(format!("{keeper}.{kind}"))
}

fn life_of(keepers: &Path, keeper: KeeperId) -> PathBuf {
    file_of(keepers, keeper, LIFE)
}

/// The name of a keeper's socket in the folder of the keepers.
pub(crate) fn wake_name(keeper: KeeperId) -> String {
    format!("{keeper}.{WAKE}")
}

/// Looks whether a keeper lives. Never makes a file: that could make a live one look dead.
pub(crate) fn of(keepers: &Path, keeper: KeeperId) -> Liveness {
    judge(&life_of(keepers, keeper))
}

fn judge(path: &Path) -> Liveness {
    look_at(path).unwrap_or(Liveness::Unknown)
}

/// What a life file shows. An error says that it is there, and no more.
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

/// Clears away what a keeper left in the folder, once its rows are gone.
pub(crate) fn remove_files(keepers: &Path, keeper: KeeperId) {
    // The life file is what the others are found by, so it goes last.
    for kind in [WAKE, LIFE] {
        // Somebody else may have been faster.
        drop(fs::remove_file(file_of(keepers, keeper, kind)));
    }
}

/// Whether any keeper in the folder lives; an error where one may live that cannot be looked at.
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

/// The keepers in the folder that are dead. Clears away what is nobody's.
pub(crate) fn crashed(keepers: &Path) -> Vec<KeeperId> {
    let mut dead = Vec::new();
    for entry in fs::read_dir(keepers).into_iter().flatten().flatten() {
        let path = entry.path();
        let kind = path.extension().and_then(|kind| kind.to_str());
        let keeper = path.file_stem().and_then(|stem| keeper_from(stem.to_str()?));
        match (kind, keeper) {
            (Some(LIFE), Some(keeper)) if judge(&path) == Liveness::Crashed => dead.push(keeper),
            // Its maker died between making and naming it. A young one is not even looked at, which takes its lock
            // for a moment, just when its maker wants that.
            (Some(NEW), Some(_)) if is_old(&path) && judge(&path) == Liveness::Crashed => {
                drop(fs::remove_file(&path));
            }
            _ => {}
        }
    }
    dead
}

/// A keeper's id from the text that it is shown as.
pub(crate) fn keeper_from(text: &str) -> Option<KeeperId> {
    let plain = text.len() == 32 && text.bytes().all(|b| b.is_ascii_hexdigit());
    u128::from_str_radix(text, 16).ok().filter(|_| plain).map(KeeperId::from_u128)
}

/// Whether a file is older than anybody takes to make and name one.
pub(crate) fn is_old(path: &Path) -> bool {
    let age = fs::metadata(path).and_then(|facts| facts.modified()).map(|at| at.elapsed());
    matches!(age, Ok(Ok(age)) if age > Duration::from_secs(60))
}

#[cfg(test)]
pub(crate) mod tests {
    use std::{
        sync::atomic::{AtomicBool, Ordering},
        thread,
    };

    use super::*;

    /// What the life file of another process of this container says.
    pub(crate) fn beside_this() -> String {
        about(std::os::unix::process::parent_id()).expect("it is Linux")
    }

    /// What a life file of another container says, where a process has the id that this one has here.
    pub(crate) fn elsewhere() -> String {
        format!("{} pid:[1]\n", std::process::id())
    }

    /// A life file as another process has it; it lives until the file is closed.
    pub(crate) fn begin_as_another(keepers: &Path, keeper: KeeperId, said: &str) -> File {
        let path = life_of(keepers, keeper);
        fs::write(&path, said).expect("written");
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
        for said in ["", "1", "1 pid:[1]\n", "1 pid"] {
            fs::write(life_of(&file.keepers, keeper), said).expect("written");
            assert_eq!(process_of(&file.keepers, keeper), None, "{said:?}");
        }
    }

    fn file() -> (tempfile::TempDir, DatabaseFile) {
        let folder = tempfile::tempdir().expect("a folder");
        let file = DatabaseFile::prepare(&folder.path().join("locks.db")).expect("prepared");
        (folder, file)
    }

    #[test]
    fn alive_while_open_and_dead_afterwards() {
        let (_folder, file) = file();
        let keeper = KeeperId::random();
        assert_eq!(of(&file.keepers, keeper), Liveness::Unknown);
        assert_eq!(fs::read_dir(&file.keepers).expect("listed").count(), 0, "looking makes nothing");
        let life = LifeFile::begin(&file, keeper).expect("begun");
        assert_eq!(of(&file.keepers, keeper), Liveness::Alive);
        assert_eq!(of(&file.keepers, keeper), Liveness::Alive, "looking changes nothing");
        let line = life.life_line().expect("another handle");
        drop(life);
        assert_eq!(of(&file.keepers, keeper), Liveness::Alive, "its line is still open");
        drop(line);
        assert_eq!(of(&file.keepers, keeper), Liveness::Crashed);
        assert_eq!(crashed(&file.keepers), [keeper]);
        remove_files(&file.keepers, keeper);
        assert_eq!(of(&file.keepers, keeper), Liveness::Unknown);
    }

    /// Many that start at once look for the dead while others have made their files and not locked them yet.
    #[test]
    fn who_looks_for_the_dead_keeps_nobody_from_beginning() {
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
    fn a_file_that_was_cleared_away_proves_nothing() {
        let (_folder, file) = file();
        let keeper = KeeperId::random();
        let _life = LifeFile::begin(&file, keeper).expect("begun");
        fs::remove_file(life_of(&file.keepers, keeper)).expect("removed");
        assert_eq!(of(&file.keepers, keeper), Liveness::Unknown);
        assert!(crashed(&file.keepers).is_empty());
    }

    /// Who takes the living for dead frees what they hold.
    #[test]
    fn what_cannot_be_looked_at_may_be_alive() {
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

    #[test]
    fn keepers_survive_text() {
        let keeper = KeeperId::random();
        assert_eq!(keeper_from(&keeper.to_string()), Some(keeper));
        assert_eq!(keeper_from("+0000000000000000000000000000001"), None);
    }
}
