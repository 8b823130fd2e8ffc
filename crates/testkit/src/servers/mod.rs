//! Real servers for tests, from Debian's packages: on free loopback ports and in temporary folders, ready when
//! they are returned, and gone with all they wrote when they are dropped, also by a test that panics.
//!
//! A program that is not installed is an error that says how to install it; no test is skipped for it. A test
//! process that is killed takes its servers with it (but leaves their folders, as it can no longer tidy up).

mod certificates;
mod clock;
mod mariadb;
mod mariadb_replica;
mod pgbouncer;
mod postgres;
mod postgres_data;
mod postgres_replica;
mod process;
mod redis;
mod redis_cluster;
mod redis_sentinel;
mod stand_in;
mod template;
mod user;
mod zookeeper;

use std::{
    env, io,
    path::PathBuf,
    thread,
    time::{Duration, Instant},
};

pub use certificates::Certificates;
pub use mariadb::{MariaDb, MariaDbOptions};
pub use pgbouncer::{PgBouncer, PgBouncerOptions};
pub use postgres::{Postgres, PostgresEnd, PostgresOptions};
pub use process::Process;
pub use redis::{Redis, RedisOptions};
pub use redis_cluster::RedisCluster;
pub use redis_sentinel::RedisSentinel;
pub use stand_in::StandIn;
pub use user::write_private;
pub use zookeeper::{ZooKeeper, ZooKeeperNode, ZooKeeperOptions};

/// How long a server may take to obey. Much more than it needs, also on a busy machine.
const LIMIT: Duration = Duration::from_secs(60);

/// Finds a program in the path. If it is missing, the error says which Debian package has it.
fn program(name: &str, package: &str) -> io::Result<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    // Servers are there, and only root has it in the path.
    let folders = env::split_paths(&path).chain([PathBuf::from("/usr/sbin")]);
    let found = folders.map(|folder| folder.join(name)).find(|file| file.is_file());
    found.ok_or_else(|| missing(name, package))
}

fn missing(what: &str, package: &str) -> io::Error {
    let how = format!("apt-get install -y --no-install-recommends {package}");
    io::Error::new(io::ErrorKind::NotFound, format!("{what} is not installed; on Debian: {how}"))
}

/// Asks again until the answer is yes. Foreign servers do not tell when they are done, so they are asked often.
///
/// # Errors
/// The error of the question, or a time-out that names `what` and repeats the last answer.
fn until(what: &str, mut question: impl FnMut() -> io::Result<Answer>) -> io::Result<()> {
    let deadline = Instant::now() + LIMIT;
    loop {
        let why = match question()? {
            Answer::Yes => return Ok(()),
            Answer::No(why) => why,
        };
        if Instant::now() > deadline {
            let message = format!("{what}: not after {LIMIT:?}; last seen: {why}");
            return Err(io::Error::new(io::ErrorKind::TimedOut, message));
        }
        thread::sleep(Duration::from_millis(10));
    }
}

/// An answer to a question that is asked again and again.
enum Answer {
    Yes,
    /// Not yet, with a description of the state instead.
    No(String),
}

impl Answer {
    /// Yes if so; otherwise a no with `seen`.
    fn when(so: bool, seen: impl Into<String>) -> Self {
        if so { Self::Yes } else { Self::No(seen.into()) }
    }
}
