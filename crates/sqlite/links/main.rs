//! Processes on one file that are killed at random, beside whatever else links SQLite: `./test links` builds this outside
//! of the workspace with the oldest and with the newest SQLite that the store may be linked to.
//!
//! A lost or damaged transaction shows as a token that does not grow, as two holders at once, or in `integrity_check`.

use std::{
    env, fs,
    io::{self, Read as _, Write as _},
    os::unix::fs::FileExt as _,
    path::Path,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

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

/// One critical section: the file has the highest token so far, and who is inside (0 for nobody).
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

/// Not a zombie: one that was killed is inside no more.
fn is_alive(process: i64) -> bool {
    let status = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    status
        .rsplit(')')
        .next()
        .is_some_and(|rest| !rest.trim_start().starts_with(['Z', 'X']) && !rest.is_empty())
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
    let (mut kills, mut longest_log, mut wrong, mut dice) = (0, 0, Vec::new(), 7_u64);
    while Instant::now() < until && wrong.is_empty() {
        dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        thread::sleep(Duration::from_millis((dice >> 33) % 40));
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
    println!("SQLite {}: {kills} processes killed, the log had up to {longest_log} bytes", sqlite::version());
    if longest_log > 16 << 20 {
        wrong.push("nobody moved the log into the file".into());
    }
    if wrong.is_empty() {
        fs::remove_dir_all(&folder)?;
        return Ok(());
    }
    Err(format!("{}: {wrong:?}", folder.display()).into())
}

/// What is wrong with the file, or was seen by workers.
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
