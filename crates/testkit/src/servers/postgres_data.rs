//! The data folder of a new PostgreSQL server, and the programs that make and serve it.

use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
};

use super::{
    missing, template,
    user::{User, run},
};

/// The owner of everything, which is also the name of the database.
pub(super) const OWNER: &str = "lockkeeper";

/// The file of a server's own settings in its data folder. The file that `initdb` makes includes it.
pub(super) const SETTINGS: &str = "server.conf";

/// The folder of the newest version that is installed.
pub(super) fn programs() -> io::Result<PathBuf> {
    let installed = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().filter_map(Result::ok);
    let versions = installed.filter_map(|folder| folder.file_name().to_str()?.parse::<u32>().ok());
    let folder = |version: u32| PathBuf::from(format!("/usr/lib/postgresql/{version}/bin"));
    let mut whole: Vec<_> = versions.filter(|version| folder(*version).join("postgres").is_file()).collect();
    whole.sort_unstable();
    whole.last().map(|version| folder(*version)).ok_or_else(|| missing("postgres", "postgresql"))
}

/// The version in the name of a folder of programs.
fn version(programs: &Path) -> String {
    let version = programs.parent().and_then(Path::file_name).unwrap_or_default();
    version.to_string_lossy().into_owned()
}

/// Makes the data folder of a server with its database. The file [`SETTINGS`] is still missing.
pub(super) fn make(programs: &Path, data: &Path, user: User) -> io::Result<()> {
    let name = format!("postgres-{}-1", version(programs));
    template::fill(data, &name, user, |data| make_template(programs, data, user))
}

fn make_template(programs: &Path, data: &Path, user: User) -> io::Result<()> {
    let mut initdb = user.command(&programs.join("initdb"))?;
    // The files that it makes need not survive a crash of the machine. The server itself syncs, as it does by default.
    initdb.args(["--no-sync", "--no-instructions", "--auth", "trust", "--encoding", "UTF8"]);
    run(initdb.args(["--locale", "C.UTF-8", "--username", OWNER, "--pgdata"]).arg(data))?;
    let statements = data.with_file_name("statements");
    fs::write(&statements, format!("CREATE DATABASE {OWNER}\n"))?;
    // A server without clients, which reads its statements from a file.
    let mut server = user.command(&programs.join("postgres"))?;
    run(server.arg("--single").arg("-D").arg(data).arg("postgres").stdin(File::open(statements)?))?;
    let settings = data.join("postgresql.conf");
    let of_initdb = fs::read_to_string(&settings)?;
    user.write(&settings, &format!("{of_initdb}\ninclude '{SETTINGS}'\n"))
}
