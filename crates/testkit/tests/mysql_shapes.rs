//! The whole behaviour suite, and refinement, on MariaDB: over TCP, by socket, as a user with few rights, and over TLS.

use std::process::ExitCode;

use libtest_mimic::{Arguments, Trial};
use lockkeeper::url;
use lockkeeper_testkit::{
    behaviour,
    refinement::{self, Subject},
    servers::{MariaDb, MariaDbOptions},
};

/// Tests wait most of the time, so more of them than cores run at once. Every grant is synced to disk, so not many more.
const THREADS: usize = 10;

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    arguments.test_threads.get_or_insert(THREADS);
    let (server, encrypted) = match start().and_then(|server| Ok((server, start_encrypted()?))) {
        Ok(servers) => servers,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::FAILURE;
        }
    };
    let socket = server.socket().display().to_string();
    let shapes = [
        ("tcp", server.url()),
        ("socket", format!("mariadb://lockkeeper:canary@/lockkeeper?prefix=by_socket_&socket={socket}")),
        ("few rights", format!("mysql://few:secret@{}/few", server.address())),
        ("tls", encrypted.url()),
    ];
    let mut trials = Vec::new();
    for (shape, url) in shapes {
        let connect = {
            let url = url.clone();
            move || url::connector(&url).expect("a good URL")
        };
        match behaviour::trials(connect) {
            Ok(of_shape) => trials.extend(of_shape.into_iter().map(|trial| trial.with_kind(shape))),
            Err(error) => {
                eprintln!("{shape}: {error}");
                return ExitCode::FAILURE;
            }
        }
        for seed in 0..2 {
            let url = url.clone();
            let name = format!("refinement::seed_{seed}");
            trials.push(Trial::test(name, move || refine(url, seed)).with_kind(shape));
        }
    }
    let outcome = libtest_mimic::run(&arguments, trials);
    drop((server, encrypted));
    outcome.exit_code()
}

/// The user `few` may read and write in its database, and make tables there.
fn start() -> std::io::Result<MariaDb> {
    let server = MariaDbOptions::default().password("canary").setting("max_connections = 900").start()?;
    server.sql(
        "CREATE DATABASE few; CREATE USER few IDENTIFIED BY 'secret'; \
         GRANT SELECT, INSERT, UPDATE, DELETE, CREATE ON few.* TO few",
    )?;
    Ok(server)
}

fn start_encrypted() -> std::io::Result<MariaDb> {
    MariaDbOptions::default().tls().setting("max_connections = 900").start()
}

fn refine(url: String, seed: u64) -> Result<(), libtest_mimic::Failed> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let subject = Subject::in_real_time(move || url::connector(&url));
    runtime
        .block_on(refinement::check(&subject, seed, 60))
        .map(drop)
        .map_err(|failure| failure.to_string().into())
}
