//! The processes that answer: `lockkeeper serve`, and bare handlers.

use std::{
    fs,
    path::PathBuf,
    process::{Command, Stdio},
    time::Duration,
};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::load::Client;
use crate::{
    Failure, measure,
    processes::{ChildProcess, Dialogue},
};

/// Tokens of the server that is measured: one that uses locks, and one that looks.
const USES: &str = "benchbenchbenchbench";
pub(crate) const LOOKS: &str = "looklooklooklook";

/// A server process.
pub(crate) struct Server {
    process: Dialogue,
    pub(super) client: Client,
    /// Its tokens and its log.
    _folder: Option<tempfile::TempDir>,
}

impl Server {
    /// The server of `lockkeeper serve` on this store.
    pub(crate) fn ours(store: &str) -> Result<Self, Failure> {
        let program: PathBuf = std::env::current_exe()?.with_file_name("lockkeeper-bench-server");
        if !program.exists() {
            let how = "cargo build --release -p lockkeeper-bench --features serve";
            return Err(format!("{} is missing; build it: {how}", program.display()).into());
        }
        let folder = tempfile::tempdir()?;
        let tokens = folder.path().join("tokens");
        lockkeeper_testkit::servers::write_private(
            &tokens,
            &format!("use {USES} bench\nlook {LOOKS} eye\n"),
        )?;
        let mut command = Command::new(program);
        // Every change is a line of the log, which goes to a file as it would with a real server.
        command.arg(store).arg(tokens).stderr(Stdio::from(fs::File::create(folder.path().join("log"))?));
        Self::start(ChildProcess::spawn(command)?, Some(folder))
    }

    /// Bare handlers on this Redis server.
    pub(super) fn bare(redis: &str) -> Result<Self, Failure> {
        Self::start(ChildProcess::start(&["bare-http", redis])?, None)
    }

    /// Reads the address from the first line of the child, `listening on http://ADDRESS`.
    fn start(child: ChildProcess, folder: Option<tempfile::TempDir>) -> Result<Self, Failure> {
        let mut process = Dialogue::new(child)?;
        let line = process.receive()?;
        let address = line.strip_prefix("listening on http://").ok_or("it does not say where it listens")?;
        let client = Client { address: address.parse()?, token: USES.to_owned() };
        Ok(Self { process, client, _folder: folder })
    }

    /// A client with the token that only looks.
    pub(crate) fn looker(&self) -> Client {
        Client { address: self.client.address, token: LOOKS.to_owned() }
    }

    /// CPU time so far.
    pub(crate) fn cpu(&self) -> Result<Duration, Failure> {
        self.process.cpu()
    }

    /// Resident memory in bytes.
    pub(super) fn resident(&self) -> Result<u64, Failure> {
        Ok(measure::resident_of(&self.process.id().to_string())?)
    }
}

/// Connections are files, here and there.
pub(super) fn raise_limit() -> Result<(), Failure> {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    Ok(setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum })?)
}
