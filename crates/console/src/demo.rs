//! Plays a lively hour on a memory store, and goes on from there: for people who want to see the console before they
//! have locks.
//!
//! Processes that do not exist claim, wait, renew, release and crash by a script with fixed dice. They send real
//! requests to the store, so pages show real locks of theirs, and an operator can evict them.

mod cast;
mod job;

use std::{
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use lockkeeper::{
    StoreError,
    clock::Clock,
    memory::MemoryServer,
    store::{
        ContenderId, Context, Count, CountAction, Evict, Eviction as How, KeeperId, ListQuery, Store,
        StoreTime, WakeSink,
    },
    testing::VirtualClock,
};

use self::job::Job;
use crate::{
    clock::{Millis, SteadyClock},
    console::Console,
    history::Eviction,
    sample::Sample,
};

/// The name of its store in pages.
pub const URL: &str = "memory:demo";
/// Limits that fit the script.
pub const RULES: &str = r#"
[[alarm]]
names = "billing/*"
held = "45m"
waited = "10m"

[[alarm]]
names = "payments/*"
waiters = 8
waited = "1m"
"#;

/// The length of the past.
const PAST: Duration = Duration::from_secs(3600);
/// The step of the script in the past.
const PAST_STEP: Duration = Duration::from_secs(2);
/// The same while people look.
const STEP: Duration = Duration::from_millis(500);
/// The moment of the script at which an operator evicts a holder.
const EVICTION: Duration = Duration::from_secs(3600 - 14 * 60);

/// The script and its store.
pub struct Demo {
    server: MemoryServer,
    store: Arc<dyn Store>,
    clock: VirtualClock,
    jobs: Vec<Job>,
    dice: Dice,
    /// The time since the script began.
    at: Millis,
}

/// Numbers that look random and are always the same.
#[derive(Debug)]
pub(crate) struct Dice(u64);

impl Dice {
    /// Returns a number from `low` up to but not including `high`.
    pub(crate) fn between(&mut self, low: Millis, high: Millis) -> Millis {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        low + self.0 % (high - low).max(1)
    }
}

impl Demo {
    /// Makes a store an hour ago, with nothing but latches in it. Needs a tokio runtime with time.
    ///
    /// # Errors
    /// A memory store does not fail.
    pub async fn new() -> Result<Self, StoreError> {
        let clock = VirtualClock::new();
        // The clock of the store is moved to an hour ago; from then on it only goes forward.
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        clock.suspend(wall.saturating_sub(PAST).saturating_sub(Duration::from_nanos(clock.now().0)));
        let server = MemoryServer::new(clock.clock());
        let context = Context {
            keeper: KeeperId::random(),
            wakes: WakeSink::new(|_| {}),
            background: tokio::runtime::Handle::current(),
            clock: clock.clock(),
            request_limit: Duration::from_secs(2),
        };
        let store = server.connector(URL).connect(context).await?;
        let mut dice = Dice(0x1dea_5eed_0dd5);
        let jobs = cast::jobs(&mut dice);
        let mut demo = Self { server, store, clock, jobs, dice, at: 0 };
        demo.make_latches().await?;
        Ok(demo)
    }

    /// Returns the store, for a keeper.
    pub fn server(&self) -> &MemoryServer {
        &self.server
    }

    /// Returns the store's clock, which shows the right time once the past is over.
    pub fn clock(&self) -> Clock {
        self.clock.clock()
    }

    /// Plays the last hour at once, and shows it to `console`.
    ///
    /// # Errors
    /// A memory store does not fail.
    pub async fn play_past(&mut self, console: &Console) -> Result<(), StoreError> {
        let steady = SteadyClock::new(self.clock());
        let length = u64::try_from(PAST.as_millis()).unwrap_or(0);
        while self.at < length {
            self.clock.suspend(PAST_STEP);
            self.step(PAST_STEP).await?;
            let page = self.store.list(&everything()).await?;
            let latches = self.store.latches(&everything()).await?;
            console.observe_past(Sample {
                at: steady.now(),
                took: 1,
                every: 2_000,
                locks: page.resources.into_iter().map(Arc::new).collect(),
                latches: latches.latches,
            });
            let evicts = u64::try_from(EVICTION.as_millis()).unwrap_or(0);
            if self.at / 2_000 == evicts / 2_000 {
                self.evict(console).await?;
            }
        }
        Ok(())
    }

    /// Plays on for ever.
    ///
    /// # Errors
    /// A memory store does not fail.
    pub async fn run(mut self) -> Result<(), StoreError> {
        loop {
            tokio::time::sleep(STEP).await;
            self.step(STEP).await?;
        }
    }

    async fn step(&mut self, length: Duration) -> Result<(), StoreError> {
        self.at += u64::try_from(length.as_millis()).unwrap_or(0);
        for job in &mut self.jobs {
            job.step(&*self.store, &mut self.dice, self.at).await?;
        }
        if self.at.is_multiple_of(600_000) {
            self.count_down().await?;
        }
        Ok(())
    }

    async fn evict(&self, console: &Console) -> Result<(), StoreError> {
        let name = cast::name("report/monthly");
        let Some(view) = self.store.inspect(&name).await? else { return Ok(()) };
        for holder in view.holders {
            let reason = "replaced by the corrected run";
            let order = Evict {
                name: name.clone(),
                contender: holder.contender,
                number: holder.token.number(),
                how: How::Graceful,
                reason: Some(reason.into()),
            };
            self.store.evict(&order).await?;
            let eviction = Eviction { by: "dana".into(), reason: reason.into(), immediate: false };
            console.evicted(name.as_str(), holder.token, eviction);
        }
        Ok(())
    }

    async fn make_latches(&mut self) -> Result<(), StoreError> {
        for (latch, count) in [("release/2026.11/ready", 8), ("migration/shards-done", 32)] {
            self.count(latch, CountAction::Create(count)).await?;
        }
        Ok(())
    }

    async fn count_down(&mut self) -> Result<(), StoreError> {
        self.count("release/2026.11/ready", CountAction::Down(1)).await?;
        self.count("migration/shards-done", CountAction::Down(3)).await
    }

    async fn count(&mut self, latch: &str, action: CountAction) -> Result<(), StoreError> {
        let op = ContenderId { keeper: KeeperId::random(), seq: 1 };
        let count = Count { name: cast::name(latch), op, not_after: StoreTime(u64::MAX), action };
        self.store.count(&count).await.map(drop)
    }
}

fn everything() -> ListQuery {
    ListQuery { limit: 1_000_000, ..ListQuery::default() }
}

impl std::fmt::Debug for Demo {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Demo").field("at", &self.at).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Query, Rules, Scope, StoreFacts, Webhook, view::Page};

    #[tokio::test]
    async fn the_past_hour_has_everything_that_pages_show() {
        let store = StoreFacts { url: URL.into(), capability: lockkeeper::memory::CAPABILITY.clone() };
        let console = Console::new(store, Webhook::start());
        console.set_rules(Rules::parse(RULES).expect("good rules"), None).expect("no webhook");
        let mut demo = Demo::new().await.expect("a store");
        demo.play_past(&console).await.expect("a store");
        let now = SteadyClock::new(demo.clock()).now();
        let show = |query: Query| {
            let view = console.view(&query, Scope::all(), now).expect("a good query");
            serde_json::to_value(view).expect("JSON")["body"].clone()
        };
        let locks = show(Query::default());
        assert!(locks["matches"].as_u64() > Some(100), "{locks}");
        assert!(locks["totals"]["waiting"].as_u64() > Some(3), "{locks}");
        let hot = show(Query { view: Page::Hot, ..Query::default() });
        assert!(hot["locks"].as_array().is_some_and(|locks| locks.len() > 3), "{hot}");
        let alarms = show(Query { view: Page::Alarms, ..Query::default() });
        assert!(alarms["active"].as_array().is_some_and(|active| !active.is_empty()), "{alarms}");
        assert!(alarms["ended"].as_array().is_some_and(|ended| !ended.is_empty()), "{alarms}");
        let lock = |name: &str| show(Query { view: Page::Lock, name: name.into(), ..Query::default() });
        assert_eq!(lock("report/monthly")["timeline"]["evictions"], 1);
        assert!(lock("scheduler/leader")["timeline"]["losses"].as_u64() > Some(0));
        assert!(
            lock("checkout/stock/1017")["timeline"]["lanes"].as_array().is_some_and(|lanes| lanes.len() > 5)
        );
    }
}
