//! Learns how long the servers keep sessions, and how long their ticks are. Touches the servers.
//!
//! Each server has limits of its own. A session that moves to another server lasts as long as that one allows from then
//! on, and the client does not tell. So each server is asked with two sessions that are closed at once: one that is too
//! long for it, and one that is too short if its ticks are longer than the URL says.

use std::{
    sync::{Arc, Mutex, MutexGuard},
    time::{Duration, Instant},
};

use lockkeeper_core::support;
use tokio::{sync::watch, task::JoinSet};

use crate::{open::Lifetime, settings::Settings};

/// How long sessions last and how long ticks are, on the servers that answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Limits {
    /// The longest session that all servers grant.
    pub(crate) longest: Duration,
    /// The longest tick. By default a server keeps no session for less than two ticks.
    pub(crate) tick: Duration,
}

/// The limits of all servers of one URL.
#[derive(Debug)]
pub(crate) struct ServerLimits {
    settings: Arc<Settings>,
    servers: Vec<Server>,
    /// Changes whenever one of them has answered.
    answered: watch::Sender<()>,
}

#[derive(Debug)]
struct Server {
    address: String,
    /// `None` until it has answered.
    limits: Mutex<Option<Limits>>,
    /// When it was asked last. The lock lets one task ask at a time.
    asked: tokio::sync::Mutex<Option<Instant>>,
}

impl Server {
    fn new(address: &str) -> Self {
        Self { address: address.to_owned(), limits: Mutex::default(), asked: tokio::sync::Mutex::default() }
    }

    fn limits(&self) -> MutexGuard<'_, Option<Limits>> {
        support::lock(&self.limits)
    }
}

/// The longest session that the protocol can ask for.
const ENDLESS: Duration = Duration::from_millis(i32::MAX as u64);

/// How often a server is asked for a short session. The client does not wait long for one, so an answer may come too
/// late.
const SHORT_TRIES: u32 = 3;

impl ServerLimits {
    /// Begins without an answer of any server.
    pub(crate) fn new(settings: Arc<Settings>) -> Arc<Self> {
        let servers = settings.servers.split(',').map(Server::new).collect();
        Arc::new(Self { settings, servers, answered: watch::channel(()).0 })
    }

    /// Changes whenever a server has answered.
    pub(crate) fn changes(&self) -> watch::Receiver<()> {
        self.answered.subscribe()
    }

    /// The limits that are known so far.
    pub(crate) fn known(&self) -> Limits {
        let none = Limits { longest: ENDLESS, tick: self.settings.tick };
        self.servers.iter().filter_map(|server| *server.limits()).fold(none, |all, one| Limits {
            longest: all.longest.min(one.longest),
            tick: all.tick.max(one.tick),
        })
    }

    /// Asks each server that was not asked after `since`; without a `since`, each server that was never asked. Each answer
    /// counts at once, however long the other servers take.
    pub(crate) async fn learn(self: &Arc<Self>, since: Option<Instant>) {
        let mut asking = JoinSet::new();
        for nth in 0..self.servers.len() {
            let limits = self.clone();
            asking.spawn(async move { limits.learn_from(&limits.servers[nth], since).await });
        }
        asking.join_all().await;
    }

    async fn learn_from(&self, server: &Server, since: Option<Instant>) {
        let mut asked = server.asked.lock().await;
        if asked.is_none_or(|asked| since.is_some_and(|since| asked <= since)) {
            let now = Instant::now();
            self.ask(server).await;
            *asked = Some(now);
        }
    }

    async fn ask(&self, server: &Server) {
        // The long session goes first, so that its answer is known before a session that has become shorter can end.
        let Some(longest) = self.granted(server, ENDLESS).await else {
            if server.limits().is_none() {
                warn_of_silence(&server.address);
            }
            return;
        };
        let tick = server.limits().map_or(self.settings.tick, |limits| limits.tick);
        self.learned(server, Limits { longest, tick });
        for _ in 0..SHORT_TRIES {
            if let Some(shortest) = self.granted(server, self.settings.tick * 2).await {
                self.learned(server, Limits { longest, tick: shortest / 2 });
                return;
            }
        }
        warn_of_silence(&server.address);
    }

    /// The timeout that `server` grants to a session that asks for `timeout`.
    async fn granted(&self, server: &Server, timeout: Duration) -> Option<Duration> {
        let opening = self.settings.attempt(&server.address, timeout, Lifetime::Client).ok()?;
        let client = tokio::time::timeout(self.settings.session / 8, opening).await.ok()?.ok()?;
        Some(client.session_timeout())
    }

    fn learned(&self, server: &Server, limits: Limits) {
        let before = self.known();
        *server.limits() = Some(limits);
        self.warn_of_change(before, self.known());
        self.answered.send_replace(());
    }

    /// Explains why no session with these servers can be kept: a sign of life counts after a tick, and one may be lost.
    pub(crate) fn too_short(&self, agreed: Duration) -> Option<String> {
        let Limits { longest, tick } = self.known();
        let lasts = agreed.min(longest);
        (lasts < tick * 2).then(|| {
            format!(
                "a server keeps sessions for {lasts:?} at most, which is less than two ticks of {tick:?}, so they would end \
                 again and again; raise maxSessionTimeout, or set &tick= to the servers' tickTime"
            )
        })
    }

    fn warn_of_change(&self, before: Limits, now: Limits) {
        if now.tick > before.tick {
            tracing::warn!(
                tick = ?now.tick,
                "the ZooKeeper servers keep no session for less than two of these ticks, which are longer than &tick= \
                 says; deadlines are that much earlier. Set &tick= to their tickTime"
            );
        }
        if now.longest < before.longest.min(self.settings.session) {
            tracing::warn!(
                longest = ?now.longest,
                "a ZooKeeper server keeps sessions for less than ?session= says; deadlines are that much earlier. Lower \
                 ?session= or raise maxSessionTimeout on all servers"
            );
        }
        if let Some(reason) = self.too_short(self.settings.session).filter(|_| now != before) {
            tracing::warn!("no session with ZooKeeper can be kept: {reason}");
        }
    }
}

fn warn_of_silence(server: &str) {
    tracing::warn!(
        server,
        "a ZooKeeper server did not say how long it keeps sessions; locks are only safe on it if its \
         maxSessionTimeout is not below ?session= and its tickTime not above &tick="
    );
}
