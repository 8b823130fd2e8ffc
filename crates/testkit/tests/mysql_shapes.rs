//! The whole behaviour suite, and refinement, on MariaDB: over TCP, by socket, as a user with few rights, and over TLS.

use std::process::ExitCode;

use lockkeeper_testkit::{
    servers::{MariaDb, MariaDbOptions},
    shapes::{self, Shape},
};

/// Tests wait most of the time, so more of them than cores run at once. Every grant is synced to disk, so not many more.
const THREADS: usize = 10;

fn main() -> ExitCode {
    shapes::run(THREADS, Servers::start, Servers::shapes)
}

struct Servers {
    server: MariaDb,
    encrypted: MariaDb,
}

impl Servers {
    /// The user `few` may read and write in its database, and make tables there.
    fn start() -> std::io::Result<Self> {
        let server = MariaDbOptions::default().password("canary").setting("max_connections = 900").start()?;
        server.sql(
            "CREATE DATABASE few; CREATE USER few IDENTIFIED BY 'secret'; \
             GRANT SELECT, INSERT, UPDATE, DELETE, CREATE ON few.* TO few",
        )?;
        let encrypted = MariaDbOptions::default().tls().setting("max_connections = 900").start()?;
        Ok(Self { server, encrypted })
    }

    fn shapes(&self) -> Vec<Shape> {
        let (server, socket) = (&self.server, self.server.socket());
        let by_socket =
            format!("mariadb://lockkeeper:canary@/lockkeeper?prefix=by_socket_&socket={}", socket.display());
        vec![
            Shape::new("tcp", server.url()),
            Shape::new("socket", by_socket),
            Shape::new("few rights", format!("mysql://few:secret@{}/few", server.address())),
            Shape::new("tls", self.encrypted.url()),
        ]
    }
}
