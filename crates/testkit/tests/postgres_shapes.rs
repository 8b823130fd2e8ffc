//! The whole behaviour suite, and refinement, on PostgreSQL: over TCP, by socket, as a user with few rights, with statements
//! that are not prepared, behind a transaction pooler, and over TLS with certificates of both sides.

use std::process::ExitCode;

use libtest_mimic::{Arguments, Trial};
use lockkeeper::url;
use lockkeeper_testkit::{
    behaviour,
    refinement::{self, Subject},
    servers::{PgBouncer, Postgres, PostgresOptions},
};

/// Tests wait most of the time, so more of them than cores run at once. Every grant is synced to disk, so not many more.
const THREADS: usize = 10;

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    arguments.test_threads.get_or_insert(THREADS);
    let Servers { pooler, server, encrypted } = match start() {
        Ok(servers) => servers,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::FAILURE;
        }
    };
    let few = server.url_as("few", Some("secret"));
    let shapes = [
        ("tcp", server.url()),
        ("socket", format!("{}?schema=by_socket", server.socket_url())),
        ("few rights", format!("{few}?schema=few")),
        ("not prepared", format!("{}?schema=unnamed&pooler=true", server.url())),
        ("pooler", format!("{}?schema=pooled&pooler=true", pooler.url())),
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
    drop((pooler, server, encrypted));
    outcome.exit_code()
}

struct Servers {
    pooler: PgBouncer,
    server: Postgres,
    encrypted: Postgres,
}

fn start() -> std::io::Result<Servers> {
    let server = PostgresOptions::default().password("canary").setting("max_connections = 900").start()?;
    server.sql("CREATE ROLE few LOGIN PASSWORD 'secret'; CREATE SCHEMA few AUTHORIZATION few")?;
    let pooler = PgBouncer::before(&server)?;
    let encrypted = PostgresOptions::default().tls().setting("max_connections = 500").start()?;
    Ok(Servers { pooler, server, encrypted })
}

fn refine(url: String, seed: u64) -> Result<(), libtest_mimic::Failed> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let subject = Subject::in_real_time(move || url::connector(&url));
    runtime
        .block_on(refinement::check(&subject, seed, 60))
        .map(drop)
        .map_err(|failure| failure.to_string().into())
}
