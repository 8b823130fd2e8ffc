//! The names that a keeper waits for and the topics that it watches, with the times of their polls. It sends nothing.
//!
//! One poll reads all of them by primary key. It comes soon after a queue has moved, rarely when it has not for long,
//! and the later the more contenders wait before this keeper.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    sync::{Arc, Mutex},
    time::Duration,
};

use lockkeeper_core::{
    ContenderId, Name,
    model::WAIT_LEASE,
    store::{Answer, Request, Topic, Verdict, Wake, WakeSink},
    support,
};
use tokio::{sync::Notify, time::Instant};

/// How soon a poll comes after a queue has moved, and how rarely if it has not moved for long.
const SOONEST: Duration = Duration::from_millis(5);
const RAREST: Duration = Duration::from_millis(500);
/// The same for watchers, which do not hold others up.
const SOONEST_WATCH: Duration = Duration::from_millis(20);
/// No poll is later than this, even if very many wait before: waiters ask themselves about as often.
pub(crate) const LATEST: Duration = Duration::from_secs(1);
/// The number of names that are polled at once.
const AT_ONCE: usize = 256;

/// The names that a keeper waits for and the topics that it watches.
#[derive(Default)]
pub(crate) struct Waits {
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Default)]
struct State {
    names: HashMap<Name, Waiting>,
    topics: HashMap<Topic, Watched>,
    /// Contenders of which a poll has found that they were granted something.
    granted: HashSet<ContenderId>,
}

/// The contenders of this keeper that wait for a name.
struct Waiting {
    /// The time at which each of them last asked.
    asked: HashMap<ContenderId, Instant>,
    seen: Seen,
    beat: Beat,
}

/// A topic that somebody subscribed to.
struct Watched {
    seen: Seen,
    beat: Beat,
}

/// The last change of something, by the server's clock, as far as it is known, and the time when this keeper first saw
/// it.
#[derive(Clone, Copy, Default)]
struct Seen(Option<(i64, Instant)>);

impl Seen {
    /// Takes in the time of the last change; returns whether that is news.
    fn take(&mut self, moved: i64, now: Instant) -> bool {
        let is_news = self.0.is_none_or(|(seen, _)| seen != moved);
        if is_news {
            self.0 = Some((moved, now));
        }
        is_news
    }

    /// Returns for how long it has rested. A clock that was set back cannot tell that, but this keeper can.
    fn rested(&self, clock: i64, now: Instant) -> Duration {
        let Some((moved, first)) = self.0 else { return Duration::ZERO };
        match u64::try_from(clock - moved) {
            Ok(rested) => Duration::from_micros(rested),
            Err(_) => now.duration_since(first),
        }
    }
}

impl Waits {
    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        support::lock(&self.state)
    }

    /// Takes in the answers: the contenders that wait from now on, and those that do not any more.
    pub(crate) fn answered(&self, group: &[Request], answers: &[Answer]) {
        let mut state = self.lock();
        let mut is_new = false;
        for (request, answer) in group.iter().zip(answers) {
            match (request, answer) {
                (Request::Claim(claim), Answer::Claim(Verdict::Busy { ahead, .. })) if claim.queue => {
                    is_new |= state.waits(&claim.name, claim.contender, *ahead);
                }
                (_, Answer::Claim(Verdict::NotNow(_))) => {}
                (Request::Claim(claim), _) => state.over(&claim.name, claim.contender),
                (Request::Leave(leave), _) => state.over(&leave.name, leave.contender),
            }
        }
        drop(state);
        if is_new {
            self.changed.notify_one();
        }
    }

    /// Whether a poll has found that this contender was granted something. Told once.
    pub(crate) fn takes_grant(&self, contender: ContenderId) -> bool {
        self.lock().granted.remove(&contender)
    }

    /// Tells those who watch a topic at once that this keeper has changed it.
    pub(crate) fn changed(&self, topic: Topic, wakes: &WakeSink) {
        if self.lock().topics.contains_key(&topic) {
            wakes.wake(Wake::Changed(topic));
        }
    }

    /// Watches a topic until the result is dropped.
    pub(crate) fn watch(self: &Arc<Self>, topic: Topic) -> Subscription {
        let watched = Watched { seen: Seen::default(), beat: Beat::after(Instant::now(), Duration::ZERO) };
        self.lock().topics.insert(topic.clone(), watched);
        self.changed.notify_one();
        Subscription { waits: self.clone(), topic }
    }

    /// Returns when there is something new to wait for.
    pub(crate) async fn changes(&self) {
        self.changed.notified().await;
    }

    /// Returns the polls that are due now, or the time of the next one, if there will be any.
    pub(crate) fn due(&self) -> Result<Due, Option<Instant>> {
        let mut state = self.lock();
        let now = Instant::now();
        // A contender that has not asked for so long has lost its position.
        state.names.retain(|_, waiting| {
            waiting.asked.retain(|_, asked| now.duration_since(*asked) < WAIT_LEASE);
            !waiting.asked.is_empty()
        });
        let names = state.names.values().map(|waiting| waiting.beat.due);
        let next = names.chain(state.topics.values().map(|watched| watched.beat.due)).min();
        if next.is_none_or(|next| next > now) {
            return Err(next);
        }
        // Those that are due soon go along, so that all of a keeper fall into step.
        let near = state.names.iter().filter(|(_, waiting)| waiting.beat.is_near(now));
        let mut names: Vec<_> = near.map(|(name, waiting)| (waiting.beat.due, name)).collect();
        let mut latches = Vec::new();
        for (topic, watched) in state.topics.iter().filter(|(_, watched)| watched.beat.is_near(now)) {
            match topic {
                Topic::Latch(name) => latches.push((watched.beat.due, name)),
                Topic::Changes(name) | Topic::Grants(name) => names.push((watched.beat.due, name)),
                _ => {}
            }
        }
        Ok(Due { names: earliest(names), latches: earliest(latches) })
    }

    /// Takes in the news of a poll, and returns the wakes for the engine.
    pub(crate) fn found(&self, due: &Due, news: &News) -> Vec<Wake> {
        let mut state = self.lock();
        let state = &mut *state;
        let (now, mut wakes) = (Instant::now(), Vec::new());
        for name in &due.names {
            let Moved { moved, ahead } = news.names.get(name).copied().unwrap_or_default();
            if let Some(waiting) = state.names.get_mut(name) {
                waiting.seen.take(moved, now);
                waiting.beat = Beat::after(now, pause(waiting.seen.rested(news.clock, now), SOONEST, ahead));
            }
            wakes.extend(state.watched(Topic::Changes(name.clone()), moved, news.clock, now));
        }
        for name in &due.latches {
            let used = news.latches.get(name).copied().unwrap_or_default();
            wakes.extend(state.watched(Topic::Latch(name.clone()), used, news.clock, now));
        }
        for (name, contender) in &news.granted {
            // It asks now. If it waits after all, it is polled for again.
            state.over(name, *contender);
            state.granted.insert(*contender);
        }
        let names: BTreeSet<&Name> = news.granted.iter().map(|(name, _)| name).collect();
        wakes.extend(names.into_iter().map(|name| Wake::Changed(Topic::Grants(name.clone()))));
        wakes
    }
}

impl State {
    /// Notes that this contender waits; returns whether that is news.
    fn waits(&mut self, name: &Name, contender: ContenderId, ahead: u32) -> bool {
        let now = Instant::now();
        let soon = Beat::after(now, pause(Duration::ZERO, SOONEST, ahead));
        let waiting = self.names.entry(name.clone());
        let new = || Waiting { asked: HashMap::new(), seen: Seen::default(), beat: soon };
        let waiting = waiting.or_insert_with(new);
        let is_new = waiting.asked.insert(contender, now).is_none();
        if is_new && soon.due < waiting.beat.due {
            waiting.beat = soon;
        }
        is_new
    }

    fn over(&mut self, name: &Name, contender: ContenderId) {
        self.granted.remove(&contender);
        if let Some(waiting) = self.names.get_mut(name) {
            waiting.asked.remove(&contender);
            if waiting.asked.is_empty() {
                self.names.remove(name);
            }
        }
    }

    /// The wake of a topic that has changed. The first poll does not know, because the subscription is older.
    fn watched(&mut self, topic: Topic, moved: i64, clock: i64, now: Instant) -> Option<Wake> {
        let watched = self.topics.get_mut(&topic)?;
        let has_changed = watched.seen.take(moved, now);
        watched.beat = Beat::after(now, pause(watched.seen.rested(clock, now), SOONEST_WATCH, 0));
        has_changed.then_some(Wake::Changed(topic))
    }
}

/// The pause until the next poll, of a queue that has moved `since` a while.
fn pause(since: Duration, soonest: Duration, ahead: u32) -> Duration {
    ((since / 10).clamp(soonest, RAREST) * ahead.saturating_add(1)).min(LATEST)
}

/// Chooses as many as one poll takes, those that are due first: so each has its turn, even among very many.
fn earliest(mut due: Vec<(Instant, &Name)>) -> BTreeSet<Name> {
    due.sort_unstable();
    due.into_iter().take(AT_ONCE).map(|(_, name)| name.clone()).collect()
}

/// The time of the next poll, and the pause before it.
#[derive(Clone, Copy)]
struct Beat {
    due: Instant,
    pause: Duration,
}

impl Beat {
    fn after(now: Instant, pause: Duration) -> Self {
        Self { due: now + pause, pause }
    }

    fn is_near(&self, now: Instant) -> bool {
        self.due <= now + self.pause / 2
    }
}

/// The names and latches to poll.
#[derive(Clone, Default)]
pub(crate) struct Due {
    pub(crate) names: BTreeSet<Name>,
    pub(crate) latches: BTreeSet<Name>,
}

/// A keeper's interest in a topic, which ends when it is dropped.
pub(crate) struct Subscription {
    waits: Arc<Waits>,
    topic: Topic,
}

impl Drop for Subscription {
    fn drop(&mut self) {
        self.waits.lock().topics.remove(&self.topic);
    }
}

/// The news that a poll has found.
#[derive(Default)]
pub(crate) struct News {
    pub(crate) clock: i64,
    pub(crate) names: HashMap<Name, Moved>,
    /// Contenders of this keeper that were granted something, and have not confirmed it.
    pub(crate) granted: Vec<(Name, ContenderId)>,
    pub(crate) latches: HashMap<Name, i64>,
}

#[derive(Clone, Copy, Default)]
pub(crate) struct Moved {
    /// The time at which the holders last changed, by the server's clock.
    pub(crate) moved: i64,
    /// How many wait before this keeper.
    pub(crate) ahead: u32,
}

#[cfg(test)]
mod tests {
    use lockkeeper_core::KeeperId;
    use tokio::time;

    use super::*;

    fn name(text: &str) -> Name {
        Name::new(text).expect("valid")
    }

    fn contender(seq: u64) -> ContenderId {
        ContenderId { keeper: KeeperId::from_u128(1), seq }
    }

    fn news(moved: i64, ahead: u32) -> News {
        let names = [(name("a"), Moved { moved, ahead })].into();
        News { clock: 100_000_000, names, ..News::default() }
    }

    #[test]
    fn the_longer_a_queue_rests_and_the_more_wait_before_the_rarer_are_polls() {
        let (second, minute) = (Duration::from_secs(1), Duration::from_secs(60));
        assert_eq!(pause(Duration::ZERO, SOONEST, 0), SOONEST);
        assert_eq!(pause(Duration::ZERO, SOONEST, 15), SOONEST * 16);
        assert_eq!(pause(second, SOONEST, 0), second / 10);
        assert_eq!(pause(minute, SOONEST, 0), RAREST);
        assert_eq!(pause(minute, SOONEST, u32::MAX), LATEST);
    }

    #[tokio::test(start_paused = true)]
    async fn only_those_who_wait_are_polled_for() {
        let waits = Waits::default();
        assert!(matches!(waits.due(), Err(None)));
        assert!(waits.lock().waits(&name("a"), contender(1), 0));
        assert!(!waits.lock().waits(&name("a"), contender(1), 0), "it asked again");
        assert!(matches!(waits.due(), Err(Some(_))), "not at once");
        time::advance(SOONEST).await;
        let due = waits.due().expect("due");
        assert_eq!(due.names, [name("a")].into());
        assert!(waits.found(&due, &news(40_000_000, 0)).is_empty());
        let next = waits.due().err().flatten().expect("later");
        assert_eq!(next - Instant::now(), RAREST, "it has rested for a minute");
        waits.lock().over(&name("a"), contender(1));
        assert!(matches!(waits.due(), Err(None)));
    }

    /// More than three polls can take, all of which have moved just now.
    #[tokio::test(start_paused = true)]
    async fn however_many_wait_each_is_polled_in_its_turn() {
        let waits = Waits::default();
        let names: Vec<Name> = (0..700).map(|n| name(&format!("n{n:03}"))).collect();
        for name in &names {
            waits.lock().waits(name, contender(1), 0);
        }
        let mut polled = BTreeSet::new();
        for _ in 0..10 {
            time::advance(SOONEST / 4).await;
            let Ok(due) = waits.due() else { continue };
            let clock = 100_000_000;
            let moved =
                due.names.iter().map(|name| (name.clone(), Moved { moved: clock, ahead: 0 })).collect();
            assert!(due.names.len() <= AT_ONCE);
            polled.extend(due.names.iter().cloned());
            waits.found(&due, &News { clock, names: moved, ..News::default() });
        }
        assert_eq!(polled.len(), names.len());
    }

    /// The clock was set back, so the last change lies in the future: polls become rare all the same.
    #[tokio::test(start_paused = true)]
    async fn a_queue_that_moved_in_the_future_rests_too() {
        let waits = Waits::default();
        waits.lock().waits(&name("a"), contender(1), 0);
        let mut rounds = 0;
        for _ in 0..2000 {
            time::advance(Duration::from_millis(5)).await;
            if let Ok(due) = waits.due() {
                rounds += 1;
                waits.found(&due, &news(3_600_000_000, 0));
            }
        }
        assert!(rounds < 120, "{rounds} polls in ten seconds");
    }

    #[tokio::test(start_paused = true)]
    async fn a_grant_is_told_once_and_as_a_hint() {
        let waits = Waits::default();
        waits.lock().waits(&name("a"), contender(1), 0);
        time::advance(SOONEST).await;
        let due = waits.due().expect("due");
        let found = News { granted: vec![(name("a"), contender(1))], ..news(100_000_000, 0) };
        let told = waits.found(&due, &found);
        assert!(matches!(&told[..], [Wake::Changed(Topic::Grants(_))]), "{told:?}");
        assert!(matches!(waits.due(), Err(None)), "it asks by itself");
        assert!(waits.takes_grant(contender(1)) && !waits.takes_grant(contender(1)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_topic_is_told_of_when_it_changes_and_at_first() {
        let waits = Arc::new(Waits::default());
        let subscription = waits.watch(Topic::Changes(name("a")));
        for (moved, wakes) in [(5, 1), (5, 0), (6, 1)] {
            let due = waits.due().expect("due");
            assert_eq!(waits.found(&due, &news(moved, 0)).len(), wakes);
            time::advance(RAREST).await;
        }
        drop(subscription);
        assert!(matches!(waits.due(), Err(None)));
    }
}
