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
    console::{Played, Watched},
    console_feed,
    error::ServeError,
    files::{Attempt, Followed, Loaded},
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
/// The pause before the next try when the system has no more file descriptors.
const NO_DESCRIPTORS: Duration = Duration::from_millis(100);

/// The files that are read again when they change.
struct FollowedFiles {
    tokens: Option<Followed>,
    tls: Option<Followed>,
    alarms: Option<Followed>,
}

impl FollowedFiles {
    fn before_reading(settings: &Settings) -> Self {
        let tls = settings.tls.clone().map(|files| vec![files.cert, files.key]);
        Self {
            tokens: settings.token_file.clone().map(|file| Followed::before_reading(vec![file])),
            tls: tls.map(Followed::before_reading),
            alarms: settings.alarms.clone().map(|file| Followed::before_reading(vec![file])),
        }
    }
}

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
    followed: FollowedFiles,
}

impl Server {
    /// Connects to the store and begins to listen. Lines of the log go to stderr.
    ///
    /// # Errors
    /// [`ServeError`] says what to change.
    pub async fn bind(settings: Settings) -> Result<Self, ServeError> {
        Self::bind_with_log(settings, Box::new(std::io::stderr())).await
    }

    /// Does the same as [`bind`](Self::bind), with another place for the lines of the log.
    ///
    /// # Errors
    /// As [`bind`](Self::bind).
    pub async fn bind_with_log(settings: Settings, output: Output) -> Result<Self, ServeError> {
        settings.check()?;
        let followed = FollowedFiles::before_reading(&settings);
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
        // The demo reads the file itself, so that nobody is told of invented alarms.
        let alarms = settings.alarms.as_deref().filter(|_| !settings.demo);
        let mut watched = Watched::new(&keeper, alarms)?;
        if let Some(played) = &mut played {
            played.show_past(&mut watched, settings.alarms.as_deref()).await?;
        }
        let listener = Listener::bind(&settings.listen).await?;
        let listens = listener.listens().map_err(|error| ServeError::internal(error.to_string()))?;
        let app = Arc::new(App::new(Parts { settings, keeper, sampler, watched, tokens, log, exporter }));
        let router = api::router(app.clone());
        Ok(Self { app, router, listener, listens, tls, token, looks, played, followed })
    }

    /// Returns the address that it listens on: port 0 has become a free one.
    pub fn listens(&self) -> &Listen {
        &self.listens
    }

    /// Returns the URL of the server.
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

    /// Returns the link with the token that was made because there is no file of tokens. The token is in the fragment,
    /// which browsers send to nobody. It is kept nowhere else.
    pub fn link(&self) -> Option<String> {
        self.token.as_ref().map(|token| format!("{}/#token={token}", self.url()))
    }

    /// Serves until `end` resolves. Then requests that wait are refused, the others are finished, and nothing is left
    /// at the store but leases that callers have.
    pub async fn run(self, end: impl Future<Output = ()>) {
        let Self { app, router, listener, tls, looks, played, followed, .. } = self;
        let _tasks = background(&app, tls.as_ref(), played, followed);
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
            app.log.write("warn", "connections were cut", json!({ "clients": clients.count() }));
            app.connections.close_all();
            clients.finished().await;
        }
        // Grants that could not be delivered are released, and queues are left.
        let worked = tokio::time::timeout(LAST_REQUESTS, app.work.finished()).await;
        let closed = tokio::time::timeout(LAST_REQUESTS, app.keeper.close()).await;
        if worked.is_err() || closed.is_err() {
            let what =
                "the store did not answer the last requests; what they were to release ends with its lease";
            app.log.write("warn", what, json!({ "requests": app.work.count() }));
        }
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
                // Clients that are connected go on, and make room when they leave.
                app.log.write("warn", "cannot accept", json!({ "error": error.to_string() }));
                tokio::time::sleep(NO_DESCRIPTORS).await;
                continue;
            }
        };
        let address = match &accepted {
            Accepted::Tcp(_, address) => Some(*address),
            Accepted::Unix(_) => None,
        };
        // All connections are busy: this one is closed at once, and its client may try again.
        let Some(entered) = app.connections.enter(address) else { continue };
        clients.spawn(connection::serve(app.clone(), router.clone(), entered, accepted, tls.cloned()));
    }
}

/// Starts the tasks that run beside the requests.
fn background(
    app: &Arc<App>,
    tls: Option<&Arc<Tls>>,
    played: Option<Played>,
    followed: FollowedFiles,
) -> Vec<Background> {
    let FollowedFiles { tokens, tls: tls_files, alarms } = followed;
    let watch = console_feed::watch(app.clone(), app.sampler.read());
    let mut tasks = vec![spawn(watch), spawn(console_feed::ask_doctor(app.clone()))];
    let probing = app.clone();
    tasks.push(spawn(async move { console_feed::probe(&probing.keeper, &probing.watched).await }));
    tasks.extend(alarms.map(|file| spawn(console_feed::follow_alarms(app.clone(), file))));
    tasks.extend(app.exporter.clone().map(|exporter| spawn(exporter.keep_up())));
    tasks.extend(tokens.map(|file| spawn(follow_tokens(app.clone(), file))));
    let tls = tls.cloned().zip(tls_files);
    tasks.extend(tls.map(|(tls, files)| spawn(follow_tls(app.clone(), tls, files))));
    tasks.extend(played.map(|played| spawn(played.run())));
    tasks
}

fn spawn(work: impl Future<Output = ()> + Send + 'static) -> Background {
    Background::spawn(&Handle::current(), work)
}

/// Reads the token file again when it changes.
async fn follow_tokens(app: Arc<App>, file: Followed) {
    let Some(path) = app.settings.token_file.clone() else { return };
    let load = |attempt| match app.tokens.load(&path) {
        Ok(tokens) => {
            app.log.write("info", "tokens were read anew", json!({ "tokens": tokens }));
            Loaded::Good
        }
        Err(error) => {
            let what = "the token file changed and cannot be used; the tokens of before stay";
            not_loaded(&app, attempt, what, &error)
        }
    };
    file.follow(load).await;
}

/// Reads certificate and key again when they change.
async fn follow_tls(app: Arc<App>, tls: Arc<Tls>, files: Followed) {
    let load = |attempt| match tls.load() {
        Ok(()) => {
            app.log.write("info", "certificate and key were read anew", json!({}));
            Loaded::Good
        }
        Err(error) => {
            let what = "the certificate changed and cannot be used; the one of before stays";
            not_loaded(&app, attempt, what, &error)
        }
    };
    files.follow(load).await;
}

fn not_loaded(app: &App, attempt: Attempt, what: &str, error: &ServeError) -> Loaded {
    if attempt == Attempt::First {
        app.log.write("error", what, json!({ "error": error.to_string() }));
    }
    Loaded::Bad
}
