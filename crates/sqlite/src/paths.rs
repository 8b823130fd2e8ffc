//! The names of all files of a store: the database, and beside it a folder with two files per keeper.
//!
//! Pure: it touches no file.

use std::path::{Path, PathBuf};

use lockkeeper_core::KeeperId;

/// The extension of life files.
pub(crate) const LIFE: &str = "life";
/// The extension of the sockets that keepers are woken through.
pub(crate) const WAKE: &str = "wake";
/// The extension of a life file that is being made. It is not locked yet, so it proves nothing.
pub(crate) const NEW: &str = "new";

/// The path with `suffix` added to its name, as SQLite names the files beside a database.
pub(crate) fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// A keeper's file of one kind in the folder of the keepers.
pub(crate) fn file_of(keepers: &Path, keeper: KeeperId, extension: &str) -> PathBuf {
    keepers.join(format!("{keeper}.{extension}"))
}

/// A keeper's life file.
pub(crate) fn life_of(keepers: &Path, keeper: KeeperId) -> PathBuf {
    file_of(keepers, keeper, LIFE)
}

/// The name of a keeper's socket in the folder of the keepers.
pub(crate) fn wake_name(keeper: KeeperId) -> String {
    format!("{keeper}.{WAKE}")
}
