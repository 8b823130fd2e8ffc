//! One task that lists the store for all who look: one pass, and not more often than every second or 20 times as long as it
//! takes. The console looks all the time, for its history and its alarms.

use std::{
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
use tokio::sync::{Notify, broadcast, watch};

use crate::{
    problem::{Code, Problem},
    sample::{Changes, Sample},
};

/// The shortest time between two listings.
const SHORTEST: Duration = Duration::from_secs(1);
/// A listing takes at most one part in so many of the time.
const SHARE: u32 = 20;
/// How many samples a reader may be behind before it has to begin anew.
const BEHIND: usize = 16;
/// All names at once: a page would cost as much as everything.
const EVERYTHING: usize = 1_000_000;

/// What readers of events hear.
#[derive(Clone)]
pub(crate) enum News {
    /// A new sample, and what is different.
    Sample(Arc<Sample>, Arc<Changes>),
    /// The store could not be listed.
    Outage(Arc<Outage>),
}

/// A store that cannot be listed.
pub(crate) struct Outage {
    pub(crate) since: SystemTime,
    pub(crate) message: String,
}

/// What is known.
#[derive(Clone, Default)]
struct Known {
    sample: Option<Arc<Sample>>,
    outage: Option<Arc<Outage>>,
    /// How often it was tried.
    tries: u64,
}

/// The samples of a store; clones share them.
#[derive(Clone)]
pub(crate) struct Sampler {
    shared: Arc<Shared>,
    _task: Arc<Background>,
}

struct Shared {
    known: watch::Sender<Known>,
    news: broadcast::Sender<News>,
    readers: AtomicUsize,
    asked: Mutex<bool>,
    wake: Notify,
}

impl Sampler {
    /// Lists with `keeper`, which should do nothing else: a long answer delays those behind it.
    pub(crate) fn start(keeper: Keeper) -> Self {
        let shared = Arc::new(Shared {
            known: watch::Sender::new(Known::default()),
            news: broadcast::Sender::new(BEHIND),
            readers: AtomicUsize::new(0),
            asked: Mutex::new(false),
            wake: Notify::new(),
        });
        let task = run(shared.clone(), keeper);
        let task = Background::spawn(&tokio::runtime::Handle::current(), task);
        Self { shared, _task: Arc::new(task) }
    }

    /// The latest sample, or a new one if that is too old.
    pub(crate) async fn latest(&self) -> Result<Arc<Sample>, Problem> {
        let mut known = self.shared.known.subscribe();
        let before = known.borrow_and_update().clone();
        if let (Some(sample), None) = (&before.sample, &before.outage)
            && sample.age() < sample.every
        {
            return Ok(sample.clone());
        }
        *support::lock(&self.shared.asked) = true;
        self.shared.wake.notify_one();
        let tried = known.wait_for(|known| known.tries > before.tries).await;
        let known = tried.map_err(|_| Problem::shutting_down())?;
        match (&known.outage, &known.sample) {
            (Some(outage), _) => Err(Problem::new(Code::StoreUnreachable, outage.message.clone())),
            (None, Some(sample)) => Ok(sample.clone()),
            (None, None) => Err(Problem::new(Code::Internal, "there is no listing")),
        }
    }

    /// What comes from now on. Samples are taken for as long as this is there.
    pub(crate) fn read(&self) -> Reader {
        self.shared.readers.fetch_add(1, Ordering::AcqRel);
        self.shared.wake.notify_one();
        Reader { news: self.shared.news.subscribe(), shared: self.shared.clone() }
    }
}

/// Somebody who hears of every sample.
pub(crate) struct Reader {
    news: broadcast::Receiver<News>,
    shared: Arc<Shared>,
}

impl Reader {
    /// The next sample; `None` if some were missed.
    pub(crate) async fn next(&mut self) -> Option<News> {
        match self.news.recv().await {
            Ok(news) => Some(news),
            Err(broadcast::error::RecvError::Lagged(_)) => None,
            // The sampler ends with the server, which ends its readers.
            Err(broadcast::error::RecvError::Closed) => std::future::pending().await,
        }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.shared.readers.fetch_sub(1, Ordering::AcqRel);
    }
}

async fn run(shared: Arc<Shared>, keeper: Keeper) {
    let mut number = 0;
    loop {
        while shared.readers.load(Ordering::Acquire) == 0
            && !std::mem::take(&mut *support::lock(&shared.asked))
        {
            shared.wake.notified().await;
        }
        let started = Instant::now();
        let listed = list(&keeper).await;
        let took = started.elapsed();
        let every = SHORTEST.max(took * SHARE);
        metrics::histogram!(crate::metrics::LISTING).record(took.as_secs_f64());
        // Whoever asked meanwhile is content with this one.
        *support::lock(&shared.asked) = false;
        match listed {
            Ok((views, latches)) => {
                number += 1;
                tell(&shared, Sample::new(number, took, every, views, latches));
            }
            Err(error) => fail(&shared, &error),
        }
        tokio::time::sleep(every).await;
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
        known.sample = Some(sample.clone());
        known.outage = None;
        known.tries += 1;
    });
    // Nobody may read.
    drop(shared.news.send(News::Sample(sample, changes)));
}

fn fail(shared: &Shared, error: &StoreError) {
    let since = shared.known.borrow().outage.as_ref().map_or_else(SystemTime::now, |outage| outage.since);
    let outage = Arc::new(Outage { since, message: sentence::of(error) });
    shared.known.send_modify(|known| {
        known.outage = Some(outage.clone());
        known.tries += 1;
    });
    drop(shared.news.send(News::Outage(outage)));
}
