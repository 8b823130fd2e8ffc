//! What the servers grant. Each of them has limits of its own for sessions, and one that moves to another server lasts
//! as long as that one allows from then on, which the client keeps to itself. So each server is asked, with two sessions
//! that are closed at once: one that is too long, and one that is too short where ticks are longer than the URL says.

use lockkeeper_core::support;
use std::{
    sync::{Mutex, MutexGuard},
    time::{Duration, Instant},
};

use tokio::{sync::watch, task::JoinSet};

use crate::settings::Settings;

/// How long sessions last, and how long ticks are, as far as the servers told.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Limits {
    /// The longest session that all servers grant.
    pub(crate) longest: Duration,
    /// The longest tick. Unless it is told otherwise, a server keeps no session for less than two.
    pub(crate) tick: Duration,
}

/// What is known of the servers of one URL.
#[derive(Debug)]
pub(crate) struct ServerLimits {
    servers: Vec<Server>,
    /// Changes whenever one of them has told something.
    told: watch::Sender<()>,
}

/// What is known of one server.
#[derive(Debug)]
struct Server {
    address: String,
    limits: Mutex<Option<Limits>>,
    /// When it was asked last. One asks at a time.
    asked: tokio::sync::Mutex<Option<Instant>>,
}

impl Server {
    fn limits(&self) -> MutexGuard<'_, Option<Limits>> {
        support::lock(&self.limits)
    }
}

impl ServerLimits {
    /// Nothing yet of these servers.
    pub(crate) fn of(servers: &str) -> Self {
        let server = |address: &str| Server {
            address: address.to_owned(),
            limits: Mutex::default(),
            asked: tokio::sync::Mutex::default(),
        };
        Self { servers: servers.split(',').map(server).collect(), told: watch::channel(()).0 }
    }

    /// Changes whenever there is something new to be known.
    pub(crate) fn news(&self) -> watch::Receiver<()> {
        self.told.subscribe()
    }
}

/// The longest session that the protocol can ask for.
const ENDLESS: Duration = Duration::from_millis(i32::MAX as u64);

/// The client does not wait long for a session that is to be short.
const SHORT_TRIES: u32 = 3;

impl Settings {
    /// What is known so far.
    pub(crate) fn limits(&self) -> Limits {
        let all = Limits { longest: ENDLESS, tick: self.tick };
        self.server_limits.servers.iter().filter_map(|server| *server.limits()).fold(all, |all, one| Limits {
            longest: all.longest.min(one.longest),
            tick: all.tick.max(one.tick),
        })
    }

    /// Asks all servers, each unless it was asked later than `since`, or ever. What one says counts at once, however long
    /// the others take.
    pub(crate) async fn learn_limits(&self, since: Option<Instant>) {
        let mut asking = JoinSet::new();
        for nth in 0..self.server_limits.servers.len() {
            let settings = self.clone();
            asking.spawn(async move { settings.learn(&settings.server_limits.servers[nth], since).await });
        }
        asking.join_all().await;
    }

    async fn learn(&self, server: &Server, since: Option<Instant>) {
        let mut asked = server.asked.lock().await;
        if asked.is_none_or(|asked| since.is_some_and(|since| asked <= since)) {
            let now = Instant::now();
            self.ask(server).await;
            *asked = Some(now);
        }
    }

    /// Asks one server what it grants.
    async fn ask(&self, server: &Server) {
        let granted = async |timeout| {
            let opening = self.attempt(&server.address, timeout, false).ok()?;
            let client = tokio::time::timeout(self.session / 8, opening).await.ok()?.ok()?;
            Some(client.session_timeout())
        };
        // First, so that it is known before a session that has become shorter can end.
        let Some(longest) = granted(ENDLESS).await else {
            if server.limits().is_none() {
                not_told(&server.address);
            }
            return;
        };
        let before = server.limits().map_or(self.tick, |limits| limits.tick);
        self.told(server, Limits { longest, tick: before });
        for _ in 0..SHORT_TRIES {
            if let Some(shortest) = granted(self.tick * 2).await {
                self.told(server, Limits { longest, tick: shortest / 2 });
                return;
            }
        }
        not_told(&server.address);
    }

    fn told(&self, server: &Server, limits: Limits) {
        let before = self.limits();
        *server.limits() = Some(limits);
        self.report(before, self.limits());
        self.server_limits.told.send_replace(());
    }

    /// Why no session of these servers can be kept: signs of life count after a tick, and one may be lost.
    pub(crate) fn too_short(&self, agreed: Duration) -> Option<String> {
        let Limits { longest, tick } = self.limits();
        let lasts = agreed.min(longest);
        (lasts < tick * 2).then(|| {
            format!(
                "a server keeps sessions for {lasts:?} at most, which is less than two ticks of {tick:?}: they would end \
                 again and again; raise maxSessionTimeout, or write &tick= as the servers' tickTime is"
            )
        })
    }

    fn report(&self, before: Limits, now: Limits) {
        if now.tick > before.tick {
            tracing::warn!(
                tick = ?now.tick,
                "the servers of ZooKeeper keep no session for less than two of these ticks, which are longer than &tick= \
                 says; deadlines are that much earlier. Write &tick= as their tickTime is"
            );
        }
        if now.longest < before.longest.min(self.session) {
            tracing::warn!(
                longest = ?now.longest,
                "a server of ZooKeeper keeps sessions for less than ?session= says; deadlines are that much earlier. Lower \
                 ?session= or raise maxSessionTimeout on all servers"
            );
        }
        if let Some(reason) = self.too_short(self.session).filter(|_| now != before) {
            tracing::warn!("no session with ZooKeeper can be kept: {reason}");
        }
    }
}

fn not_told(server: &str) {
    tracing::warn!(
        server,
        "a server of ZooKeeper did not say how long it keeps sessions; locks are only safe on it if its \
         maxSessionTimeout is not below ?session= and its tickTime not above &tick="
    );
}
