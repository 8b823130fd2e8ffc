//! Processes on one file that are killed at random, beside another crate that links SQLite: `./test links` builds this
//! outside of the workspace with the oldest and with the newest SQLite that the store may be linked to.
//!
//! A lost or damaged transaction shows as a token that does not grow, as two holders at once, or in `integrity_check`.
//! A SQLite with the WAL-reset bug does not show it by chance within minutes, even without the store's guard. So the
//! locks of SQLite are watched as well: while a process runs a checkpoint, it must also keep all others from
//! committing.

use std::{
    env,
    fs::{self, File},
    io::{self, Read as _, Write as _},
    os::unix::fs::FileExt as _,
    path::Path,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use rustix::process::{Flock, FlockOffsetType, FlockType, Pid, Signal, fcntl_getlk, kill_process};

const RESOURCES: usize = 4;
const WORKERS: usize = 8;

type Trouble = Box<dyn std::error::Error>;

fn main() -> Result<(), Trouble> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    match &arguments[..] {
        [seconds] => parent(seconds.parse()?),
        [worker, folder] if worker == "worker" => work(Path::new(folder)),
        _ => Err("usage: links SECONDS".into()),
    }
}

fn url(folder: &Path) -> String {
    format!("sqlite:{}/locks.db", folder.display())
}

/// Takes locks until it is killed or its input ends.
fn work(folder: &Path) -> Result<(), Trouble> {
    thread::spawn(|| {
        io::stdin().read_to_end(&mut Vec::new()).ok();
        std::process::exit(0);
    });
    let keeper = lockkeeper::blocking::connect(&url(folder))?;
    let mut round = std::process::id() as usize;
    loop {
        round += 1;
        let name = format!("resource-{}", round % RESOURCES);
        let guard = keeper.mutex(&name).lock()?;
        section(&folder.join(&name), i64::from(guard.token()))?;
        guard.release()?;
    }
}

/// One critical section: the file has the highest token so far, and the process that is inside (0 for nobody).
fn section(path: &Path, token: i64) -> Result<(), Trouble> {
    let file = fs::OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?;
    let mut seen = [0; 16];
    let known = file.read_at(&mut seen, 0)? == seen.len();
    let word = |at: usize| i64::from_ne_bytes(seen[at..at + 8].try_into().expect("eight bytes"));
    let (last, inside) = if known { (word(0), word(8)) } else { (0, 0) };
    if token <= last || (inside != 0 && is_alive(inside)) {
        let told = format!("{}: token {token} after {last}, and {inside} is inside\n", path.display());
        fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(path.with_extension("broken"))?
            .write_all(told.as_bytes())?;
    }
    let words = |inside: i64| [token.to_ne_bytes(), inside.to_ne_bytes()].concat();
    file.write_all_at(&words(i64::from(std::process::id())), 0)?;
    thread::yield_now();
    file.write_all_at(&words(0), 0)?;
    Ok(())
}

/// Whether a process is alive. A zombie is not: one that was killed is inside no more.
fn is_alive(process: i64) -> bool {
    state(process).is_some_and(|state| !"ZX".contains(state))
}

/// The kernel's letter for the state of a process; `None` if it is gone.
fn state(process: i64) -> Option<char> {
    let status = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    status.rsplit(')').next()?.trim_start().chars().next()
}

fn parent(seconds: u64) -> Result<(), Trouble> {
    let folder = env::temp_dir().join(format!("lockkeeper-links-{}", std::process::id()));
    fs::create_dir(&folder)?;
    let start = || -> io::Result<Child> {
        let mut command = Command::new(env::current_exe()?);
        command.args(["worker".as_ref(), folder.as_os_str()]).stdin(Stdio::piped()).spawn()
    };
    let until = Instant::now() + Duration::from_secs(seconds);
    let mut workers = (0..WORKERS).map(|_| start()).collect::<io::Result<Vec<_>>>()?;
    let mut checkpoints = Checkpoints::watch(&folder.join("locks.db-shm"))?;
    let (mut kills, mut longest_log, mut wrong, mut dice) = (0, 0, Vec::new(), 7_u64);
    while Instant::now() < until && wrong.is_empty() {
        dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        wrong.extend(checkpoints.look_for(Duration::from_millis((dice >> 33) % 40))?);
        let victim = &mut workers[(dice >> 40) as usize % WORKERS];
        if let Some(status) = victim.try_wait()? {
            wrong.push(format!("a worker ended: {status}"));
        }
        victim.kill()?;
        victim.wait()?;
        *victim = start()?;
        kills += 1;
        longest_log = longest_log.max(fs::metadata(folder.join("locks.db-wal")).map_or(0, |log| log.len()));
        if kills % 50 == 0 {
            wrong.extend(damage(&folder));
        }
    }
    for worker in &mut workers {
        drop(worker.stdin.take());
        worker.wait()?;
    }
    wrong.extend(damage(&folder));
    println!(
        "SQLite {}: {kills} processes killed, checkpoints seen {} times, the log had up to {longest_log} bytes",
        sqlite::version(),
        checkpoints.seen
    );
    if MUST_BE_GUARDED && checkpoints.seen == 0 {
        wrong.push("no checkpoint was seen, so nothing is known of them".into());
    }
    if longest_log > 16 << 20 {
        wrong.push("nobody moved the log into the file".into());
    }
    if wrong.is_empty() {
        fs::remove_dir_all(&folder)?;
        return Ok(());
    }
    Err(format!("{}: {wrong:?}", folder.display()).into())
}

/// Whether checkpoints must keep others from committing: the oldest SQLite has the bug, the newest has not.
const MUST_BE_GUARDED: bool = cfg!(feature = "with_sqlx");

/// The right to commit, and the right to run a checkpoint: SQLite's locks of these bytes of the index of the log.
const COMMIT: u64 = 120;
const CHECKPOINT: u64 = 121;

/// Watches which processes run checkpoints.
struct Checkpoints {
    /// Open until the end: closing it would end the locks that this process has by its own use of SQLite.
    index: File,
    seen: u64,
}

impl Checkpoints {
    /// Waits for the index of the log.
    fn watch(index: &Path) -> io::Result<Self> {
        loop {
            match File::open(index) {
                Ok(index) => return Ok(Self { index, seen: 0 }),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    thread::sleep(Duration::from_millis(1))
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// The process that has a lock.
    fn owner(&self, byte: u64) -> io::Result<Option<Pid>> {
        // Only a lock of one process alone is in the way of this one.
        let (typ, offset_type) = (FlockType::ReadLock, FlockOffsetType::Set);
        let lock = Flock { start: byte, length: 1, pid: None, typ, offset_type };
        Ok(fcntl_getlk(&self.index, &lock)?.and_then(|other| other.pid))
    }

    /// Looks for checkpoints for so long, or until it sees one that does not keep others from committing.
    fn look_for(&mut self, length: Duration) -> io::Result<Option<String>> {
        let (until, mut wrong) = (Instant::now() + length, None);
        while Instant::now() < until && wrong.is_none() {
            if let Some(process) = self.owner(CHECKPOINT)? {
                wrong = self.look_at(process)?;
            }
            thread::sleep(Duration::from_micros(200));
        }
        Ok(wrong)
    }

    /// Stops a process for a moment, so that its locks stay as they are.
    fn look_at(&mut self, process: Pid) -> io::Result<Option<String>> {
        // It is a child that nobody has waited for, so it is there, if only as a zombie.
        kill_process(process, Signal::STOP)?;
        while state(i64::from(process.as_raw_nonzero().get())).is_some_and(|state| !"TZX".contains(state)) {
            thread::yield_now();
        }
        let runs = self.owner(CHECKPOINT)? == Some(process);
        let guards = self.owner(COMMIT)? == Some(process);
        kill_process(process, Signal::CONT)?;
        self.seen += u64::from(runs);
        let wrong = runs && !guards && MUST_BE_GUARDED;
        Ok(wrong.then(|| format!("others may commit beside the checkpoint of {process:?}")))
    }
}

/// The damage to the file, and the mistakes that workers saw.
fn damage(folder: &Path) -> Vec<String> {
    let mut wrong = Vec::new();
    match sqlite::integrity(&folder.join("locks.db")) {
        Ok(told) if told == "ok" => {}
        told => wrong.push(format!("integrity_check: {told:?}")),
    }
    for resource in 0..RESOURCES {
        wrong.extend(fs::read_to_string(folder.join(format!("resource-{resource}.broken"))));
    }
    wrong
}

/// The other user of SQLite in this program.
mod sqlite {
    use super::*;

    #[cfg(feature = "with_sqlx")]
    fn ask(file: &Path, question: &'static str) -> Result<String, Trouble> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            use sqlx::Connection as _;
            let mut connection = sqlx::SqliteConnection::connect(&file.display().to_string()).await?;
            let told = sqlx::query_scalar(question).fetch_one(&mut connection).await?;
            connection.close().await?;
            Ok(told)
        })
    }

    #[cfg(not(feature = "with_sqlx"))]
    fn ask(file: &Path, question: &'static str) -> Result<String, Trouble> {
        let connection = rusqlite::Connection::open(file)?;
        connection.busy_timeout(Duration::from_secs(10))?;
        Ok(connection.query_row(question, [], |row| row.get(0))?)
    }

    pub fn version() -> String {
        ask(Path::new(":memory:"), "SELECT sqlite_version()").unwrap_or_default()
    }

    pub fn integrity(file: &Path) -> Result<String, Trouble> {
        ask(file, "PRAGMA integrity_check")
    }
}
