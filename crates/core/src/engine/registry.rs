//! All waiters and holds of this keeper, and when each of them is due next.
//!
//! One lock over both, so that a contender is always either waiting or held and a doubled grant
//! message can never be mistaken for a grant that nobody wants. Nothing is called while the lock
//! is held.

use std::{
    collections::{BTreeSet, HashMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use tokio::sync::Notify;

use super::{hold::Hold, looks::look, waiter::Waiter};
use crate::{
    clock::{BootTime, Clock, LONGEST_NAP},
    name::Name,
    support,
    token::GrantNumber,
};

/// While nothing is held, the watchdog looks again after this long, so that a steady flow of short locks does not wake it
/// each time: longer than between two polls. While something is held, after [`LONGEST_NAP`].
const LAZY_LOOK: Duration = Duration::from_secs(6);

/// How late a message about a grant may be. Longer than late copies of a claim take effect. A later one says nothing.
pub(super) const LATEST_MESSAGE: Duration = Duration::from_secs(60);

pub(crate) struct Registry {
    inner: Mutex<Inner>,
    earlier: Notify,
    /// How long detached leases are remembered: until no message or answer about their grants can come any more.
    remembered: Duration,
}

#[derive(Default)]
struct Inner {
    waiting: HashMap<u64, Scheduled<Arc<Waiter>>>,
    /// The waiters of each name, so that a hint need not look at all of them.
    names: BTreeSet<(Name, u64)>,
    held: HashMap<u64, Scheduled<Arc<Hold>>>,
    /// Lost, but their guards are still there: given back when these go or the keeper closes.
    lost: HashMap<u64, Arc<Hold>>,
    /// The latest grants that live on elsewhere: a late message about them is not for this keeper.
    detached: HashMap<u64, GrantNumber>,
    /// When each of them was detached, the oldest first.
    detached_at: VecDeque<(BootTime, u64)>,
    /// Given back, while the store has not answered: the leave under way is enough.
    leaving: HashMap<u64, GrantNumber>,
    schedule: BTreeSet<(BootTime, u64)>,
    /// The time at which the watchdog will look without being told.
    looks_at: BootTime,
    /// Whether anything came in since the watchdog last looked.
    touched: bool,
    /// The time at which the store last said that another server has taken the place of the one that granted.
    replaced: Option<BootTime>,
    closed: bool,
    /// Whether the gauges that the watchdog last published are those of an idle keeper.
    published_idle: bool,
}

struct Scheduled<T> {
    what: T,
    due: BootTime,
}

/// The recipient of a grant.
pub(crate) enum Recipient {
    Waiting(Arc<Waiter>),
    /// It is known: held, being given back, or detached.
    Known,
    /// Its contender holds an earlier one, which must be over.
    Outlived(Arc<Hold>),
    Nobody,
}

/// The waiters and holds that are due now.
#[derive(Default)]
pub(crate) struct DueNow {
    pub(crate) waiters: Vec<Arc<Waiter>>,
    pub(crate) holds: Vec<Arc<Hold>>,
}

impl Registry {
    /// For a keeper whose requests are answered within `request_limit` or not at all.
    pub(crate) fn new(request_limit: Duration) -> Self {
        let remembered = LATEST_MESSAGE + request_limit;
        Self { inner: Mutex::default(), earlier: Notify::new(), remembered }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        support::lock(&self.inner)
    }

    fn tell_if(&self, earlier: bool) {
        if earlier {
            self.earlier.notify_one();
        }
    }

    /// Enters a waiter; false if the keeper is closed.
    pub(crate) fn register(&self, waiter: &Arc<Waiter>) -> bool {
        let mut inner = self.lock();
        if inner.closed {
            return false;
        }
        inner.waiting.insert(waiter.slot(), Scheduled { what: waiter.clone(), due: BootTime::NEVER });
        inner.names.insert((waiter.claim().name.clone(), waiter.slot()));
        inner.touched = true;
        true
    }

    /// Turns a waiter into a hold that is due at `due`; false if it no longer waits.
    pub(crate) fn promote(&self, hold: &Arc<Hold>, due: BootTime) -> bool {
        let mut inner = self.lock();
        if inner.take_waiter(hold.slot).is_none() {
            return false;
        }
        let earlier = inner.insert_held(hold, due);
        drop(inner);
        self.tell_if(earlier);
        true
    }

    /// Enters a hold that came from elsewhere; false if the keeper is closed.
    pub(crate) fn adopt(&self, hold: &Arc<Hold>) -> bool {
        let due = hold.due();
        let mut inner = self.lock();
        if inner.closed {
            return false;
        }
        let earlier = inner.insert_held(hold, due);
        drop(inner);
        self.tell_if(earlier);
        true
    }

    /// Returns the recipient of the grant `number` for `slot`.
    pub(crate) fn recipient(&self, slot: u64, number: GrantNumber) -> Recipient {
        let inner = self.lock();
        if let Some(entry) = inner.waiting.get(&slot) {
            return Recipient::Waiting(entry.what.clone());
        }
        let held = inner.held.get(&slot).map(|entry| &entry.what).or_else(|| inner.lost.get(&slot));
        match (held, inner.detached.get(&slot)) {
            (Some(hold), _) if hold.number < number => Recipient::Outlived(hold.clone()),
            (Some(_), _) => Recipient::Known,
            (None, Some(detached)) if *detached >= number => Recipient::Known,
            (None, _) if inner.leaving.get(&slot).is_some_and(|left| *left >= number) => Recipient::Known,
            (None, _) => Recipient::Nobody,
        }
    }

    /// How many waiters and holds there are.
    pub(crate) fn counts(&self) -> (usize, usize) {
        let inner = self.lock();
        (inner.waiting.len(), inner.held.len())
    }

    /// How many waiters and holds there are, for the gauges. Unless they show an idle keeper, the watchdog looks again.
    pub(crate) fn publish(&self, store_is_down: bool) -> (usize, usize) {
        let mut inner = self.lock();
        let counts = (inner.waiting.len(), inner.held.len());
        inner.published_idle = counts == (0, 0) && !store_is_down;
        counts
    }

    /// Removes a waiter.
    pub(crate) fn remove_waiter(&self, slot: u64) {
        self.lock().take_waiter(slot);
    }

    /// Removes a hold whose leave is on its way, until [`left`](Self::left).
    pub(crate) fn remove_left(&self, hold: &Hold) {
        let mut inner = self.lock();
        inner.take_hold(hold.slot);
        // An adopted one has another keeper's contender, about which nobody is told here. Its number may be the same.
        if !hold.adopted {
            inner.leaving.insert(hold.slot, hold.number);
        }
    }

    /// The leave of a contender was answered, or is tried no more.
    pub(crate) fn left(&self, slot: u64) {
        self.lock().leaving.remove(&slot);
    }

    /// Keeps a lost hold only to give it back.
    pub(crate) fn lost(&self, slot: u64) {
        let mut inner = self.lock();
        if let Some(hold) = inner.take_hold(slot) {
            inner.lost.insert(slot, hold);
        }
    }

    /// Removes a hold that lives on elsewhere from `now` on; false if the keeper has closed and gives it back.
    pub(crate) fn detach(&self, hold: &Hold, now: BootTime) -> bool {
        let mut inner = self.lock();
        let is_here = inner.take_hold(hold.slot).is_some();
        if is_here {
            inner.remember_detached(hold, now, self.remembered);
        }
        is_here
    }

    /// Removes a hold whose leave is on its way, but which may live on at the store from `now` on.
    pub(crate) fn left_to_its_minimum(&self, hold: &Hold, now: BootTime) {
        let mut inner = self.lock();
        inner.take_hold(hold.slot);
        inner.remember_detached(hold, now, self.remembered);
    }

    /// The waiter is to ask again at `due`.
    pub(crate) fn ask_at(&self, slot: u64, due: BootTime) {
        let earlier = self.lock().schedule_waiting(slot, due);
        self.tell_if(earlier);
    }

    /// The waiter is to ask again at `due`, or earlier if that is scheduled.
    pub(crate) fn ask_by(&self, slot: u64, due: BootTime) {
        let mut inner = self.lock();
        let earlier = inner.waiting.get(&slot).is_some_and(|entry| due < entry.due)
            && inner.schedule_waiting(slot, due);
        drop(inner);
        self.tell_if(earlier);
    }

    /// The waiters for `name`, or all of them, in order of name and arrival.
    pub(crate) fn waiting_for(&self, name: Option<&Name>) -> Vec<Arc<Waiter>> {
        let inner = self.lock();
        let waiter = |slot: &u64| {
            look();
            inner.waiting.get(slot).map(|entry| entry.what.clone())
        };
        match name {
            Some(name) => {
                let range = inner.names.range((name.clone(), 0)..=(name.clone(), u64::MAX));
                range.filter_map(|(_, slot)| waiter(slot)).collect()
            }
            None => inner.names.iter().filter_map(|(_, slot)| waiter(slot)).collect(),
        }
    }

    /// Another server has taken the place of the one that granted. Everything that is held is to be renewed now, and so is
    /// every grant that was asked for before now and comes in later: the earlier server may have made it.
    pub(crate) fn renew_now(&self, now: BootTime) {
        let mut inner = self.lock();
        inner.replaced = Some(now);
        let holds: Vec<Arc<Hold>> = inner.held.values().map(|entry| entry.what.clone()).collect();
        let mut earlier = false;
        for hold in holds {
            hold.doubt(now);
            earlier |= inner.schedule_held(hold.slot, hold.due());
        }
        drop(inner);
        self.tell_if(earlier);
    }

    /// The watchdog is to look at the hold when it says so.
    pub(crate) fn look_again(&self, hold: &Hold) {
        let earlier = self.lock().schedule_held(hold.slot, hold.due());
        self.tell_if(earlier);
    }

    /// Takes the waiters and holds that are due at `now` out of the schedule, and with them the holds that are due
    /// within `together`; each must be scheduled anew or removed. Nothing due means nothing taken, and waiters are
    /// never taken early: one that is merely near would be asked again and again until its time comes.
    pub(crate) fn take_due(&self, now: BootTime, together: Duration) -> DueNow {
        let mut inner = self.lock();
        // The watchdog is awake and looks at the schedule again before it sleeps: nobody need tell it.
        inner.looks_at = BootTime::default();
        let mut due = DueNow::default();
        if inner.schedule.first().is_none_or(|(at, _)| *at > now) {
            return due;
        }
        let soon: Vec<_> = inner.schedule.range(..=(now.after(together), u64::MAX)).copied().collect();
        for (at, slot) in soon {
            if let Some(entry) = inner.held.get_mut(&slot) {
                entry.due = BootTime::NEVER;
                due.holds.push(entry.what.clone());
            } else if at > now {
                continue;
            } else if let Some(entry) = inner.waiting.get_mut(&slot) {
                entry.due = BootTime::NEVER;
                due.waiters.push(entry.what.clone());
            }
            inner.schedule.remove(&(at, slot));
        }
        due
    }

    /// Wakes the watchdog.
    pub(crate) fn nudge(&self) {
        self.earlier.notify_one();
    }

    /// Sleeps until something is due, but not past `latest`.
    pub(crate) async fn until_due(&self, clock: &Clock, latest: BootTime) {
        let now = clock.now();
        let (looks_at, nap) = {
            let mut inner = self.lock();
            let first = inner.schedule.first().map_or(BootTime::NEVER, |(at, _)| *at);
            let touched = std::mem::take(&mut inner.touched);
            let idle = !touched && inner.published_idle && inner.waiting.is_empty() && inner.held.is_empty();
            // Where nothing is held, nothing ends: then it only has to look as often as those who wait ask again, and
            // a suspended machine costs time and nothing else.
            let nap = if inner.held.is_empty() { LAZY_LOOK } else { LONGEST_NAP };
            let look = if idle { BootTime::NEVER } else { now.after(nap) };
            inner.looks_at = first.min(look).min(latest);
            (inner.looks_at, nap)
        };
        tokio::select! {
            biased;
            () = self.earlier.notified() => {}
            () = clock.nap_until(looks_at, nap) => {}
        }
    }

    /// Refuses newcomers from now on and gives out everything there is.
    pub(crate) fn close(&self) -> DueNow {
        let mut inner = self.lock();
        inner.closed = true;
        inner.schedule.clear();
        inner.names.clear();
        let mut everybody = DueNow {
            waiters: inner.waiting.drain().map(|(_, entry)| entry.what).collect(),
            holds: inner.held.drain().map(|(_, entry)| entry.what).collect(),
        };
        everybody.holds.extend(inner.lost.drain().map(|(_, hold)| hold));
        // In order of arrival, so that a simulated run repeats exactly.
        everybody.waiters.sort_by_key(|waiter| waiter.slot());
        everybody.holds.sort_by_key(|hold| hold.slot);
        everybody
    }
}

impl Inner {
    fn take_waiter(&mut self, slot: u64) -> Option<Arc<Waiter>> {
        let entry = self.waiting.remove(&slot)?;
        self.schedule.remove(&(entry.due, slot));
        self.names.remove(&(entry.what.claim().name.clone(), slot));
        Some(entry.what)
    }

    fn take_hold(&mut self, slot: u64) -> Option<Arc<Hold>> {
        let Some(entry) = self.held.remove(&slot) else { return self.lost.remove(&slot) };
        self.schedule.remove(&(entry.due, slot));
        Some(entry.what)
    }

    fn remember_detached(&mut self, hold: &Hold, now: BootTime, remembered: Duration) {
        // Each slot is detached once.
        self.detached.insert(hold.slot, hold.number);
        self.detached_at.push_back((now, hold.slot));
        // By age and not by slot: a contender that waited long has a low slot, and the message about its grant is new.
        while let Some((at, slot)) = self.detached_at.front().copied()
            && now.since(at) > remembered
        {
            self.detached_at.pop_front();
            self.detached.remove(&slot);
        }
    }

    fn insert_held(&mut self, hold: &Arc<Hold>, mut due: BootTime) -> bool {
        if let Some(replaced) = self.replaced.filter(|replaced| hold.asked <= *replaced) {
            hold.doubt(replaced);
            due = hold.due();
        }
        self.held.insert(hold.slot, Scheduled { what: hold.clone(), due: BootTime::NEVER });
        self.schedule_held(hold.slot, due)
    }

    fn schedule_waiting(&mut self, slot: u64, due: BootTime) -> bool {
        let Some(entry) = self.waiting.get_mut(&slot) else { return false };
        let before = std::mem::replace(&mut entry.due, due);
        self.reschedule(slot, before, due)
    }

    fn schedule_held(&mut self, slot: u64, due: BootTime) -> bool {
        let Some(entry) = self.held.get_mut(&slot) else { return false };
        let before = std::mem::replace(&mut entry.due, due);
        self.reschedule(slot, before, due)
    }

    /// Whether the watchdog has to be told.
    fn reschedule(&mut self, slot: u64, before: BootTime, due: BootTime) -> bool {
        self.touched = true;
        if before != BootTime::NEVER {
            self.schedule.remove(&(before, slot));
        }
        if due != BootTime::NEVER {
            self.schedule.insert((due, slot));
        }
        due < self.looks_at
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        engine::{hold::Grantee, terms::Terms},
        id::{ContenderId, KeeperId},
        share::{Capacity, Units},
        store::{Grant, Kind},
    };

    const START: BootTime = BootTime(1_000_000_000_000);

    /// A hold granted at `START` whose lease is long enough never to matter but for `lease / 3`.
    fn hold(slot: u64, lease: Duration) -> Arc<Hold> {
        let grantee = Grantee {
            name: Name::new("stock").expect("a good name"),
            contender: ContenderId { keeper: KeeperId::from_u128(1), seq: slot },
            slot,
            terms: Arc::new(Terms::new(Kind::Mutex, Units::All, Capacity::All)),
            tombstone_until: None,
        };
        let grant = Grant { number: slot, floor: slot, remaining: lease };
        Arc::new(Hold::from_answer(grantee, &grant, START, START).expect("in time"))
    }

    /// Renewals of a lease of 100 ms are due every 33 ms, which is less than the time within which renewals
    /// go together: they must wait for their time all the same.
    #[test]
    fn what_is_near_is_taken_only_with_what_is_due() {
        let together = Duration::from_millis(50);
        let registry = Registry::new(Duration::from_secs(2));
        assert!(registry.adopt(&hold(1, Duration::from_millis(99))), "due 33 ms after the start");
        assert!(registry.adopt(&hold(2, Duration::from_millis(150))), "due 50 ms after the start");
        assert!(registry.adopt(&hold(3, Duration::from_secs(3))), "due 1 s after the start");
        let taken =
            |millis| registry.take_due(START.after(Duration::from_millis(millis)), together).holds.len();
        assert_eq!(taken(32), 0, "nothing is due");
        assert_eq!(taken(33), 2, "one is due and another near");
        assert_eq!(taken(990), 0, "nothing is due");
        assert_eq!(taken(1000), 1);
    }

    fn detached(registry: &Registry, slot: u64, now: BootTime) {
        let hold = hold(slot, Duration::from_secs(30));
        assert!(registry.adopt(&hold) && registry.detach(&hold, now), "open");
    }

    #[test]
    fn a_hold_is_detached_or_given_back_by_closing() {
        let registry = Registry::new(Duration::from_secs(2));
        let (ours, theirs) = (hold(1, Duration::from_secs(30)), hold(2, Duration::from_secs(30)));
        assert!(registry.adopt(&ours) && registry.adopt(&theirs));
        assert!(registry.detach(&theirs, START));
        let given_back: Vec<u64> = registry.close().holds.iter().map(|hold| hold.slot).collect();
        assert_eq!(given_back, [1]);
        assert!(!registry.detach(&ours, START), "it is given back");
    }

    /// Slot 1 has waited for so long that thousands of later ones were detached before it. The message that granted it is
    /// still on its way.
    #[test]
    fn a_detached_lease_is_remembered_however_long_it_waited() {
        let registry = Registry::new(Duration::from_secs(2));
        for slot in (2..=5000).chain([1]) {
            detached(&registry, slot, START);
        }
        for slot in [1, 2, 5000] {
            assert!(matches!(registry.recipient(slot, slot), Recipient::Known), "slot {slot}");
        }
    }

    #[test]
    fn a_detached_lease_is_forgotten_when_no_message_about_its_grant_can_come() {
        let registry = Registry::new(Duration::from_secs(2));
        let last = START.after(registry.remembered);
        detached(&registry, 1, START);
        detached(&registry, 2, last);
        assert!(matches!(registry.recipient(1, 1), Recipient::Known), "just in time");
        detached(&registry, 3, last.after(Duration::from_nanos(1)));
        assert!(matches!(registry.recipient(1, 1), Recipient::Nobody));
        assert!(matches!(registry.recipient(2, 2), Recipient::Known));
        assert_eq!(registry.lock().detached.len(), 2);
    }
}
