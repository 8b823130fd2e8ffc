//! `serve`: locks over HTTP, until a signal ends it.

use lockkeeper_serve::{ServeError, ServeErrorKind, Server, Settings, TlsFiles};
use nix::sys::signal::Signal;
use rustix::process::{Resource, getrlimit, setrlimit};

use crate::{
    args::{ServeArgs, StoreArgs},
    exit::{self, Failure},
    signals::Signals,
    store, text,
};

/// Runs `lockkeeper serve`.
pub(crate) fn serve(store: &StoreArgs, args: &ServeArgs) -> Result<u8, Failure> {
    let settings = settings(store, args)?;
    raise_limit();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Failure::internal("cannot start", error))?;
    runtime.block_on(async {
        let mut signals = Signals::listen()?;
        let server = Server::bind(settings).await?;
        text::print(&match server.link() {
            Some(link) => format!("listening on {}\nopen {link}\n", server.url()),
            None => format!("listening on {}\n", server.url()),
        })?;
        server.run(ended(&mut signals)).await;
        Ok(0)
    })
}

/// Raises the limit of open files: every connection is one, and systems allow 1,024 unless a program asks for more.
fn raise_limit() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // If that fails, there are fewer connections.
    let _ = setrlimit(Resource::Nofile, limit);
}

/// Waits for a signal that asks for the end. The others are for programs that `run` starts.
async fn ended(signals: &mut Signals) {
    while !matches!(signals.next().await, Signal::SIGINT | Signal::SIGTERM | Signal::SIGQUIT) {}
}

fn settings(store: &StoreArgs, args: &ServeArgs) -> Result<Settings, Failure> {
    if args.demo && (store.store.is_some() || store.store_file.is_some()) {
        return Err(Failure::usage(
            "--demo shows locks of its own in memory and uses no store; leave out --demo to see your store, or the store to \
             see the demo",
        ));
    }
    let mut settings = Settings::new(if args.demo { String::new() } else { store::url(store)? });
    settings.alarms.clone_from(&args.alarms);
    settings.demo = args.demo;
    settings.listen = args.listen.clone();
    settings.token_file.clone_from(&args.token_file);
    if let (Some(cert), Some(key)) = (args.tls_cert.clone(), args.tls_key.clone()) {
        settings.tls = Some(TlsFiles { cert, key });
    }
    settings.behind_proxy = args.behind_proxy;
    settings.hosts.clone_from(&args.host);
    settings.hottest = args.hottest;
    let limits = &mut settings.limits;
    limits.connections = args.connections.unwrap_or(limits.connections);
    limits.waiting = args.waiting;
    limits.longest_wait = args.longest_wait.unwrap_or(limits.longest_wait);
    limits.rate = args.rate.unwrap_or(limits.rate);
    limits.patience = args.patience.unwrap_or(limits.patience);
    Ok(settings)
}

impl From<ServeError> for Failure {
    fn from(error: ServeError) -> Self {
        let code = match error.kind() {
            ServeErrorKind::Usage => exit::USAGE,
            ServeErrorKind::Unreachable => exit::UNREACHABLE,
            ServeErrorKind::System => exit::INTERNAL,
        };
        Self::new(code, error.to_string())
    }
}
