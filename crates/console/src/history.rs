//! History: who held each lock in the last hour and who waited, as far as samples showed it.
//!
//! It is in memory and bounded. What happens between two samples is not seen: a lock that is taken and released within a
//! second may leave no trace. The store's clock is believed only for what was there before the first sample.

mod record;
mod who;

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};

use lockkeeper::{Token, store::Name};

pub(crate) use self::{
    record::{Hold, HoldEnd, Past, Record, Wait, WaitEnd},
    who::{Who, Whos},
};
use crate::{clock::Millis, sample::Sample};

/// How long history reaches back.
pub(crate) const KEPT: Millis = 3_600_000;
/// The most holds and waits that are over, of all locks together.
pub(crate) const MOST: usize = 100_000;
/// The most of them of one lock, so that a busy one does not take the room of all others.
pub(crate) const MOST_OF_ONE: usize = 4_000;
/// The most times of which it remembers that nothing was seen.
const MOST_GAPS: usize = 100;
/// Nothing was seen for at least this long: the store was out of reach, or this process stood still.
const GAP: Millis = 10_000;

/// What an operator did to a holder through this server.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Eviction {
    /// The operator.
    pub by: Arc<str>,
    /// Why.
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

/// When the last sample was.
#[derive(Clone, Copy, Debug)]
struct Seen {
    at: Millis,
    took: Millis,
}

/// What all records of one sample share.
pub(crate) struct Step<'a> {
    pub(crate) now: Millis,
    /// The sample before, if there was one.
    pub(crate) before: Option<Millis>,
    /// What was not in the sample before began no earlier than this.
    pub(crate) earliest: Option<Millis>,
    pub(crate) sample: u64,
    pub(crate) next: &'a mut u64,
    pub(crate) whos: &'a mut Whos,
}

impl Step<'_> {
    /// When something began that the store says began at `told`.
    pub(crate) fn began(&self, told: Millis) -> Millis {
        told.max(self.earliest.unwrap_or(0)).min(self.now)
    }
}

/// Who held and who waited.
#[derive(Debug, Default)]
pub(crate) struct History {
    records: HashMap<Name, Record>,
    /// What is over, oldest first: its number, when it ended, and whose it is.
    over: VecDeque<(u64, Millis, Name)>,
    next: u64,
    whos: Whos,
    samples: u64,
    first: Option<Millis>,
    last: Option<Seen>,
    gaps: VecDeque<Gap>,
    /// The end of the newest entry that was dropped for want of room.
    dropped_until: Option<Millis>,
}

impl History {
    /// Takes a sample in.
    pub(crate) fn observe(&mut self, sample: &Sample) {
        let now = self.last.map_or(sample.at, |last| sample.at.max(last.at));
        self.samples += 1;
        self.first.get_or_insert(now);
        if let Some(last) = self.last
            && now - last.at >= GAP.max(sample.every.saturating_mul(3))
        {
            self.gaps.push_back(Gap { from: last.at, to: now });
        }
        let Self { records, over, next, whos, samples, last, .. } = self;
        let mut step = Step {
            now,
            before: last.map(|last| last.at),
            earliest: last.map(|last| last.at.saturating_sub(last.took)),
            sample: *samples,
            next,
            whos,
        };
        let mut ended = |name: &Name, numbers: std::ops::Range<u64>| {
            over.extend(numbers.map(|number| (number, now, name.clone())));
        };
        for view in &sample.locks {
            let first = *step.next;
            // Most names are known, and need no copy.
            if let Some(record) = records.get_mut(&view.name) {
                record.observe(&mut step, view);
            } else {
                let mut record = Record::new(view);
                record.observe(&mut step, view);
                records.insert(view.name.clone(), record);
            }
            ended(&view.name, first..*step.next);
        }
        for (name, record) in records.iter_mut() {
            if record.is_live() && record.sample() != step.sample {
                let first = *step.next;
                record.free(&mut step);
                ended(name, first..*step.next);
            }
        }
        self.last = Some(Seen { at: now, took: sample.took });
        self.forget(now);
    }

    /// Remembers what an operator did to a holder.
    pub(crate) fn evicted(&mut self, name: &Name, token: Token, eviction: &Arc<Eviction>) {
        if let Some(record) = self.records.get_mut(name) {
            record.evicted(token, eviction);
        }
    }

    fn forget(&mut self, now: Millis) {
        let oldest = now.saturating_sub(KEPT);
        while let Some((_, ended, _)) = self.over.front()
            && (*ended < oldest || self.over.len() > MOST)
        {
            let Some((number, ended, name)) = self.over.pop_front() else { break };
            if let Some(record) = self.records.get_mut(&name)
                && record.drop_past(number)
                && ended >= oldest
            {
                self.dropped_until = Some(ended);
            }
        }
        while self.gaps.front().is_some_and(|gap| gap.to < oldest) || self.gaps.len() > MOST_GAPS {
            self.gaps.pop_front();
        }
        // Once in a while is enough: what is left is small.
        if self.samples.is_multiple_of(32) {
            self.records.retain(|_, record| !record.forget(now));
            self.whos.forget();
        }
    }

    /// The locks that are held or waited for, or were in the last hour.
    pub(crate) fn records(&self) -> impl Iterator<Item = (&Name, &Record)> {
        self.records.iter()
    }

    pub(crate) fn record(&self, name: &Name) -> Option<&Record> {
        self.records.get(name)
    }

    pub(crate) fn gaps(&self) -> impl Iterator<Item = Gap> {
        self.gaps.iter().copied()
    }

    /// When the first sample was taken.
    pub(crate) fn first(&self) -> Option<Millis> {
        self.first
    }

    /// When the last sample was taken.
    pub(crate) fn last(&self) -> Option<Millis> {
        self.last.map(|last| last.at)
    }

    /// How many holds and waits that are over it has.
    pub(crate) fn kept(&self) -> usize {
        self.over.len()
    }

    /// From when on everything that was seen is still there, if room was short.
    pub(crate) fn whole_since(&self) -> Option<Millis> {
        self.dropped_until
    }
}

#[cfg(test)]
pub(crate) mod tests;
