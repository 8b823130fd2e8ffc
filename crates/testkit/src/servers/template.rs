//! Data folders of databases: they take seconds to make, so each kind is made once and copied for every server.
//!
//! The templates are kept beside the programs that were built, and go with them.

use std::{
    env, fs, io,
    path::{Path, PathBuf},
    process::{self, Command},
    sync::Mutex,
};

use lockkeeper_core::support;

use super::user::User;

/// Makes `data` a copy of the template `name`. If there is no such template yet, `make` makes it, in a folder that does
/// not exist before.
///
/// A name stands for one content: a change of `make` needs a new name.
///
/// # Errors
/// If the template cannot be made or copied.
pub(super) fn fill(
    data: &Path,
    name: &str,
    user: User,
    make: impl FnOnce(&Path) -> io::Result<()>,
) -> io::Result<()> {
    // Only one thread of this process makes it. Other processes may make it too; the first that is done wins.
    static MAKING: Mutex<()> = Mutex::new(());
    let name = format!("{name}-of-{}", user.number());
    let template = folder()?.join(&name);
    let making = support::lock(&MAKING);
    if !template.is_dir() {
        let made = user.folder("lockkeeper-template-")?;
        make(&made.path().join("data"))?;
        let copied = template.with_file_name(format!("{name}-new-{}", process::id()));
        copy(&made.path().join("data"), &copied)?;
        // Nobody sees a template that is not whole.
        if let Err(error) = fs::rename(&copied, &template) {
            fs::remove_dir_all(&copied)?;
            if !template.is_dir() {
                return Err(error);
            }
        }
    }
    drop(making);
    copy(&template, data)
}

/// The folder of the templates.
fn folder() -> io::Result<PathBuf> {
    let program = env::current_exe()?;
    let built = program.ancestors().skip(1).find(|folder| !folder.ends_with("deps"));
    let folder = built.unwrap_or(Path::new("/")).join("server-templates");
    fs::create_dir_all(&folder)
        .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", folder.display())))?;
    Ok(folder)
}

/// Copies a folder with its owners and rights.
fn copy(from: &Path, to: &Path) -> io::Result<()> {
    let done = Command::new("cp").arg("-a").args([from, to]).output()?;
    if done.status.success() {
        return Ok(());
    }
    fs::remove_dir_all(to).ok();
    Err(io::Error::other(String::from_utf8_lossy(&done.stderr).trim().to_owned()))
}
