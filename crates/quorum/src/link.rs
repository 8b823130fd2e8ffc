//! One member as a client sees it: its connection, its clock, its vote, and its trouble.

use std::{
    sync::{Arc, Mutex, MutexGuard, OnceLock, atomic::AtomicBool},
    time::Duration,
};

use lockkeeper_core::{
    GrantNumber, StoreError, StoreErrorKind,
    clock::BootTime,
    store::{Member, MemberState, Membership, Store, StoreTime},
    support::{self, duration::show},
};
use tokio::sync::Notify;

use crate::{
    member_ids::MemberIds,
    record::{Record, Vote},
};

/// How long after it was sent a claim may still take effect at a member.
pub(crate) const CLAIM_LIFE: Duration = Duration::from_secs(5);

/// The time after the end of a suspicion for which a member still counts as one in trouble.
const CALM_AFTER: Duration = Duration::from_secs(10);

/// One member.
#[derive(Debug)]
pub(crate) struct Link {
    /// Its place among the members.
    pub(crate) index: usize,
    connected: OnceLock<Arc<dyn Store>>,
    health: Mutex<Health>,
    /// Whether it is being asked whether it answers again.
    pub(crate) is_asked: AtomicBool,
    /// Told when the member becomes suspected.
    suspected: Arc<Notify>,
}

/// The latest news of a member.
#[derive(Debug, Default)]
struct Health {
    /// Whether its last request got no answer in time.
    suspect: bool,
    /// When that was found out the last time.
    suspect_since: BootTime,
    /// Whether nobody has looked after its contenders since it is suspected.
    is_new: bool,
    /// Whether an empty request ended the last suspicion, and nothing else was answered since.
    only_empty: bool,
    /// Whether it was suspected again after that: it may be able to read and not to write. Empty requests end no
    /// suspicion then.
    is_doubted: bool,
    /// The time when it answered again after it was last suspected.
    back_since: Option<BootTime>,
    /// Its lease clock, and when that was heard.
    clock: Option<(BootTime, StoreTime)>,
    /// Its wall clock, and when that was heard.
    wall: Option<(BootTime, u64)>,
    /// Its membership, and since when it was always the same.
    membership: Option<(Membership, BootTime)>,
    /// Which server it is, as it last told.
    server: Option<Arc<str>>,
    /// Its vote with that membership, and the version of the member ids by which it was judged.
    vote: Option<(u64, Vote)>,
    trouble: Option<StoreError>,
}

impl Link {
    pub(crate) fn new(index: usize, suspected: Arc<Notify>) -> Self {
        Self {
            index,
            connected: OnceLock::new(),
            health: Mutex::default(),
            is_asked: AtomicBool::new(false),
            suspected,
        }
    }

    fn health(&self) -> MutexGuard<'_, Health> {
        support::lock(&self.health)
    }

    /// The store, once it is connected.
    pub(crate) fn store(&self) -> Option<&Arc<dyn Store>> {
        self.connected.get()
    }

    pub(crate) fn member(&self) -> Result<&dyn Member, StoreError> {
        let unreachable = || {
            let trouble = self.health().trouble.clone();
            let never = StoreError::new(StoreErrorKind::Unreachable, "it is not connected yet");
            trouble.unwrap_or(never).not_applied()
        };
        self.store().and_then(|store| store.member()).ok_or_else(unreachable)
    }

    /// Its name in messages.
    pub(crate) fn shown(&self) -> String {
        self.store().map_or_else(|| format!("member {}", self.index + 1), |store| store.url().to_string())
    }

    pub(crate) fn connect(&self, store: Arc<dyn Store>) {
        // Only one task connects it.
        drop(self.connected.set(store));
    }

    pub(crate) fn is_suspect(&self) -> bool {
        self.health().suspect || self.store().is_none()
    }

    /// Whether it is expected to answer: it is connected, and not suspected for as long as `limit`. A request may have failed
    /// only because its connection ended, as all do whose runtime ends.
    pub(crate) fn may_answer(&self, limit: Duration, now: BootTime) -> bool {
        let health = self.health();
        self.store().is_some() && (!health.suspect || now.since(health.suspect_since) < limit)
    }

    /// Whether it is connected, and was not suspected for a while.
    pub(crate) fn is_calm(&self, now: BootTime) -> bool {
        let is_long_back = |since: BootTime| now.since(since) >= CALM_AFTER;
        let health = self.health();
        self.store().is_some() && !health.suspect && health.back_since.is_none_or(is_long_back)
    }

    /// Takes note that it has not answered in time; true if that is new.
    pub(crate) fn suspect(&self, now: BootTime) -> bool {
        let mut health = self.health();
        let is_new = !std::mem::replace(&mut health.suspect, true);
        health.suspect_since = if is_new { now } else { health.suspect_since };
        health.is_new |= is_new;
        health.is_doubted |= is_new && health.only_empty;
        drop(health);
        if is_new {
            self.suspected.notify_one();
        }
        is_new
    }

    pub(crate) fn failed(&self, error: &StoreError, now: BootTime) {
        self.suspect(now);
        self.health().trouble = Some(error.clone());
    }

    /// Whether this is asked for the first time since it is suspected.
    pub(crate) fn is_newly_silent(&self) -> bool {
        std::mem::take(&mut self.health().is_new)
    }

    /// Whether it is connected, and suspected.
    pub(crate) fn is_silent(&self) -> bool {
        self.store().is_some() && self.health().suspect
    }

    /// Takes note that it answered, or only an empty request. Returns its vote, and whether it was suspected before.
    pub(crate) fn answered(
        &self,
        received: BootTime,
        now: StoreTime,
        membership: &Membership,
        ids: &MemberIds,
        is_empty: bool,
    ) -> (Vote, bool) {
        let mut health = self.health();
        let is_back = health.suspect && !(is_empty && health.is_doubted);
        health.suspect &= !is_back;
        health.back_since = if is_back { Some(received) } else { health.back_since };
        health.only_empty = is_empty && (health.only_empty || is_back);
        health.is_doubted &= is_empty;
        health.trouble = None;
        health.clock = Some((received, now));
        (health.saw(self.index, membership, received, ids), is_back)
    }

    /// Takes note of its state, which it has told.
    pub(crate) fn is_at(&self, received: BootTime, state: &MemberState, ids: &MemberIds) -> Vote {
        let mut health = self.health();
        health.wall = Some((received, state.wall));
        health.server = Some(state.server.clone());
        health.saw(self.index, &state.membership, received, ids)
    }

    /// Returns the time on its own clock until which a claim that is sent now may take effect.
    pub(crate) fn not_after(&self, sent: BootTime) -> StoreTime {
        match self.health().clock {
            Some((received, now)) => now.after(sent.since(received)).after(CLAIM_LIFE),
            None => StoreTime(0),
        }
    }

    /// How long ago it answered last.
    pub(crate) fn was_heard(&self, now: BootTime) -> Duration {
        self.health().clock.map_or(Duration::MAX, |(received, _)| now.since(received))
    }

    /// Its wall clock now, as far as known.
    pub(crate) fn wall(&self, now: BootTime) -> Option<GrantNumber> {
        let (received, wall) = self.health().wall?;
        Some(wall + u64::try_from(now.since(received).as_micros()).unwrap_or_default())
    }

    /// Whether this is the server that it has last told to be.
    pub(crate) fn is_server(&self, server: &str) -> bool {
        self.health().server.as_deref() == Some(server)
    }

    /// The error of its last request, if that failed.
    pub(crate) fn trouble(&self) -> Option<StoreError> {
        self.health().trouble.clone()
    }

    /// Whether it votes, as last heard.
    pub(crate) fn votes(&self, ids: &MemberIds) -> bool {
        self.health().vote(self.index, ids) != Vote::None
    }

    /// Whether this was its membership when it was last heard.
    pub(crate) fn knows(&self, membership: &Membership) -> bool {
        self.health().membership.as_ref().is_some_and(|(known, _)| known == membership)
    }

    /// Its membership as last heard, and since when this client has seen the same.
    pub(crate) fn membership(&self) -> Option<(Membership, BootTime)> {
        self.health().membership.clone()
    }

    /// Whether it does not know of all member ids.
    pub(crate) fn lags(&self, ids: &MemberIds) -> bool {
        let record = self.health().membership.as_ref().and_then(|(membership, _)| Record::of(membership));
        record.is_some_and(|record| record.quorum.ids != ids.identity().ids)
    }

    /// Returns its trouble in words, if it has any. `wait`: how long a member is watched before it votes.
    pub(crate) fn complaint(&self, now: BootTime, wait: Duration) -> Option<String> {
        let health = self.health();
        if let Some(error) = &health.trouble {
            return Some(error.to_string());
        }
        let votes = matches!(health.vote, Some((_, Vote::Since(_))));
        if let Some((_, since)) = health.membership.as_ref().filter(|_| !votes) {
            let left = since.after(wait).since(now);
            return Some(format!(
                "does not vote, and will in {} if a client stays for that long; `lockkeeper quorum rejoin` does",
                show(left)
            ));
        }
        if health.suspect {
            return Some("is too slow".into());
        }
        self.store().is_none().then(|| "is not connected yet".into())
    }
}

impl Health {
    fn saw(&mut self, place: usize, membership: &Membership, now: BootTime, ids: &MemberIds) -> Vote {
        if self.membership.as_ref().is_none_or(|(known, _)| known != membership) {
            self.membership = Some((membership.clone(), now));
            self.vote = None;
        }
        self.vote(place, ids)
    }

    /// Reading a record takes time, so it is read once for each version of the member ids.
    fn vote(&mut self, place: usize, ids: &MemberIds) -> Vote {
        let version = ids.version();
        let known = self.vote.filter(|(of, _)| *of == version).map(|(_, vote)| vote);
        let read = || self.membership.as_ref().map_or(Vote::None, |(it, _)| ids.vote(place, it));
        let vote = known.unwrap_or_else(read);
        self.vote = Some((version, vote));
        vote
    }
}
