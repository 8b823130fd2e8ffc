//! Checks the file for risks to locks, on demand: the place where it lies, the room on the disk, and the rights to
//! write.

use std::{
    fmt, fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use lockkeeper_core::{StoreError, support::lease_option};

use crate::{paths::beside, settings::Settings, trouble::file_trouble};

/// Less room than this is reported.
const LEAST_ROOM: u64 = 64 << 20;
/// A longer log than this is reported.
const LONGEST_LOG: u64 = 64 << 20;
/// File systems in memory, by their number in `statfs`.
const IN_MEMORY: [u32; 2] = [0x0102_1994, 0x8584_58f6];

/// A risk to the locks in the file, with the remedy.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Finding {
    /// The file or folder.
    pub path: PathBuf,
    /// The kind of risk.
    pub risk: Risk,
    /// The risk and its remedy.
    pub message: String,
}

/// The kinds of risks to locks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Risk {
    /// A restart of the machine loses the file, with its fences.
    InMemory,
    /// There is hardly any room left to write.
    NoRoom,
    /// Anybody on this machine may change or remove the file.
    Permissions,
    /// The log is not moved into the file.
    LongLog,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path.display(), self.message)
    }
}

/// Looks at the file that `url` names, and at the disk that it is on. Changes nothing, and opens nothing.
///
/// # Errors
/// [`StoreError`] if the URL is wrong or there is no such file.
pub fn check(url: &str) -> Result<Vec<Finding>, StoreError> {
    let (url, _) = lease_option::take(url)?;
    let given = Settings::parse(&url)?.path;
    let path = fs::canonicalize(&given).map_err(|error| file_trouble("find", &given, error))?;
    let folder = path.parent().unwrap_or(Path::new("/"));
    let disk = rustix::fs::statfs(folder).map_err(|error| file_trouble("look at", folder, error.into()))?;
    // The block size is positive. Its type differs between systems.
    let room = u64::try_from(disk.f_bsize).unwrap_or(0).saturating_mul(disk.f_bavail);
    let facts = fs::metadata(&path).map_err(|error| file_trouble("look at", &path, error))?;
    let around = fs::metadata(folder).map_err(|error| file_trouble("look at", folder, error))?;
    let log = fs::metadata(beside(&path, "-wal")).map_or(0, |log| log.len());
    let found = [
        in_memory(disk.f_type as u32),
        no_room(room, disk.f_files > 0 && disk.f_ffree == 0),
        permissions(facts.mode(), around.mode()),
        long_log(log),
    ];
    let finding = |(risk, message)| Finding { path: path.clone(), risk, message };
    Ok(found.into_iter().flatten().map(finding).collect())
}

/// A risk, and its remedy in words.
type Found = Option<(Risk, String)>;

fn in_memory(kind: u32) -> Found {
    let message = "it is on a file system in memory, so a restart of the machine loses its latches and fences; put it on a disk";
    IN_MEMORY.contains(&kind).then(|| (Risk::InMemory, message.into()))
}

fn no_room(bytes: u64, no_files: bool) -> Found {
    let message = if no_files {
        "its disk has no room for new files, so keepers cannot start; remove some".to_owned()
    } else {
        format!("its disk has {} MiB left, and without room nothing can be locked; make room", bytes >> 20)
    };
    (no_files || bytes < LEAST_ROOM).then_some((Risk::NoRoom, message))
}

fn permissions(file: u32, folder: u32) -> Found {
    // In a folder with the sticky bit, only the owner of a file removes it.
    let message = if file & 0o002 != 0 {
        "everybody on this machine may write to it, and so break or steal locks; chmod o-w it"
    } else if folder & 0o1002 == 0o002 {
        "everybody on this machine may replace it, because its folder is writable for all; chmod o-w the folder"
    } else {
        return None;
    };
    Some((Risk::Permissions, message.into()))
}

fn long_log(bytes: u64) -> Found {
    let message = format!(
        "its log has {} MiB, so something keeps it from being moved into the file, such as another program that reads for \
         long; end that",
        bytes >> 20
    );
    (bytes > LONGEST_LOG).then_some((Risk::LongLog, message))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn each_risk_is_found_and_a_good_file_has_none() {
        assert!(in_memory(0x0102_1994).is_some() && in_memory(0xef53).is_none());
        assert!(no_room(1 << 20, false).is_some() && no_room(1 << 40, true).is_some());
        assert_eq!(no_room(1 << 40, false), None);
        assert!(permissions(0o666, 0o755).is_some() && permissions(0o600, 0o777).is_some());
        assert_eq!((permissions(0o600, 0o700), permissions(0o660, 0o1777)), (None, None));
        assert!(long_log(100 << 20).is_some() && long_log(4 << 20).is_none());
    }

    #[test]
    fn a_file_is_looked_at() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("locks.db");
        let url = format!("sqlite:{}?lease=10s", path.display());
        assert!(check(&url).is_err(), "it is not there");
        fs::write(&path, "").expect("written");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).expect("set");
        let risks: Vec<Risk> = check(&url).expect("there").iter().map(|finding| finding.risk).collect();
        assert!(risks.contains(&Risk::Permissions), "{risks:?}");
    }
}
