//! What the servers grant. Each of them has limits of its own for sessions, and one that moves to another server lasts
//! as long as that one allows from then on, which the client keeps to itself. So each server is asked, with two sessions
//! that are closed at once: one that is too long, and one that is too short where ticks are longer than the URL says.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use tokio::task::JoinSet;

use crate::place::Place;

/// How long sessions last, and how long ticks are, as far as the servers told.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Limits {
    /// The longest session that all servers grant.
    pub(crate) longest: Duration,
    /// The longest tick. Unless it is told otherwise, a server keeps no session for less than two.
    pub(crate) tick: Duration,
}

/// What is known of the servers of one URL.
#[derive(Debug, Default)]
pub(crate) struct Known {
    servers: Mutex<HashMap<String, Limits>>,
    /// When they were asked last. One asks at a time.
    asked: tokio::sync::Mutex<Option<Instant>>,
}

/// The longest session that the protocol can ask for.
const ENDLESS: Duration = Duration::from_millis(i32::MAX as u64);

/// The client does not wait long for a session that is to be short.
const SHORT_TRIES: u32 = 3;

impl Place {
    /// What is known so far.
    pub(crate) fn limits(&self) -> Limits {
        let servers = self.known.servers.lock().unwrap_or_else(PoisonError::into_inner);
        let all = Limits { longest: ENDLESS, tick: self.tick };
        servers.values().fold(all, |all, one| Limits {
            longest: all.longest.min(one.longest),
            tick: all.tick.max(one.tick),
        })
    }

    /// As [`limits`](Self::limits), after all servers were asked, later than `since` or ever.
    pub(crate) async fn learn_limits(&self, since: Option<Instant>) -> Limits {
        let mut asked = self.known.asked.lock().await;
        if asked.is_none_or(|asked| since.is_some_and(|since| asked <= since)) {
            let (now, before) = (Instant::now(), self.limits());
            self.ask_all().await;
            *asked = Some(now);
            self.report(before, self.limits());
        }
        self.limits()
    }

    async fn ask_all(&self) {
        let mut asking = JoinSet::new();
        for server in self.servers.split(',') {
            let (place, server) = (self.clone(), server.to_owned());
            asking.spawn(async move {
                let limits = place.ask(&server).await;
                (server, limits)
            });
        }
        for (server, limits) in asking.join_all().await {
            let mut servers = self.known.servers.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(limits) = limits {
                servers.insert(server, limits);
            } else if !servers.contains_key(&server) {
                not_told(&server);
            }
        }
    }

    /// What one server grants; `None` if it does not answer.
    async fn ask(&self, server: &str) -> Option<Limits> {
        let granted = async |timeout| {
            let opening = self.attempt(server, timeout, false).ok()?;
            let client = tokio::time::timeout(self.session / 8, opening).await.ok()?.ok()?;
            Some(client.session_timeout())
        };
        // First, so that it is known before a session that has become shorter can end.
        let longest = granted(ENDLESS).await?;
        for _ in 0..SHORT_TRIES {
            if let Some(shortest) = granted(self.tick * 2).await {
                return Some(Limits { longest, tick: shortest / 2 });
            }
        }
        not_told(server);
        Some(Limits { longest, tick: self.tick })
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
    }
}

fn not_told(server: &str) {
    tracing::warn!(
        server,
        "a server of ZooKeeper did not say how long it keeps sessions; locks are only safe on it if its \
         maxSessionTimeout is not below ?session= and its tickTime not above &tick="
    );
}
