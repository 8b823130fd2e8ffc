//! The whole behaviour suite, and refinement, on PostgreSQL: over TCP, by socket, as a user with few rights, with statements
//! that are not prepared, behind a transaction pooler, and over TLS with certificates of both sides.

use std::process::ExitCode;

use lockkeeper_testkit::{
    servers::{PgBouncer, Postgres, PostgresOptions},
    shapes::{self, Shape},
};

/// Tests wait most of the time, so more of them than cores run at once. Every grant is synced to disk, so not many more.
const THREADS: usize = 10;

fn main() -> ExitCode {
    shapes::run(THREADS, Servers::start, Servers::shapes)
}

/// The pooler ends before the server behind it.
struct Servers {
    pooler: PgBouncer,
    server: Postgres,
    encrypted: Postgres,
}

impl Servers {
    fn start() -> std::io::Result<Self> {
        let server =
            PostgresOptions::default().password("canary").setting("max_connections = 900").start()?;
        server.sql("CREATE ROLE few LOGIN PASSWORD 'secret'; CREATE SCHEMA few AUTHORIZATION few")?;
        let pooler = PgBouncer::before(&server)?;
        let encrypted = PostgresOptions::default().tls().setting("max_connections = 500").start()?;
        Ok(Self { pooler, server, encrypted })
    }

    fn shapes(&self) -> Vec<Shape> {
        let Self { pooler, server, encrypted } = self;
        let few = server.url_as("few", Some("secret"));
        vec![
            Shape::new("tcp", server.url()),
            Shape::new("socket", format!("{}?schema=by_socket", server.socket_url())),
            Shape::new("few rights", format!("{few}?schema=few")),
            Shape::new("not prepared", format!("{}?schema=unnamed&pooler=true", server.url())),
            Shape::new("pooler", format!("{}?schema=pooled&pooler=true", pooler.url())),
            Shape::new("tls", encrypted.url()),
        ]
    }
}
