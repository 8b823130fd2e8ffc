//! Samples of the store's locks and latches, and the differences between a sample and the one before.

use std::{
    collections::BTreeMap,
    hash::{DefaultHasher, Hash, Hasher},
    ops::Bound,
    sync::{Arc, OnceLock},
    time::{Duration, Instant, SystemTime},
};

use lockkeeper::{
    store::{CountState, Name, ResourceView},
    support::{moment, terminal},
};

use crate::{
    shapes::{LatchView, Lock, SampleInfo, millis},
    tokens::Who,
};

/// One name of a sample.
pub(crate) struct Entry {
    pub(crate) view: Arc<ResourceView>,
    /// Differs if somebody came or left, or an operator did something. The rest of a lease has no part in it.
    mark: u64,
    json: OnceLock<Arc<str>>,
}

impl Entry {
    fn new(view: ResourceView) -> Self {
        let mut hasher = DefaultHasher::new();
        for holder in &view.holders {
            (holder.contender, holder.token, holder.units, holder.evicted).hash(&mut hasher);
            (holder.lease, holder.renewed, holder.detached).hash(&mut hasher);
        }
        view.holders.len().hash(&mut hasher);
        view.waiters.iter().for_each(|waiter| waiter.contender.hash(&mut hasher));
        Self { view: Arc::new(view), mark: hasher.finish(), json: OnceLock::new() }
    }

    /// Returns the lock as JSON, made once for all readers.
    pub(crate) fn json(&self) -> &Arc<str> {
        self.json.get_or_init(|| {
            let text = serde_json::to_string(&Lock::from(&*self.view)).unwrap_or_default();
            terminal::json(text).into()
        })
    }
}

/// The store's locks and latches at one moment.
pub(crate) struct Sample {
    pub(crate) number: u64,
    at: SystemTime,
    pub(crate) taken: Instant,
    pub(crate) took: Duration,
    pub(crate) every: Duration,
    pub(crate) locks: BTreeMap<Name, Arc<Entry>>,
    pub(crate) latches: BTreeMap<Name, CountState>,
}

/// The moment at which a listing ended. The sample is made later, on another thread, but is as old as the listing.
#[derive(Clone, Copy)]
pub(crate) struct Moment {
    at: SystemTime,
    taken: Instant,
    took: Duration,
}

impl Moment {
    /// Returns the moment of now, for a listing that began at `started` and has just ended.
    pub(crate) fn after(started: Instant) -> Self {
        Self { at: SystemTime::now(), taken: Instant::now(), took: started.elapsed() }
    }

    pub(crate) fn took(&self) -> Duration {
        self.took
    }
}

impl Sample {
    pub(crate) fn new(
        number: u64,
        moment: Moment,
        every: Duration,
        views: Vec<ResourceView>,
        latches: Vec<(Name, CountState)>,
    ) -> Self {
        let entry = |view: ResourceView| (view.name.clone(), Arc::new(Entry::new(view)));
        let Moment { at, taken, took } = moment;
        Self {
            number,
            at,
            taken,
            took,
            every,
            locks: views.into_iter().map(entry).collect(),
            latches: latches.into_iter().collect(),
        }
    }

    pub(crate) fn age(&self) -> Duration {
        self.taken.elapsed()
    }

    /// Returns the sample's own data, with counts of the names that `who` may see.
    pub(crate) fn info(&self, who: &Who) -> SampleInfo {
        let count =
            |names: &mut dyn Iterator<Item = &Name>| names.filter(|name| who.may_use(name.as_str())).count();
        let (total_locks, total_latches) = if who.prefixes.is_empty() {
            (self.locks.len(), self.latches.len())
        } else {
            (count(&mut self.locks.keys()), count(&mut self.latches.keys()))
        };
        SampleInfo {
            sample: self.number,
            at: moment::show(self.at),
            age_ms: millis(self.age()),
            took_ms: millis(self.took),
            every_ms: millis(self.every),
            total_locks,
            total_latches,
        }
    }

    /// Returns the differences from the sample before.
    pub(crate) fn changes(&self, before: Option<&Self>) -> Changes {
        let none = (BTreeMap::new(), BTreeMap::new());
        let (locks, latches) = before.map_or((&none.0, &none.1), |before| (&before.locks, &before.latches));
        let differs =
            |entry: &&Arc<Entry>| locks.get(&entry.view.name).is_none_or(|old| old.mark != entry.mark);
        let gone = |name: &&Name| !self.locks.contains_key(*name);
        let latch_differs = |(name, state): &(&Name, &CountState)| latches.get(*name) != Some(*state);
        Changes {
            locks: self.locks.values().filter(differs).cloned().collect(),
            gone: locks.keys().filter(gone).cloned().collect(),
            latches: self
                .latches
                .iter()
                .filter(latch_differs)
                .map(|(name, state)| LatchView::new(name.as_str(), state))
                .collect(),
            latches_gone: latches.keys().filter(|name| !self.latches.contains_key(*name)).cloned().collect(),
        }
    }
}

/// The differences between a sample and the one before.
pub(crate) struct Changes {
    pub(crate) locks: Vec<Arc<Entry>>,
    pub(crate) gone: Vec<Name>,
    pub(crate) latches: Vec<LatchView>,
    pub(crate) latches_gone: Vec<Name>,
}

/// Returns a page of a map in the order of its names, and the name that the next page begins after. The page has the
/// names that `who` may see, that begin with `prefix`, and that come after `after`.
pub(crate) fn page<'a, T>(
    all: &'a BTreeMap<Name, T>,
    who: &Who,
    prefix: &str,
    after: Option<&Name>,
    limit: usize,
) -> (Vec<(&'a Name, &'a T)>, Option<&'a Name>) {
    // An empty prefix is no name, and begins at the beginning.
    let first = Name::new(prefix).ok();
    let start = match (after, &first) {
        (Some(after), Some(first)) if after >= first => Bound::Excluded(after),
        (_, Some(first)) => Bound::Included(first),
        (Some(after), None) => Bound::Excluded(after),
        (None, None) => Bound::Unbounded,
    };
    let mut found = all
        .range((start, Bound::Unbounded))
        .take_while(|(name, _)| name.as_str().starts_with(prefix))
        .filter(|(name, _)| who.may_use(name.as_str()));
    let page: Vec<_> = found.by_ref().take(limit).collect();
    let next = found.next().and(page.last()).map(|(name, _)| *name);
    (page, next)
}
