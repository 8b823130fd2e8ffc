//! History: the holders and waiters of each lock in the last hour, as far as samples showed them.
//!
//! It is in memory and bounded. Nothing is seen between two samples: a lock that is taken and released within a second
//! may leave no trace. The store's clock is believed only for holds and waits that were there at the first sample.

mod record;
mod who;

use std::{
    collections::{HashMap, VecDeque},
    ops::Range,
    sync::Arc,
};

use lockkeeper::{Token, store::Name};

use self::record::Dropped;
pub(crate) use self::{
    record::{Hold, HoldEnd, KnownLimits, Past, Record, Wait, WaitEnd},
    who::{Who, Whos},
};
use crate::{clock::Millis, sample::Sample};

/// How far history reaches back.
pub(crate) const KEPT: Millis = 3_600_000;
/// The most holds and waits that are over, of all locks together.
pub(crate) const MOST: usize = 100_000;
/// The most of them of one lock, so that a busy one does not take the room of all others.
pub(crate) const MOST_OF_ONE: usize = 4_000;
/// The most gaps that are remembered.
const MOST_GAPS: usize = 100;
/// A gap is at least this long: the store was out of reach, or this process stood still.
const GAP: Millis = 10_000;
/// The most locks with a record, unless more are in use now. The lock that has been free for the longest goes first.
pub(crate) const MOST_RECORDS: usize = 50_000;
/// How many entries may refer to nothing before they are cleared away.
const ROOM: usize = 1_000;
/// The least inexactness of moments.
const SLACK: Millis = 500;

/// An eviction that an operator ordered through this server.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Eviction {
    /// The operator.
    pub by: Arc<str>,
    /// The reason that the operator gave.
    pub reason: Arc<str>,
    /// Whether the lock passed at once.
    pub immediate: bool,
}

/// A time in which nothing was seen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Gap {
    pub(crate) from: Millis,
    pub(crate) to: Millis,
}

/// The moment of the last sample, and how long its listing took.
#[derive(Clone, Copy, Debug)]
struct Seen {
    at: Millis,
    took: Millis,
}

/// The facts that all records of one sample share.
pub(crate) struct Step<'a> {
    pub(crate) now: Millis,
    /// The sample before, if there was one.
    pub(crate) before: Option<Millis>,
    /// Holds and waits that were not in the sample before began no earlier than this.
    pub(crate) earliest: Option<Millis>,
    /// The longest wait since the sample before that counts.
    pub(crate) longest: Millis,
    /// The inexactness of the moments at which the store was asked.
    pub(crate) slack: Millis,
    pub(crate) sample: u64,
    pub(crate) next: &'a mut u64,
    /// How many holds and waits are over and kept.
    pub(crate) kept: &'a mut usize,
    pub(crate) whos: &'a mut Whos,
}

impl Step<'_> {
    /// Returns the moment at which a hold or wait began if the store says `told`.
    pub(crate) fn began(&self, told: Millis) -> Millis {
        told.max(self.earliest.unwrap_or(0)).min(self.now)
    }
}

/// The history of all locks.
#[derive(Debug, Default)]
pub(crate) struct History {
    records: HashMap<Name, Record>,
    /// The names of the last sample.
    live: Vec<Name>,
    /// Holds and waits that are over, oldest first. Some may be gone from their records already.
    over: VecDeque<Over>,
    /// How many of them are still in their records.
    kept: usize,
    /// Locks that became free, the one that has been free for the longest first. Some may be in use again.
    free: VecDeque<Free>,
    next: u64,
    whos: Whos,
    samples: u64,
    first: Option<Millis>,
    last: Option<Seen>,
    gaps: VecDeque<Gap>,
    /// The end of the newest entry that was dropped because all locks together had too many.
    dropped_until: Option<Millis>,
    /// The moment at which the last of the forgotten locks became free. Locks are forgotten when there are too many.
    forgotten_until: Option<Millis>,
}

/// A hold or a wait that is over: its number, its end, and its lock.
#[derive(Clone, Debug)]
struct Over {
    number: u64,
    ended: Millis,
    name: Name,
}

/// A lock that became free after a sample, which was at `at`.
#[derive(Clone, Debug)]
struct Free {
    sample: u64,
    at: Millis,
    name: Name,
}

impl History {
    /// Takes a sample in.
    pub(crate) fn observe(&mut self, sample: &Sample) {
        let now = self.last.map_or(sample.at, |last| sample.at.max(last.at));
        self.samples += 1;
        self.first.get_or_insert(now);
        let longest = GAP.max(sample.every.saturating_mul(3));
        if let Some(last) = self.last
            && now - last.at >= longest
        {
            self.gaps.push_back(Gap { from: last.at, to: now });
        }
        let whole_since = self.forgotten_since(now);
        let Self { records, live, over, kept, free, next, whos, samples, last, .. } = self;
        let mut step = Step {
            now,
            before: last.map(|last| last.at),
            earliest: last.map(|last| last.at.saturating_sub(last.took)),
            longest,
            slack: SLACK + sample.took + last.map_or(0, |last| last.took),
            sample: *samples,
            next,
            kept,
            whos,
        };
        let mut ended = |name: &Name, numbers: Range<u64>| {
            over.extend(numbers.map(|number| Over { number, ended: now, name: name.clone() }));
        };
        for view in &sample.locks {
            let first = *step.next;
            // Most names are known, and need no copy.
            if let Some(record) = records.get_mut(&view.name) {
                record.observe(&mut step, view);
            } else {
                let mut record = Record::new(view, whole_since);
                record.observe(&mut step, view);
                records.insert(view.name.clone(), record);
            }
            ended(&view.name, first..*step.next);
        }
        let before = std::mem::replace(live, sample.locks.iter().map(|view| view.name.clone()).collect());
        for name in before {
            if let Some(record) = records.get_mut(&name)
                && record.sample() != step.sample
            {
                let first = *step.next;
                record.free(&mut step);
                ended(&name, first..*step.next);
                free.push_back(Free { sample: record.sample(), at: now, name });
            }
        }
        self.last = Some(Seen { at: now, took: sample.took });
        self.forget(now);
    }

    /// Takes note that an operator evicted a holder.
    pub(crate) fn evicted(&mut self, name: &Name, token: Token, eviction: &Arc<Eviction>) {
        if let Some(record) = self.records.get_mut(name) {
            record.evicted(token, eviction);
        }
    }

    fn forget(&mut self, now: Millis) {
        self.forget_records();
        self.forget_past(now);
        let oldest = now.saturating_sub(KEPT);
        while self.gaps.front().is_some_and(|gap| gap.to < oldest) || self.gaps.len() > MOST_GAPS {
            self.gaps.pop_front();
        }
        // Once in a while is enough: records without holds and waits are small.
        if self.samples.is_multiple_of(32) {
            self.records.retain(|_, record| !record.forget(now));
            self.whos.forget();
        }
    }

    /// Drops holds and waits that are too old or too many.
    fn forget_past(&mut self, now: Millis) {
        let oldest = now.saturating_sub(KEPT);
        while let Some(first) = self.over.front()
            && (first.ended < oldest || self.kept > MOST)
        {
            let Some(Over { number, ended, name }) = self.over.pop_front() else { break };
            let why = if ended < oldest { Dropped::TooOld } else { Dropped::TooMany };
            let before = self.kept;
            if let Some(record) = self.records.get_mut(&name) {
                record.drop_past(number, &mut self.kept, why);
            }
            if why == Dropped::TooMany && self.kept < before {
                self.dropped_until = Some(ended);
            }
        }
        // A busy lock drops its own oldest entries. The references to them go in one pass, long before they cost much.
        if self.over.len() > 2 * self.kept + ROOM {
            let records = &self.records;
            self.over
                .retain(|over| records.get(&over.name).is_some_and(|record| record.has_past(over.number)));
        }
    }

    /// Forgets locks that nobody uses any more if there are too many.
    fn forget_records(&mut self) {
        let Self { records, free, .. } = self;
        let is_free = |records: &HashMap<Name, Record>, free: &Free| {
            records.get(&free.name).is_some_and(|record| record.sample() == free.sample && !record.is_live())
        };
        while records.len() > MOST_RECORDS
            && let Some(oldest) = free.pop_front()
        {
            if is_free(records, &oldest)
                && let Some(record) = records.remove(&oldest.name)
            {
                self.kept -= record.past_len();
                self.forgotten_until = Some(oldest.at);
            }
        }
        if free.len() > 2 * records.len() + ROOM {
            free.retain(|free| is_free(records, free));
        }
    }

    /// Returns the moment since when the use of all locks is known, if some had to be forgotten.
    fn forgotten_since(&self, now: Millis) -> Option<Millis> {
        self.forgotten_until.filter(|until| *until >= now.saturating_sub(KEPT))
    }

    /// Returns the locks that are held or waited for, or were in the last hour.
    pub(crate) fn records(&self) -> impl Iterator<Item = (&Name, &Record)> {
        self.records.iter()
    }

    /// Returns the locks of the last sample.
    pub(crate) fn live(&self) -> impl Iterator<Item = (&Name, &Record)> {
        self.live.iter().filter_map(|name| Some((name, self.records.get(name)?)))
    }

    pub(crate) fn record(&self, name: &Name) -> Option<&Record> {
        self.records.get(name)
    }

    pub(crate) fn gaps(&self) -> impl Iterator<Item = Gap> {
        self.gaps.iter().copied()
    }

    /// Returns the moment of the last sample.
    pub(crate) fn last(&self) -> Option<Millis> {
        self.last.map(|last| last.at)
    }

    /// How many holds and waits are over and kept.
    pub(crate) fn kept(&self) -> usize {
        self.kept
    }

    /// Returns the moment since when everything that was seen is kept, if room was short in the last hour. Busy locks
    /// that drop their own holds and waits do not count: see [`seen_since`](Self::seen_since).
    pub(crate) fn whole_since(&self) -> Option<Millis> {
        let oldest = self.last?.at.saturating_sub(KEPT);
        self.dropped_until.max(self.forgotten_until).filter(|until| *until >= oldest)
    }

    /// Returns the moment since when everything of a lock was seen and is kept.
    pub(crate) fn seen_since(&self, record: Option<&Record>) -> Option<Millis> {
        let dropped = match record {
            Some(record) => record.whole_since(),
            None => self.forgotten_until,
        };
        self.first.max(dropped)
    }
}

#[cfg(test)]
pub(crate) mod tests;
