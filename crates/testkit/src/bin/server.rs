//! Starts a real server for tests or by hand, prints its lockkeeper URL, and ends it when the standard input does.

#[cfg(target_os = "linux")]
fn main() -> std::process::ExitCode {
    linux::main()
}

#[cfg(not(target_os = "linux"))]
fn main() {
    eprintln!("servers for tests are started on Linux only");
    std::process::exit(69);
}

#[cfg(target_os = "linux")]
mod linux {
    use std::{
        io::{self, Read as _, Write as _},
        process::ExitCode,
        thread,
    };

    use lockkeeper_testkit::servers::{
        MariaDb, PgBouncer, Postgres, Redis, RedisCluster, RedisSentinel, ZooKeeper,
    };
    use tokio::{
        signal::unix::{SignalKind, signal},
        sync::oneshot,
    };

    const USAGE: &str = "\
usage: server mariadb | pgbouncer | postgres | redis | redis-sentinel | redis-cluster | zookeeper | zookeeper-3

Starts the server, prints its lockkeeper URL, and ends it with all its data when the standard input ends:
  server redis            then, with the URL it prints, in another terminal: behaviour URL";

    /// The command was used wrongly.
    const EX_USAGE: u8 = 64;
    /// The server did not start.
    const EX_UNAVAILABLE: u8 = 69;

    pub(super) fn main() -> ExitCode {
        let words: Vec<String> = std::env::args().skip(1).collect();
        let [which] = &words[..] else { return usage() };
        let ended = match which.as_str() {
            "mariadb" => MariaDb::start().and_then(|server| serve(&server.url())),
            "pgbouncer" => Postgres::start().and_then(|server| serve(&PgBouncer::before(&server)?.url())),
            "postgres" => Postgres::start().and_then(|server| serve(&server.url())),
            "redis" => Redis::start().and_then(|server| serve(&server.url())),
            "redis-sentinel" => RedisSentinel::start().and_then(|servers| serve(&servers.url())),
            "redis-cluster" => RedisCluster::start().and_then(|servers| serve(&servers.url())),
            "zookeeper" => ZooKeeper::start().and_then(|server| serve(&server.url())),
            "zookeeper-3" => ZooKeeper::ensemble().and_then(|servers| serve(&servers.url())),
            _ => return usage(),
        };
        match ended {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("{error}");
                ExitCode::from(EX_UNAVAILABLE)
            }
        }
    }

    fn usage() -> ExitCode {
        eprintln!("{USAGE}");
        ExitCode::from(EX_USAGE)
    }

    /// Says where the server is, and returns when nobody needs it any more: so the caller ends it, with its
    /// folder, also when somebody presses Ctrl-C.
    fn serve(url: &str) -> io::Result<()> {
        let mut out = io::stdout();
        writeln!(out, "{url}")?;
        out.flush()?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
        runtime.block_on(async {
            let (end, input_ended) = oneshot::channel();
            thread::spawn(move || end.send(io::stdin().read_to_end(&mut Vec::new())));
            let (mut interrupt, mut terminate) =
                (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
            tokio::select! {
                _ = input_ended => {}
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
            Ok(())
        })
    }
}
