//! Life files: how one process sees that another is dead.
//!
//! Each keeper locks a file named by its random id before it writes its first row, and keeps it
//! open. The operating system ends the lock with the process, however it ends. It is a `flock`,
//! not a record lock, which any close of the same file in the process would end.

use std::{
    fs::{self, File, OpenOptions},
    io,
    os::{fd::OwnedFd, unix::fs::OpenOptionsExt},
    path::{Path, PathBuf},
    time::Duration,
};

use lockkeeper_core::{KeeperId, StoreError};
use rustix::fs::FlockOperation;

use crate::{place::Place, trouble::file_trouble};

const LIFE: &str = "life";
const WAKE: &str = "wake";
/// A life file that is being made: not yet locked, so not to be judged.
const NEW: &str = "new";

/// What is known of a keeper.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Pulse {
    /// Its process lives.
    Alive,
    /// Its process has ended.
    Dead,
    /// There is no file: never made, or cleared away. Only its leases can tell.
    Unknown,
}

/// A keeper's own life file, locked until this and every [`line`](Self::line) is closed.
#[derive(Debug)]
pub(crate) struct Life {
    file: File,
}

impl Life {
    /// Shows that `keeper` lives.
    pub(crate) fn begin(place: &Place, keeper: KeeperId) -> Result<Self, StoreError> {
        // Others may judge any file with its final name at any time, so it gets that name locked.
        let new = file_of(&place.keepers, keeper, NEW);
        let begin = || {
            let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
            place.share(&new)?;
            rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive)?;
            fs::rename(&new, life_of(&place.keepers, keeper))?;
            Ok(Self { file })
        };
        begin().map_err(|error| file_trouble("make the life file", &new, error))
    }

    /// Another handle of the same lock, for a process that outlives this one.
    pub(crate) fn line(&self) -> io::Result<OwnedFd> {
        Ok(self.file.try_clone()?.into())
    }
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
pub(crate) fn pulse(keepers: &Path, keeper: KeeperId) -> Pulse {
    judge(&life_of(keepers, keeper))
}

fn judge(path: &Path) -> Pulse {
    let Ok(file) = File::open(path) else { return Pulse::Unknown };
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared) {
        Ok(()) => Pulse::Dead,
        Err(rustix::io::Errno::WOULDBLOCK) => Pulse::Alive,
        Err(_) => Pulse::Unknown,
    }
}

/// Clears away what a keeper left in the folder, once its rows are gone.
pub(crate) fn forget(keepers: &Path, keeper: KeeperId) {
    for kind in [LIFE, WAKE] {
        // Somebody else may have been faster.
        drop(fs::remove_file(file_of(keepers, keeper, kind)));
    }
}

/// The keepers in the folder that are dead. Clears away what is nobody's.
pub(crate) fn the_dead(keepers: &Path) -> Vec<KeeperId> {
    let mut dead = Vec::new();
    for entry in fs::read_dir(keepers).into_iter().flatten().flatten() {
        let path = entry.path();
        let kind = path.extension().and_then(|kind| kind.to_str());
        let keeper = path.file_stem().and_then(|stem| keeper_from(stem.to_str()?));
        match (kind, keeper) {
            (Some(LIFE), Some(keeper)) if judge(&path) == Pulse::Dead => dead.push(keeper),
            // Its maker died between making and naming it.
            (Some(NEW), Some(_)) if judge(&path) == Pulse::Dead && is_old(&path) => {
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

fn is_old(path: &Path) -> bool {
    let age = fs::metadata(path).and_then(|facts| facts.modified()).map(|at| at.elapsed());
    matches!(age, Ok(Ok(age)) if age > Duration::from_secs(60))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place() -> (tempfile::TempDir, Place) {
        let folder = tempfile::tempdir().expect("a folder");
        let place = Place::prepare(&folder.path().join("locks.db")).expect("prepared");
        (folder, place)
    }

    #[test]
    fn alive_while_open_and_dead_afterwards() {
        let (_folder, place) = place();
        let keeper = KeeperId::random();
        assert_eq!(pulse(&place.keepers, keeper), Pulse::Unknown);
        assert_eq!(fs::read_dir(&place.keepers).expect("listed").count(), 0, "looking makes nothing");
        let life = Life::begin(&place, keeper).expect("begun");
        assert_eq!(pulse(&place.keepers, keeper), Pulse::Alive);
        assert_eq!(pulse(&place.keepers, keeper), Pulse::Alive, "looking changes nothing");
        let line = life.line().expect("another handle");
        drop(life);
        assert_eq!(pulse(&place.keepers, keeper), Pulse::Alive, "its line is still open");
        drop(line);
        assert_eq!(pulse(&place.keepers, keeper), Pulse::Dead);
        assert_eq!(the_dead(&place.keepers), [keeper]);
        forget(&place.keepers, keeper);
        assert_eq!(pulse(&place.keepers, keeper), Pulse::Unknown);
    }

    #[test]
    fn a_file_that_was_cleared_away_proves_nothing() {
        let (_folder, place) = place();
        let keeper = KeeperId::random();
        let _life = Life::begin(&place, keeper).expect("begun");
        fs::remove_file(life_of(&place.keepers, keeper)).expect("removed");
        assert_eq!(pulse(&place.keepers, keeper), Pulse::Unknown);
        assert!(the_dead(&place.keepers).is_empty());
    }

    #[test]
    fn keepers_survive_text() {
        let keeper = KeeperId::random();
        assert_eq!(keeper_from(&keeper.to_string()), Some(keeper));
        assert_eq!(keeper_from("+0000000000000000000000000000001"), None);
    }
}
