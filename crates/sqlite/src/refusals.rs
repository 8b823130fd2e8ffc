//! Refuses files on which locks cannot work: on network file systems, mounted alone, or with two names.

use std::{fs, os::unix::fs::MetadataExt, path::Path};

use lockkeeper_core::StoreError;
use rustix::fs::{AtFlags, CWD, StatxFlags};

use crate::{
    new_file::clear_unnamed,
    trouble::{bad_file, file_trouble},
};

/// File systems whose files other hosts may have open too, by their number in `statfs`.
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

/// Refuses network file systems.
pub(crate) fn refuse_network(folder: &Path) -> Result<(), StoreError> {
    let facts = rustix::fs::statfs(folder).map_err(|error| file_trouble("look at", folder, error.into()))?;
    match network_name(facts.f_type as u32) {
        None => Ok(()),
        Some(name) => Err(bad_file(
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

/// Refuses a file that is mounted by itself, as into a container: its log there is not the log outside.
pub(crate) fn refuse_mounted_alone(file: &Path, folder: &Path) -> Result<(), StoreError> {
    let mount_of = |path: &Path| {
        let facts = rustix::fs::statx(CWD, path, AtFlags::empty(), StatxFlags::MNT_ID).ok()?;
        (facts.stx_mask & StatxFlags::MNT_ID.bits() != 0).then_some(facts.stx_mnt_id)
    };
    match (mount_of(file), mount_of(folder)) {
        (Some(file_mount), Some(folder_mount)) if file_mount != folder_mount => Err(bad_file(
            file,
            "is mounted as a single file, so that SQLite's log beside it is not shared; mount its folder",
        )),
        _ => Ok(()),
    }
}

/// Refuses a file with two names: each name has a log of its own, so their locks would not meet.
pub(crate) fn refuse_hard_links(file: &Path) -> Result<(), StoreError> {
    let look = || fs::metadata(file).map_err(|error| file_trouble("look at", file, error));
    let facts = look()?;
    if facts.nlink() <= 1 {
        return Ok(());
    }
    // On some file systems a new file has two names until its maker removes one, and that maker may have crashed.
    let identity = (facts.dev(), facts.ino());
    let is_same = |other: &Path| fs::metadata(other).is_ok_and(|it| (it.dev(), it.ino()) == identity);
    clear_unnamed(file, is_same);
    if look()?.nlink() <= 1 {
        return Ok(());
    }
    Err(bad_file(
        file,
        "has more than one name (a hard link), and SQLite would mix up their logs; keep one name",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn network_file_systems_are_known() {
        assert_eq!(network_name(0x6969), Some("NFS"));
        assert_eq!(network_name(0xff53_4d42), Some("CIFS"));
        assert_eq!(network_name(0xef53), None, "ext4 is local");
        assert_eq!(network_name(0x0102_1994), None, "tmpfs is local");
    }
}
