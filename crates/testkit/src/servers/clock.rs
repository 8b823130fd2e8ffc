//! A wall clock that a test can move, as one server sees it: libfaketime under the server's process. The
//! monotonic clock stays as it is, as it does on a machine whose time is set.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use super::missing;

/// The wall clock of one server.
#[derive(Debug)]
pub(super) struct WallClock {
    file: PathBuf,
    library: PathBuf,
}

impl WallClock {
    /// A right one, kept in a file of this folder.
    pub(super) fn new(folder: &Path) -> io::Result<Self> {
        let clock = Self { file: folder.join("clock"), library: library()? };
        clock.shift(0)?;
        Ok(clock)
    }

    /// Puts the clock off by this many seconds from now on.
    pub(super) fn shift(&self, seconds: i64) -> io::Result<()> {
        // Replaced as a whole: the server reads it at every look at the clock.
        let new = self.file.with_extension("new");
        fs::write(&new, format!("{seconds:+}\n"))?;
        fs::rename(new, &self.file)
    }

    pub(super) fn environment(&self) -> Vec<(String, String)> {
        let own = |(name, value): (&str, String)| (name.to_owned(), value);
        [
            // With libc's allocator: Redis' own one looks at the clock before libfaketime can allocate.
            ("LD_PRELOAD", format!("{}:libc.so.6", self.library.display())),
            ("FAKETIME_TIMESTAMP_FILE", self.file.display().to_string()),
            ("FAKETIME_NO_CACHE", "1".into()),
            ("FAKETIME_DONT_FAKE_MONOTONIC", "1".into()),
        ]
        .map(own)
        .into()
    }
}

/// Removes what the library leaves of a process that was killed: memory that it shares with its children. A process of
/// another user that gets the same number could not start otherwise.
pub(super) fn tidy_up(process: u32) {
    for name in [format!("faketime_shm_{process}"), format!("sem.faketime_sem_{process}")] {
        // Mostly there is none.
        fs::remove_file(Path::new("/dev/shm").join(name)).ok();
    }
}

/// The library for programs with threads, in the folder of whichever architecture this is.
fn library() -> io::Result<PathBuf> {
    let folders = fs::read_dir("/usr/lib")?.filter_map(Result::ok).map(|folder| folder.path());
    let mut libraries = folders.map(|folder| folder.join("faketime/libfaketimeMT.so.1"));
    libraries.find(|library| library.is_file()).ok_or_else(|| missing("libfaketime", "libfaketime"))
}
