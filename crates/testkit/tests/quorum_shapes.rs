//! The whole behaviour suite on quorums: of memory stores, of SQLite files, of three and of five Redis servers, and of one
//! server each of Redis, PostgreSQL and MariaDB.
//!
//! There is no refinement here: a quorum is no copy of the model. Its members are held to the model one by one, and the
//! protocol between them by the checker in `crates/quorum`.

use std::{error::Error, process::ExitCode};

use lockkeeper::memory::MemoryServer;
use lockkeeper_testkit::{
    servers::{MariaDbOptions, PostgresOptions, Redis},
    shapes::{self, Shape},
};
use tempfile::TempDir;

/// Tests wait most of the time, so more of them than cores run at once.
const THREADS: usize = 8;

fn main() -> ExitCode {
    shapes::run(THREADS, Servers::start, Servers::shapes)
}

struct Servers {
    _memory: Vec<MemoryServer>,
    folder: TempDir,
    redis: Vec<Redis>,
    postgres: lockkeeper_testkit::servers::Postgres,
    mariadb: lockkeeper_testkit::servers::MariaDb,
}

fn quorum(members: &[String]) -> String {
    format!("quorum:{}", members.join(","))
}

impl Servers {
    fn start() -> Result<Self, Box<dyn Error>> {
        let servers = Self {
            // A memory store ends with its last user.
            _memory: ["a", "b", "c"].map(|name| MemoryServer::named(&format!("quorum-{name}"))).into(),
            folder: tempfile::tempdir()?,
            redis: (0..5).map(|_| Redis::start()).collect::<Result<_, _>>()?,
            postgres: PostgresOptions::default().setting("max_connections = 500").start()?,
            mariadb: MariaDbOptions::default().setting("max_connections = 500").start()?,
        };
        let runtime = tokio::runtime::Runtime::new()?;
        for (_, url) in servers.urls() {
            runtime.block_on(lockkeeper::quorum::found_fresh(&url))?;
        }
        Ok(servers)
    }

    fn urls(&self) -> Vec<(&'static str, String)> {
        let memory = ["a", "b", "c"].map(|name| format!("memory:quorum-{name}"));
        let file = |name| format!("sqlite:{}", self.folder.path().join(name).display());
        let redis = |namespace: &str, count: usize| -> Vec<String> {
            let servers = self.redis.iter().take(count);
            servers.map(|server| format!("{}?namespace={namespace}", server.url())).collect()
        };
        let mut mix = redis("mix", 1);
        mix.extend([self.postgres.url(), self.mariadb.url()]);
        vec![
            ("memory", quorum(&memory)),
            ("sqlite", quorum(&["a.db", "b.db", "c.db"].map(file))),
            ("three redis", quorum(&redis("three", 3))),
            ("five redis", quorum(&redis("five", 5))),
            ("mix", quorum(&mix)),
        ]
    }

    fn shapes(&self) -> Vec<Shape> {
        self.urls().into_iter().map(|(name, url)| Shape::new(name, url).without_refinement()).collect()
    }
}
