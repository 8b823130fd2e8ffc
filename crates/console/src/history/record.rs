//! One lock's history: its present holds and waits, those that are over, and its use over time.

use std::{
    cell::Cell,
    collections::{HashMap, VecDeque},
    hash::Hash,
    sync::Arc,
    time::Duration,
};

use lockkeeper::{
    Token,
    store::{Capacity, ContenderId, HolderView, Kind, ResourceView, Units, WaiterView},
};
use lockkeeper_core::model::FIRST_LEASE;

use super::{Eviction, MOST_OF_ONE, Step, Who};
use crate::{
    clock::{Millis, millis, wall},
    curve::{Curve, Use},
    rules::Limits,
    sample::kind,
};

/// A grant that was pushed has a short first lease until its keeper confirms it; only older ones can be late.
const CONFIRMED: Millis = FIRST_LEASE.as_millis() as Millis + 1000;

/// A holder with less of its lease than this may be late if no renewal of it was seen. It is a third of the usual
/// lease.
const LATE_UNSEEN: Millis = 10_000;

/// The end of a hold, as far as samples tell.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum HoldEnd {
    /// It was released, as far as can be seen.
    Released,
    /// Its process did not renew its lease in time.
    Lost,
    /// Its lease, which nobody renews, ran out.
    RanOut,
    /// An operator took it back.
    Evicted,
}

/// The end of a wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum WaitEnd {
    /// It holds the lock.
    Granted,
    /// It left the queue, or held the lock only between two samples.
    Left,
}

/// A hold of a lock.
#[derive(Clone, Debug)]
pub(crate) struct Hold {
    pub(crate) who: Arc<Who>,
    contender: ContenderId,
    pub(crate) token: Token,
    pub(crate) units: Units,
    pub(crate) from: Millis,
    /// When it was last seen, or its end.
    pub(crate) to: Millis,
    pub(crate) end: Option<HoldEnd>,
    pub(crate) eviction: Option<Arc<Eviction>>,
    evicted: bool,
    renewed: bool,
    lease: Millis,
    left: Option<Millis>,
    renewals: Renewals,
}

/// The renewals of a hold, as far as samples tell. The store shows the lease that was asked for at first. A `min_hold`
/// makes that longer than those of the renewals, so lateness is judged by the renewals that were seen.
#[derive(Clone, Copy, Debug, Default)]
struct Renewals {
    /// When the lease ends, as of the last renewal that was seen.
    expires: Option<Millis>,
    /// The rest of the lease right after that renewal; `None` before the first.
    full: Option<Millis>,
}

impl Renewals {
    /// Takes in that the lease ends at `expires`, and that `left` of it is left. Moments of samples are exact up to
    /// `slack`.
    fn see(&mut self, expires: Millis, left: Millis, slack: Millis) {
        match self.expires {
            None => self.expires = Some(expires),
            Some(before) if expires > before + slack => {
                (self.expires, self.full) = (Some(expires), Some(left));
            }
            Some(_) => {}
        }
    }

    /// Returns the least rest of a lease in time: a holder with less should have renewed before. It is a third of the
    /// lease after a renewal. Before the first renewal nobody knows that, so it is a third of `lease`, but at most
    /// [`LATE_UNSEEN`].
    fn least(&self, lease: Millis) -> Millis {
        self.full.map_or_else(|| (lease / 3).min(LATE_UNSEEN), |full| full / 3)
    }
}

impl Hold {
    fn new(step: &mut Step<'_>, view: &HolderView) -> Self {
        let mut hold = Self {
            who: step.whos.get(&view.details),
            contender: view.contender,
            token: view.token,
            units: view.units,
            from: step.began(wall(view.since)),
            to: step.now,
            end: None,
            eviction: None,
            evicted: false,
            renewed: false,
            lease: 0,
            left: None,
            renewals: Renewals::default(),
        };
        hold.see(step, view);
        hold
    }

    fn see(&mut self, step: &Step<'_>, view: &HolderView) {
        let was_confirmed = self.to - self.from > CONFIRMED;
        self.to = step.now;
        self.units = view.units;
        self.evicted |= view.evicted;
        self.renewed = view.renewed;
        self.lease = millis(view.lease);
        self.left = view.remaining.map(millis);
        if !was_confirmed {
            self.renewals = Renewals::default();
        }
        if let Some(left) = self.left {
            self.renewals.see(self.to + left, left, step.slack);
        }
    }

    /// Returns the rest of the lease if its process should have renewed it before.
    pub(crate) fn late(&self) -> Option<Duration> {
        let left = self.left?;
        let confirmed = self.to - self.from > CONFIRMED;
        let late = self.renewed && !self.evicted && confirmed && left < self.renewals.least(self.lease);
        late.then(|| Duration::from_millis(left))
    }

    /// Returns the length of its lease, as the store shows it.
    pub(crate) fn lease(&self) -> Millis {
        self.lease
    }

    fn finish(mut self, now: Millis) -> Self {
        let ran_out = self.left.map(|left| self.to + left).filter(|end| *end <= now);
        let (end, at) = match ran_out {
            _ if self.evicted || self.eviction.is_some() => (HoldEnd::Evicted, now),
            Some(at) if self.late().is_some() => (HoldEnd::Lost, at),
            Some(at) if !self.renewed => (HoldEnd::RanOut, at),
            _ => (HoldEnd::Released, now),
        };
        (self.end, self.to) = (Some(end), at);
        self
    }
}

/// A wait for a lock.
#[derive(Clone, Debug)]
pub(crate) struct Wait {
    pub(crate) who: Arc<Who>,
    contender: ContenderId,
    pub(crate) units: Units,
    pub(crate) from: Millis,
    /// When it was last seen, or its end.
    pub(crate) to: Millis,
    pub(crate) end: Option<WaitEnd>,
}

impl Wait {
    fn new(step: &mut Step<'_>, view: &WaiterView) -> Self {
        Self {
            who: step.whos.get(&view.details),
            contender: view.contender,
            units: view.units,
            from: step.began(wall(view.since)),
            to: step.now,
            end: None,
        }
    }
}

/// A hold or a wait that is over.
#[derive(Clone, Debug)]
pub(crate) enum Past {
    Hold(Hold),
    Wait(Wait),
}

impl Past {
    /// Returns the moment of its end.
    fn to(&self) -> Millis {
        match self {
            Self::Hold(hold) => hold.to,
            Self::Wait(wait) => wait.to,
        }
    }
}

/// The reason for dropping an entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Dropped {
    TooOld,
    TooMany,
}

/// One lock's history.
#[derive(Clone, Debug)]
pub(crate) struct Record {
    pub(crate) kind: Kind,
    pub(crate) capacity: Capacity,
    holds: Vec<Hold>,
    waits: Vec<Wait>,
    past: VecDeque<(u64, Past)>,
    /// Steps of two seconds, for the last five minutes.
    pub(crate) fine: Curve,
    /// Steps of half a minute, for the last hour.
    pub(crate) coarse: Curve,
    sample: u64,
    /// The moment since when everything that was seen of it is kept, if something had to be dropped.
    whole_since: Option<Millis>,
    /// The limits of its alarms, and the rules that they are by.
    pub(crate) limits: Cell<Option<KnownLimits>>,
}

/// The limits of a lock, so that its name is not matched against all rules for each sample.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct KnownLimits {
    /// The version of the rules.
    pub(crate) version: u64,
    pub(crate) kind: Kind,
    pub(crate) limits: Limits,
}

impl Record {
    /// Makes the record of a lock that was not seen yet, or whose history before `whole_since` was forgotten.
    pub(crate) fn new(view: &ResourceView, whole_since: Option<Millis>) -> Self {
        Self {
            kind: kind(view).unwrap_or(Kind::Mutex),
            capacity: view.capacity,
            holds: Vec::new(),
            waits: Vec::new(),
            past: VecDeque::new(),
            fine: Curve::new(2_000, 150),
            coarse: Curve::new(30_000, 120),
            sample: 0,
            whole_since,
            limits: Cell::new(None),
        }
    }

    /// Returns the moment since when everything that was seen of it is kept, if something had to be dropped.
    pub(crate) fn whole_since(&self) -> Option<Millis> {
        self.whole_since
    }

    /// Returns the number of the sample that it was last seen in.
    pub(crate) fn sample(&self) -> u64 {
        self.sample
    }

    pub(crate) fn is_live(&self) -> bool {
        !self.holds.is_empty() || !self.waits.is_empty()
    }

    pub(crate) fn holds(&self) -> &[Hold] {
        &self.holds
    }

    pub(crate) fn waits(&self) -> &[Wait] {
        &self.waits
    }

    pub(crate) fn past(&self) -> impl DoubleEndedIterator<Item = &Past> {
        self.past.iter().map(|(_, past)| past)
    }

    /// Takes in a sample's view of this lock.
    pub(crate) fn observe(&mut self, step: &mut Step<'_>, view: &ResourceView) {
        self.sample = step.sample;
        self.kind = kind(view).unwrap_or(self.kind);
        self.capacity = view.capacity;
        let mut used =
            Use { waiters: u32::try_from(view.waiters.len()).unwrap_or(u32::MAX), ..Use::default() };
        let holds = self.observe_holders(step, view, &mut used);
        let waits = self.observe_waiters(step, view, &mut used);
        for mut wait in waits {
            let granted = self.holds.iter().any(|hold| hold.contender == wait.contender);
            wait.end = Some(if granted { WaitEnd::Granted } else { WaitEnd::Left });
            wait.to = step.now;
            self.push(step, Past::Wait(wait));
        }
        for hold in holds {
            let mut hold = hold.finish(step.now);
            // The next holder's begin is closer to the end than the sample that showed it.
            let next = self.holds.iter().map(|next| next.from).filter(|from| *from >= hold.from).min();
            if hold.end != Some(HoldEnd::Lost) && self.capacity == Capacity::All {
                hold.to = next.map_or(hold.to, |next| next.clamp(hold.from, hold.to));
            }
            self.push(step, Past::Hold(hold));
        }
        self.fine.add(step.now, used);
        self.coarse.add(step.now, used);
    }

    /// Returns the holds that are over.
    fn observe_holders(&mut self, step: &mut Step<'_>, view: &ResourceView, used: &mut Use) -> Vec<Hold> {
        let mut before = Known::new(std::mem::take(&mut self.holds), |hold| (hold.contender, hold.token));
        for (place, holder) in view.holders.iter().enumerate() {
            let mut hold = before.take(place, &(holder.contender, holder.token)).unwrap_or_else(|| {
                used.changes += u32::from(step.before.is_some());
                Hold::new(step, holder)
            });
            hold.see(step, holder);
            self.holds.push(hold);
        }
        before.rest()
    }

    /// Returns the waits that are over.
    fn observe_waiters(&mut self, step: &mut Step<'_>, view: &ResourceView, used: &mut Use) -> Vec<Wait> {
        let mut before = Known::new(std::mem::take(&mut self.waits), |wait| wait.contender);
        for (place, waiter) in view.waiters.iter().enumerate() {
            let mut wait = before.take(place, &waiter.contender).unwrap_or_else(|| Wait::new(step, waiter));
            if let Some(before) = step.before {
                // Nobody knows about their wait in a time without samples.
                used.waited += (step.now - wait.from.max(before).min(step.now)).min(step.longest);
            }
            wait.to = step.now;
            self.waits.push(wait);
        }
        before.rest()
    }

    /// Takes note that nobody holds it or waits for it any more.
    pub(crate) fn free(&mut self, step: &mut Step<'_>) {
        for mut wait in std::mem::take(&mut self.waits) {
            (wait.end, wait.to) = (Some(WaitEnd::Left), step.now);
            self.push(step, Past::Wait(wait));
        }
        for hold in std::mem::take(&mut self.holds) {
            self.push(step, Past::Hold(hold.finish(step.now)));
        }
        // Most names come once, and an hour of them is kept.
        (self.holds, self.waits) = (Vec::new(), Vec::new());
        self.past.shrink_to_fit();
        self.fine.shrink();
        self.coarse.shrink();
    }

    fn push(&mut self, step: &mut Step<'_>, past: Past) {
        self.past.push_back((*step.next, past));
        *step.next += 1;
        *step.kept += 1;
        if self.past.len() > MOST_OF_ONE {
            self.drop_oldest(step.kept);
        }
    }

    /// Drops the oldest entry for want of room.
    fn drop_oldest(&mut self, kept: &mut usize) {
        if let Some((_, past)) = self.past.pop_front() {
            *kept -= 1;
            self.whole_since = self.whole_since.max(Some(past.to()));
        }
    }

    /// Takes note of an eviction. The sample that shows its outcome may have come first.
    pub(crate) fn evicted(&mut self, token: Token, eviction: &Arc<Eviction>) {
        if let Some(hold) = self.holds.iter_mut().find(|hold| hold.token == token) {
            hold.eviction = Some(eviction.clone());
            return;
        }
        for (_, past) in self.past.iter_mut().rev() {
            if let Past::Hold(hold) = past
                && hold.token == token
            {
                hold.eviction = Some(eviction.clone());
                hold.end = Some(HoldEnd::Evicted);
                return;
            }
        }
    }

    /// How many of its holds and waits are over and still there.
    pub(crate) fn past_len(&self) -> usize {
        self.past.len()
    }

    /// Whether the entry with this number is still there. Entries go in order.
    pub(crate) fn has_past(&self, number: u64) -> bool {
        self.past.front().is_some_and(|(first, _)| *first <= number)
    }

    /// Drops the entry with this number, which is the oldest if it is still there.
    pub(crate) fn drop_past(&mut self, number: u64, kept: &mut usize, why: Dropped) {
        if self.past.front().is_none_or(|(first, _)| *first != number) {
            return;
        }
        match why {
            Dropped::TooOld => {
                self.past.pop_front();
                *kept -= 1;
            }
            Dropped::TooMany => self.drop_oldest(kept),
        }
    }

    /// Drops the steps of its curves that are too old. True if nothing is left of the record.
    pub(crate) fn forget(&mut self, now: Millis) -> bool {
        let quiet = self.fine.forget(now) & self.coarse.forget(now);
        quiet && !self.is_live() && self.past.is_empty()
    }
}

/// The items of the sample before, to be found again by key. Nearly always each is in its old place.
struct Known<T, K, F> {
    items: Vec<Option<T>>,
    key: F,
    places: Option<HashMap<K, usize>>,
}

impl<T, K: Eq + Hash, F: Fn(&T) -> K> Known<T, K, F> {
    fn new(items: Vec<T>, key: F) -> Self {
        Self { items: items.into_iter().map(Some).collect(), key, places: None }
    }

    fn take(&mut self, place: usize, key: &K) -> Option<T> {
        let Self { items, key: key_of, places } = self;
        let is = |item: &Option<T>| item.as_ref().is_some_and(|item| key_of(item) == *key);
        if items.get(place).is_some_and(is) {
            return items[place].take();
        }
        if items.len() <= 8 {
            return items.iter().position(is).and_then(|place| items[place].take());
        }
        // A long queue has moved up: one pass over the items instead of one for each.
        let places = places.get_or_insert_with(|| {
            let all = items.iter().enumerate();
            all.filter_map(|(place, item)| Some((key_of(item.as_ref()?), place))).collect()
        });
        places.get(key).and_then(|place| items[*place].take())
    }

    fn rest(self) -> Vec<T> {
        self.items.into_iter().flatten().collect()
    }
}
