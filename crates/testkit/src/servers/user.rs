//! Users that database servers run as, and files that only one of them may read. Databases refuse to run as root, so
//! root starts them as `nobody`.

use std::{
    fs::{self, File, OpenOptions},
    io,
    os::unix::fs::{MetadataExt as _, chown},
    path::Path,
    process::Command,
};

use tempfile::TempDir;

use super::{missing, program};

/// A user of every Debian system that owns nothing.
const UNPRIVILEGED: &str = "nobody";

/// The user that a server runs as.
#[derive(Clone, Copy, Debug)]
pub(super) struct User {
    /// The user and the group to change to; `None` if this process is unprivileged already.
    ids: Option<(u32, u32)>,
    own: u32,
}

impl User {
    /// This process' own user, unless that is root.
    pub(super) fn of_server() -> io::Result<Self> {
        let own = fs::metadata("/proc/self")?.uid();
        if own != 0 {
            return Ok(Self { ids: None, own });
        }
        let users = fs::read_to_string("/etc/passwd")?;
        let mut rows = users.lines().map(|row| row.split(':').collect::<Vec<_>>());
        let user = rows.find(|fields| fields.first() == Some(&UNPRIVILEGED));
        let number = |at: usize| user.as_ref()?.get(at)?.parse::<u32>().ok();
        let ids = number(2).zip(number(3)).ok_or_else(|| missing("the user nobody", "base-passwd"))?;
        Ok(Self { ids: Some(ids), own })
    }

    /// The number of the user.
    pub(super) fn number(self) -> u32 {
        self.ids.map_or(self.own, |(user, _)| user)
    }

    /// A new temporary folder of this user.
    pub(super) fn folder(self, prefix: &str) -> io::Result<TempDir> {
        let folder = tempfile::Builder::new().prefix(prefix).tempdir()?;
        self.take(folder.path())?;
        Ok(folder)
    }

    /// Makes a file or folder of this process this user's.
    pub(super) fn take(self, path: &Path) -> io::Result<()> {
        let Some((user, group)) = self.ids else { return Ok(()) };
        chown(path, Some(user), Some(group))
    }

    /// Writes a file that only this user may read.
    pub(super) fn write(self, path: &Path, text: &str) -> io::Result<()> {
        write_private(path, text)?;
        self.take(path)
    }

    /// The words that make `setpriv` run a program as this user.
    pub(super) fn privileges(self) -> Vec<String> {
        let Some((user, group)) = self.ids else { return Vec::new() };
        vec![format!("--reuid={user}"), format!("--regid={group}"), "--clear-groups".to_owned()]
    }

    /// A command that runs this program as this user.
    pub(super) fn command(self, file: &Path) -> io::Result<Command> {
        let mut command = Command::new(program("setpriv", "util-linux")?);
        // The user may not be able to enter the folder of this process.
        command.args(self.privileges()).arg("--").arg(file).current_dir("/");
        Ok(command)
    }
}

/// Runs a command to its end, and gives its output.
///
/// # Errors
/// If it fails; with its output.
pub(super) fn run(command: &mut Command) -> io::Result<String> {
    let done = command.output()?;
    let told = String::from_utf8_lossy(&done.stdout).trim_end().to_owned();
    if done.status.success() {
        return Ok(told);
    }
    let why = String::from_utf8_lossy(&done.stderr);
    Err(io::Error::other(format!("{command:?}: {}\n{told}\n{}", done.status, why.trim())))
}

/// Writes a file that only this user may read: some hold passwords.
///
/// # Errors
/// Those of the file system.
pub fn write_private(path: &Path, text: &str) -> io::Result<()> {
    use std::{io::Write as _, os::unix::fs::OpenOptionsExt as _};

    let mut file: File = OpenOptions::new().create(true).write(true).truncate(true).mode(0o600).open(path)?;
    file.write_all(text.as_bytes())
}
