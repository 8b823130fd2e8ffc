//! The server: its start, its accepting, and its end.

use std::{sync::Arc, time::Duration};

use axum::Router;
use lockkeeper::{Keeper, KeeperBuilder, StoreError, support::background::Background};
use lockkeeper_console::demo;
use serde_json::json;
use tokio::runtime::Handle;

use crate::{
    api,
    app::{App, Parts},
    connection,
    console::{self, Played, Watched},
    error::ServeError,
    files,
    listener::{Accepted, Listener},
    log::{Log, Output},
    metrics::Exporter,
    outstanding::Outstanding,
    sampler::Sampler,
    settings::{Listen, Settings},
    tls::Tls,
    tokens::Tokens,
};

/// How long a listing of the store may take. It has a keeper of its own, so nobody else waits for it.
const LISTING_LIMIT: Duration = Duration::from_secs(20);
/// How long the store may take to answer the last requests.
const LAST_REQUESTS: Duration = Duration::from_secs(3);
/// How long to wait when the system has no more file descriptors.
const NO_DESCRIPTORS: Duration = Duration::from_millis(100);

/// A server that listens.
pub struct Server {
    app: Arc<App>,
    router: Router,
    listener: Listener,
    listens: Listen,
    tls: Option<Arc<Tls>>,
    token: Option<String>,
    looks: Option<Keeper>,
    played: Option<Played>,
}

impl Server {
    /// Connects to the store and begins to listen. Lines of the log go to stderr.
    ///
    /// # Errors
    /// [`ServeError`] says what to change.
    pub async fn bind(settings: Settings) -> Result<Self, ServeError> {
        Self::bind_with_log(settings, Box::new(std::io::stderr())).await
    }

    /// As [`bind`](Self::bind), with another place for the lines of the log.
    ///
    /// # Errors
    /// As [`bind`](Self::bind).
    pub async fn bind_with_log(settings: Settings, output: Output) -> Result<Self, ServeError> {
        settings.check()?;
        let tls = settings.tls.clone().map(Tls::new).transpose()?.map(Arc::new);
        let (tokens, token) = match &settings.token_file {
            Some(file) => (Tokens::from_file(file, settings.limits.rate)?, None),
            None => {
                let (tokens, token) = Tokens::generated(settings.limits.rate)?;
                (tokens, Some(token))
            }
        };
        let log = Log::start(output)?;
        log.subscribe();
        // Before keepers connect, which register their metrics.
        let exporter = Exporter::install();
        let mut played = if settings.demo { Some(Played::new().await?) } else { None };
        let builder = || match &played {
            Some(played) => Ok(Keeper::builder(played.server.connector(demo::URL))),
            None => lockkeeper::builder(&settings.store),
        };
        let keeper = connect(builder(), None).await?;
        // A store in this process belongs to its keeper alone.
        let alone = settings.store == "memory:" || settings.store.starts_with("memory:?");
        let looks = if alone { None } else { Some(connect(builder(), Some(LISTING_LIMIT)).await?) };
        let sampler = Sampler::start(looks.as_ref().unwrap_or(&keeper).clone());
        let mut watched = Watched::new(&keeper, settings.alarms.as_deref())?;
        if let Some(played) = &mut played {
            played.show_past(&mut watched, settings.alarms.as_deref()).await?;
        }
        let listener = Listener::bind(&settings.listen).await?;
        let listens = listener.listens().map_err(|error| ServeError::internal(error.to_string()))?;
        let app = Arc::new(App::new(Parts { settings, keeper, sampler, watched, tokens, log, exporter }));
        let router = api::router(app.clone());
        Ok(Self { app, router, listener, listens, tls, token, looks, played })
    }

    /// Where it listens: port 0 has become a free one.
    pub fn listens(&self) -> &Listen {
        &self.listens
    }

    /// The URL of the server.
    pub fn url(&self) -> String {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        match (&self.listens, self.app.settings.hosts.first()) {
            (Listen::Tcp(address), Some(host)) if !address.ip().is_loopback() => {
                let port = if host.contains(':') { String::new() } else { format!(":{}", address.port()) };
                format!("{scheme}://{host}{port}")
            }
            (Listen::Tcp(address), _) if address.ip().is_unspecified() => {
                format!("{scheme}://127.0.0.1:{}", address.port())
            }
            (Listen::Tcp(address), _) => format!("{scheme}://{address}"),
            (Listen::Unix(_), _) => format!("{scheme}://localhost"),
        }
    }

    /// The link with the token that was made because there is no file of tokens. The token is in the fragment, which
    /// browsers send to nobody. This is the only place that has it.
    pub fn link(&self) -> Option<String> {
        self.token.as_ref().map(|token| format!("{}/#token={token}", self.url()))
    }

    /// Serves until `end` resolves. Then those who wait are told so, the rest is finished, and nothing is left at the store
    /// but leases that callers have.
    pub async fn run(self, end: impl Future<Output = ()>) {
        let Self { app, router, listener, tls, looks, played, .. } = self;
        let mut tasks = background(&app, tls.as_ref());
        tasks.extend(played.map(|played| Background::spawn(&Handle::current(), played.run())));
        let clients = Outstanding::new();
        app.log.write(
            "info",
            "started",
            json!({ "store": app.keeper.url(), "listens": self.listens.to_string() }),
        );
        let accepting = accept(&app, &router, &listener, tls.as_ref(), &clients);
        tokio::select! {
            () = accepting => {}
            () = end => {}
        }
        drop(listener);
        app.log.write("info", "ending", json!({ "waiting": app.waiting(), "clients": clients.count() }));
        app.drain();
        if tokio::time::timeout(app.settings.limits.drain, clients.finished()).await.is_err() {
            app.connections.close_all();
            clients.finished().await;
        }
        // What could not be delivered is released, and queues are left.
        drop(tokio::time::timeout(LAST_REQUESTS, app.work.finished()).await);
        drop(tokio::time::timeout(LAST_REQUESTS, app.keeper.close()).await);
        if let Some(looks) = looks {
            drop(tokio::time::timeout(LAST_REQUESTS, looks.close()).await);
        }
        app.log.write("info", "ended", json!({}));
        app.log.flush();
    }
}

async fn connect(
    builder: Result<KeeperBuilder, StoreError>,
    limit: Option<Duration>,
) -> Result<Keeper, ServeError> {
    let mut builder = builder?.program("lockkeeper serve");
    if let Some(limit) = limit {
        builder = builder.request_limit(limit);
    }
    Ok(builder.connect().await?)
}

async fn accept(
    app: &Arc<App>,
    router: &Router,
    listener: &Listener,
    tls: Option<&Arc<Tls>>,
    clients: &Outstanding,
) {
    loop {
        let accepted = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                // Those who are here go on, and make room when they leave.
                app.log.write("warn", "cannot accept", json!({ "error": error.to_string() }));
                tokio::time::sleep(NO_DESCRIPTORS).await;
                continue;
            }
        };
        let address = match &accepted {
            Accepted::Tcp(_, address) => Some(*address),
            Accepted::Unix(_) => None,
        };
        // All are busy: it is closed at once, and its client may try again.
        let Some(entered) = app.connections.enter(address) else { continue };
        clients.spawn(connection::serve(app.clone(), router.clone(), entered, accepted, tls.cloned()));
    }
}

/// What goes on beside the requests.
fn background(app: &Arc<App>, tls: Option<&Arc<Tls>>) -> Vec<Background> {
    let runtime = Handle::current();
    let watch = console::watch(app.clone(), app.sampler.read());
    let doctor = console::ask_doctor(app.clone());
    let mut tasks = vec![Background::spawn(&runtime, watch), Background::spawn(&runtime, doctor)];
    if let Some(file) = app.settings.alarms.clone() {
        tasks.push(Background::spawn(&runtime, console::follow_alarms(app.clone(), file)));
    }
    if let Some(exporter) = app.exporter.clone() {
        tasks.push(Background::spawn(&runtime, exporter.keep_up()));
    }
    if let Some(file) = app.settings.token_file.clone() {
        let app = app.clone();
        let reload = files::follow(vec![file.clone()], move || match app.tokens.load(&file) {
            Ok(tokens) => app.log.write("info", "tokens were read anew", json!({ "tokens": tokens })),
            Err(error) => {
                let fields = json!({ "error": error.to_string() });
                app.log.write(
                    "error",
                    "the token file changed and cannot be used; the tokens of before stay",
                    fields,
                );
            }
        });
        tasks.push(Background::spawn(&runtime, reload));
    }
    if let Some(tls) = tls.cloned() {
        let app = app.clone();
        let files = vec![tls.files().cert.clone(), tls.files().key.clone()];
        let reload = files::follow(files, move || match tls.load() {
            Ok(()) => app.log.write("info", "certificate and key were read anew", json!({})),
            Err(error) => {
                let fields = json!({ "error": error.to_string() });
                app.log.write(
                    "error",
                    "the certificate changed and cannot be used; the one of before stays",
                    fields,
                );
            }
        });
        tasks.push(Background::spawn(&runtime, reload));
    }
    tasks
}
