//! One task that lists the store for all readers. The pause after a listing is a second, or 20 times as long as
//! listings take if that is longer. The console reads all the time, for its history and its alarms.

use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant, SystemTime},
};

use lockkeeper::{
    Keeper, StoreError,
    store::{CountState, Name, ResourceView},
    support::{self, background::Background, sentence},
};
use tokio::sync::{Notify, watch};

use crate::{
    problem::{Code, Problem},
    sample::{Changes, Moment, Sample},
};

/// The shortest time between two listings.
const SHORTEST: Duration = Duration::from_secs(1);
/// The longest time between two tries while the store cannot be listed.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// How many times as long as a listing the pause after it lasts, at least.
const SHARE: u32 = 20;
/// How many samples a reader may be behind before it has to begin anew. Only their differences are kept.
const BEHIND: usize = 16;
/// All names at once: a page would cost as much as everything.
const EVERYTHING: usize = 1_000_000;

/// A store that cannot be listed.
pub(crate) struct Outage {
    pub(crate) since: SystemTime,
    pub(crate) message: String,
}

impl Outage {
    fn problem(&self) -> Problem {
        Problem::new(Code::StoreUnreachable, self.message.clone())
    }
}

/// The latest sample, and the outage if there is one.
#[derive(Clone, Default)]
pub(crate) struct Known {
    pub(crate) sample: Option<Arc<Sample>>,
    pub(crate) outage: Option<Arc<Outage>>,
    /// The differences of the latest samples from those before, the latest at the end.
    changes: VecDeque<Arc<Changes>>,
    /// How often a listing was tried.
    tries: u64,
}

impl Known {
    /// Returns the differences since a sample; `None` if that is too long ago.
    pub(crate) fn since(&self, number: u64) -> Option<Vec<Arc<Changes>>> {
        let latest = self.sample.as_ref()?.number;
        let behind = usize::try_from(latest.checked_sub(number)?).ok()?;
        let known = self.changes.len().checked_sub(behind)?;
        Some(self.changes.iter().skip(known).cloned().collect())
    }
}

/// The samples of a store; clones share them.
#[derive(Clone)]
pub(crate) struct Sampler {
    shared: Arc<Shared>,
    _task: Arc<Background>,
}

struct Shared {
    known: watch::Sender<Known>,
    readers: AtomicUsize,
    asked: Mutex<bool>,
    wake: Notify,
}

impl Sampler {
    /// Starts the task. It lists with `keeper`, which should do nothing else: a long answer delays those behind it.
    pub(crate) fn start(keeper: Keeper) -> Self {
        let shared = Arc::new(Shared {
            known: watch::Sender::new(Known::default()),
            readers: AtomicUsize::new(0),
            asked: Mutex::new(false),
            wake: Notify::new(),
        });
        let task = run(shared.clone(), keeper);
        let task = Background::spawn(&tokio::runtime::Handle::current(), task);
        Self { shared, _task: Arc::new(task) }
    }

    /// Returns the latest sample, or a new one if that is too old. While the store cannot be listed, it fails at once;
    /// the task itself tries again and again.
    pub(crate) async fn latest(&self) -> Result<Arc<Sample>, Problem> {
        let mut known = self.shared.known.subscribe();
        let before = known.borrow_and_update().clone();
        match (&before.sample, &before.outage) {
            (_, Some(outage)) => return Err(outage.problem()),
            (Some(sample), None) if sample.age() < sample.every => return Ok(sample.clone()),
            _ => {}
        }
        *support::lock(&self.shared.asked) = true;
        self.shared.wake.notify_one();
        let tried = known.wait_for(|known| known.tries > before.tries).await;
        let known = tried.map_err(|_| Problem::shutting_down())?;
        match (&known.outage, &known.sample) {
            (Some(outage), _) => Err(outage.problem()),
            (None, Some(sample)) => Ok(sample.clone()),
            (None, None) => Err(Problem::new(Code::Internal, "there is no listing")),
        }
    }

    /// Returns a reader of the samples from now on. Samples are taken for as long as there is a reader.
    pub(crate) fn read(&self) -> Reader {
        self.shared.readers.fetch_add(1, Ordering::AcqRel);
        self.shared.wake.notify_one();
        Reader { known: self.shared.known.subscribe(), shared: self.shared.clone() }
    }
}

/// A reader, which hears of every sample.
pub(crate) struct Reader {
    known: watch::Receiver<Known>,
    shared: Arc<Shared>,
}

impl Reader {
    /// Waits for another try, and returns the facts after it.
    pub(crate) async fn next(&mut self) -> Known {
        if self.known.changed().await.is_err() {
            // The sampler ends with the server, which ends its readers.
            std::future::pending::<()>().await;
        }
        self.known.borrow_and_update().clone()
    }

    /// Returns the latest sample.
    pub(crate) fn sample(&self) -> Option<Arc<Sample>> {
        self.known.borrow().sample.clone()
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.shared.readers.fetch_sub(1, Ordering::AcqRel);
    }
}

/// The durations of the last listings, which decide how often there may be one.
#[derive(Debug, Default)]
struct Pace {
    took: VecDeque<Duration>,
}

impl Pace {
    /// Takes note of a listing, and returns the pause until the next one. A listing that took unusually long, because
    /// the store or the network stood still for a moment, does not count until another one takes as long.
    fn after(&mut self, took: Duration) -> Duration {
        self.took.push_back(took);
        if self.took.len() > 3 {
            self.took.pop_front();
        }
        let mut sorted: Vec<Duration> = self.took.iter().copied().collect();
        sorted.sort();
        let usual = sorted.get((sorted.len() - 1) / 2).copied().unwrap_or_default();
        SHORTEST.max(usual * SHARE)
    }
}

async fn run(shared: Arc<Shared>, keeper: Keeper) {
    let mut pace = Pace::default();
    let mut number = 0;
    loop {
        // An outage is found to be over also if nobody asks.
        while shared.known.borrow().outage.is_none()
            && shared.readers.load(Ordering::Acquire) == 0
            && !std::mem::take(&mut *support::lock(&shared.asked))
        {
            shared.wake.notified().await;
        }
        let started = Instant::now();
        let listed = list(&keeper).await;
        let moment = Moment::after(started);
        let took = moment.took();
        // Callers that asked meanwhile get this one.
        *support::lock(&shared.asked) = false;
        let pause = match listed {
            Ok((views, latches)) => {
                number += 1;
                metrics::histogram!(crate::metrics::LISTING).record(took.as_secs_f64());
                let every = pace.after(took);
                let shared = shared.clone();
                // With very many locks it takes a while, in which renewals must not wait.
                let told = move || tell(&shared, Sample::new(number, moment, every, views, latches));
                drop(tokio::task::spawn_blocking(told).await);
                every
            }
            Err(error) => {
                fail(&shared, &error);
                SHORTEST.max(took * SHARE).min(LONGEST_PAUSE)
            }
        };
        tokio::time::sleep(pause).await;
    }
}

type Listed = (Vec<ResourceView>, Vec<(Name, CountState)>);

async fn list(keeper: &Keeper) -> Result<Listed, StoreError> {
    let mut views = Vec::new();
    let mut after = None;
    loop {
        let page = keeper.list("", after.as_ref(), EVERYTHING).await?;
        views.extend(page.resources);
        match page.next {
            Some(next) => after = Some(next),
            None => break,
        }
    }
    let mut latches = Vec::new();
    let mut after = None;
    while keeper.capability().counts_permits {
        let page = keeper.latches("", after.as_ref(), EVERYTHING).await?;
        latches.extend(page.latches);
        match page.next {
            Some(next) => after = Some(next),
            None => break,
        }
    }
    Ok((views, latches))
}

fn tell(shared: &Shared, sample: Sample) {
    let sample = Arc::new(sample);
    let before = shared.known.borrow().sample.clone();
    let changes = Arc::new(sample.changes(before.as_deref()));
    shared.known.send_modify(|known| {
        known.sample = Some(sample);
        known.outage = None;
        known.tries += 1;
        known.changes.push_back(changes);
        if known.changes.len() > BEHIND {
            known.changes.pop_front();
        }
    });
}

fn fail(shared: &Shared, error: &StoreError) {
    let since = shared.known.borrow().outage.as_ref().map_or_else(SystemTime::now, |outage| outage.since);
    let outage = Arc::new(Outage { since, message: sentence::of(error) });
    shared.known.send_modify(|known| {
        known.outage = Some(outage);
        known.tries += 1;
    });
}

#[cfg(test)]
mod tests {
    use lockkeeper_testkit::{proxy::Proxy, servers::Redis};

    use super::*;

    #[test]
    fn one_slow_listing_changes_nothing_and_two_do() {
        let (fast, slow) = (Duration::from_millis(10), Duration::from_secs(15));
        let mut pace = Pace::default();
        for took in [fast, slow, fast, fast, slow, fast] {
            assert_eq!(pace.after(took), SHORTEST);
        }
        pace.after(slow);
        assert_eq!(pace.after(slow), slow * SHARE);
        // A store that is slow from the start is not listed more often than that.
        assert_eq!(Pace::default().after(slow), slow * SHARE);
    }

    #[tokio::test]
    async fn an_outage_is_told_at_once_and_soon_over() {
        let redis = Redis::start().expect("a server");
        let proxy = Proxy::start(redis.address()).expect("a proxy");
        let url = format!("redis://{}/", proxy.address());
        let builder = lockkeeper::builder(&url).expect("a good URL").request_limit(Duration::from_secs(1));
        let sampler = Sampler::start(builder.connect().await.expect("it is there"));
        sampler.latest().await.expect("it is listed");
        proxy.pause(true);
        // The sample of now becomes too old.
        while sampler.latest().await.is_ok() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let started = Instant::now();
        for _ in 0..100 {
            assert!(sampler.latest().await.is_err());
        }
        assert!(started.elapsed() < Duration::from_millis(500), "{:?}", started.elapsed());
        proxy.pause(false);
        let started = Instant::now();
        while sampler.latest().await.is_err() {
            assert!(started.elapsed() < Duration::from_secs(12), "it is over");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}
