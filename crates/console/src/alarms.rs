//! Alarms: troubles of now, since when they last, and troubles of before.
//!
//! An alarm is raised when its condition has lasted for a while, and ends when the condition has been gone for a while.
//! Between the two it is one alarm, however often the condition comes and goes.

use std::{
    collections::{BTreeMap, VecDeque},
    hash::{BuildHasher, Hasher},
    sync::Arc,
};

use lockkeeper::{
    store::{Kind, Name},
    support::duration,
};
use serde::Serialize;
use utoipa::ToSchema;

use crate::{
    clock::{Millis, millis},
    diagnosis::Finding,
    history::{History, KnownLimits, Record, Who},
    rules::{Limits, Rules},
};

/// The most alarms of one kind about locks at a time. Alarms about the store are few and always told.
pub(crate) const MOST: usize = 1_000;
/// The most alarms that are over and still shown.
const MOST_ENDED: usize = 200;

/// The kind of an alarm.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum AlarmKind {
    /// Requests to the store fail.
    StoreOutOfReach,
    /// A lease was not renewed in time, so the lock is about to be lost.
    LeaseNotRenewed,
    /// A lock is held for longer than its limit.
    HeldTooLong,
    /// Somebody waits for longer than the limit.
    WaitedTooLong,
    /// A lock has more waiters than its limit.
    TooManyWaiters,
    /// The doctor found something about the store that puts locks at risk.
    Doctor,
}

impl AlarmKind {
    /// All kinds.
    pub const ALL: [Self; 6] = [
        Self::StoreOutOfReach,
        Self::LeaseNotRenewed,
        Self::HeldTooLong,
        Self::WaitedTooLong,
        Self::TooManyWaiters,
        Self::Doctor,
    ];

    /// Returns the word in JSON and metrics.
    pub fn word(self) -> &'static str {
        match self {
            Self::StoreOutOfReach => "store_out_of_reach",
            Self::LeaseNotRenewed => "lease_not_renewed",
            Self::HeldTooLong => "held_too_long",
            Self::WaitedTooLong => "waited_too_long",
            Self::TooManyWaiters => "too_many_waiters",
            Self::Doctor => "doctor",
        }
    }

    /// How long a condition lasts before it is an alarm.
    fn raised_after(self) -> Millis {
        match self {
            Self::StoreOutOfReach => 5_000,
            Self::TooManyWaiters => 10_000,
            // A limit of time has passed already, and a lease does not wait.
            Self::LeaseNotRenewed | Self::HeldTooLong | Self::WaitedTooLong | Self::Doctor => 0,
        }
    }

    /// How long a condition is gone before the alarm ends.
    fn ends_after(self) -> Millis {
        match self {
            Self::LeaseNotRenewed => 60_000,
            Self::TooManyWaiters => 30_000,
            Self::StoreOutOfReach | Self::WaitedTooLong => 10_000,
            Self::HeldTooLong => 5_000,
            Self::Doctor => 0,
        }
    }

    fn is_about_locks(self) -> bool {
        !matches!(self, Self::StoreOutOfReach | Self::Doctor)
    }

    /// Whether the same condition is likely to come back: the next waiter of a queue has waited for nearly as long as
    /// the first, and the next of several holders has held for nearly as long.
    fn lingers(self, record: Option<&Record>) -> bool {
        record.is_some_and(|record| match self {
            Self::WaitedTooLong => !record.waits().is_empty(),
            Self::HeldTooLong => record.holds().len() > 1,
            Self::LeaseNotRenewed => !record.holds().is_empty(),
            Self::StoreOutOfReach | Self::TooManyWaiters | Self::Doctor => false,
        })
    }
}

/// The longest time that a condition which may come back is gone before the alarm ends.
const LONGEST_QUIET: Millis = 900_000;

/// A trouble, of now or of before.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, ToSchema)]
pub struct Alarm {
    /// Its number. No other alarm has the same one, not even one of another server or after a restart.
    pub id: u64,
    /// Its kind.
    pub kind: AlarmKind,
    /// The lock, if it is about one.
    pub name: Option<String>,
    /// The facts that were seen, as a sentence.
    pub saw: String,
    /// The moment at which the trouble began, in milliseconds since 1970.
    pub since_ms: u64,
    /// The moment at which the trouble ended, in milliseconds since 1970; null while it lasts.
    pub ended_ms: Option<u64>,
}

/// The exact subject of an alarm: conditions of one subject are one alarm.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Subject {
    kind: AlarmKind,
    what: Arc<str>,
}

/// A trouble that was seen at this look.
struct Condition {
    subject: Subject,
    name: Option<Name>,
    saw: String,
    /// When it began, if that is known better than by the first look that saw it.
    since: Option<Millis>,
    /// The time after which the same condition may come back.
    recurs: Millis,
}

#[derive(Debug)]
struct State {
    alarm: Alarm,
    name: Option<Name>,
    raised: bool,
    last_true: Millis,
    recurs: Millis,
    /// How long the condition has been gone, as far as it was seen.
    quiet: Millis,
    /// How long it has been gone with no reason to come back.
    idle: Millis,
}

impl State {
    fn is_over(&self) -> bool {
        let least = self.alarm.kind.ends_after();
        self.idle >= least || self.quiet >= self.recurs.clamp(least, LONGEST_QUIET)
    }
}

/// All alarms.
#[derive(Debug, Default)]
pub(crate) struct Alarms {
    rules: Rules,
    /// The version of the rules, so that limits are looked up once for each lock.
    rules_version: u64,
    states: BTreeMap<Subject, State>,
    ended: VecDeque<Alarm>,
    /// The first number of this run; other runs begin elsewhere.
    instance: Option<u64>,
    last_id: u64,
    /// The last look of any kind, and the last one at which the locks were seen or could not be asked for.
    looked: Millis,
    looked_at_locks: Millis,
    /// Conditions of the last sample that would also be alarms: at most four times as many as there are locks.
    left_off: Vec<(AlarmKind, Name)>,
}

/// The state of knowledge about the locks.
#[derive(Clone, Copy)]
pub(crate) enum LocksSeen<'a> {
    /// There is a new sample.
    Now(&'a History),
    /// The store could not be asked, so nobody knows about them.
    Unknown,
    /// They were not looked at this time.
    Before,
}

/// The facts that the alarms look at.
pub(crate) struct Look<'a> {
    pub(crate) now: Millis,
    pub(crate) locks: LocksSeen<'a>,
    /// The error of a store that cannot be asked, and since when it lasts.
    pub(crate) failing: Option<(&'a str, Millis)>,
    pub(crate) findings: &'a [Finding],
}

impl Alarms {
    pub(crate) fn set_rules(&mut self, rules: Rules) {
        self.rules = rules;
        self.rules_version += 1;
    }

    pub(crate) fn rules(&self) -> &Rules {
        &self.rules
    }

    pub(crate) fn active(&self) -> impl Iterator<Item = &Alarm> {
        self.states.values().filter(|state| state.raised).map(|state| &state.alarm)
    }

    /// Returns the alarms that are over, the last one first.
    pub(crate) fn ended(&self) -> impl Iterator<Item = &Alarm> {
        self.ended.iter().rev()
    }

    /// Returns the conditions that are no alarms only because there are too many of their kind.
    pub(crate) fn left_off(&self) -> impl Iterator<Item = (AlarmKind, &Name)> {
        self.left_off.iter().map(|(kind, name)| (*kind, name))
    }

    /// Returns a number that tells this run from others: the numbers of its alarms begin there.
    pub(crate) fn instance(&self) -> u64 {
        self.instance.unwrap_or(0)
    }

    /// Looks at the present facts. Returns the alarms that this raised or ended.
    pub(crate) fn look(&mut self, look: &Look<'_>) -> Vec<Alarm> {
        let mut events = Vec::new();
        let now = look.now.max(self.looked);
        if self.instance.is_none() {
            self.last_id = first_id(now);
            self.instance = Some(self.last_id);
        }
        let conditions = self.conditions(now, look);
        if matches!(look.locks, LocksSeen::Now(_)) {
            self.left_off.clear();
        }
        let mut counts = BTreeMap::new();
        for subject in self.states.keys() {
            *counts.entry(subject.kind).or_insert(0) += 1;
        }
        for condition in conditions {
            let count = counts.entry(condition.subject.kind).or_insert(0);
            self.hold_true(now, condition, count, &mut events);
        }
        self.end(now, look.locks, &mut events);
        self.looked = now;
        if !matches!(look.locks, LocksSeen::Before) {
            self.looked_at_locks = now;
        }
        events
    }

    /// Takes note of a condition. `count` is the number of conditions of its kind.
    fn hold_true(&mut self, now: Millis, condition: Condition, count: &mut usize, events: &mut Vec<Alarm>) {
        let Condition { subject, name, saw, since, recurs } = condition;
        let kind = subject.kind;
        let known = self.states.contains_key(&subject);
        if let Some(name) = name.as_ref().filter(|_| !known && *count >= MOST) {
            self.left_off.push((kind, name.clone()));
            return;
        }
        let state = self.states.entry(subject).or_insert_with(|| {
            self.last_id += 1;
            *count += 1;
            let alarm = Alarm {
                id: self.last_id,
                kind,
                name: name.as_ref().map(|name| name.as_str().to_owned()),
                saw: String::new(),
                since_ms: since.unwrap_or(now).min(now),
                ended_ms: None,
            };
            State { alarm, name, raised: false, last_true: now, recurs, quiet: 0, idle: 0 }
        });
        state.alarm.saw = saw;
        (state.last_true, state.recurs, state.quiet, state.idle) = (now, recurs, 0, 0);
        if !state.raised && now - state.alarm.since_ms >= kind.raised_after() {
            state.raised = true;
            events.push(state.alarm.clone());
        }
    }

    fn end(&mut self, now: Millis, locks: LocksSeen<'_>, events: &mut Vec<Alarm>) {
        let Self { ended, looked, looked_at_locks, .. } = self;
        self.states.retain(|subject, state| {
            let (passed, record) = match locks {
                _ if !subject.kind.is_about_locks() => (now - *looked, None),
                LocksSeen::Now(history) => {
                    let record = state.name.as_ref().and_then(|name| history.record(name));
                    (now - *looked_at_locks, record)
                }
                LocksSeen::Unknown | LocksSeen::Before => return true,
            };
            // The condition is true now.
            if state.last_true == now {
                return true;
            }
            // A condition that was never an alarm must begin anew.
            if !state.raised {
                return false;
            }
            state.quiet += passed;
            state.idle = if subject.kind.lingers(record) { 0 } else { state.idle + passed };
            let over = state.is_over();
            if over {
                state.alarm.ended_ms = Some(state.last_true);
                events.push(state.alarm.clone());
                ended.push_back(state.alarm.clone());
            }
            !over
        });
        while ended.len() > MOST_ENDED {
            ended.pop_front();
        }
    }

    fn conditions(&self, now: Millis, look: &Look<'_>) -> Vec<Condition> {
        let mut found = Vec::new();
        if let Some((why, since)) = look.failing {
            let lasted = show(now.saturating_sub(since));
            let subject = Subject { kind: AlarmKind::StoreOutOfReach, what: "store".into() };
            let saw = format!("the store has not answered for {lasted}: {why}");
            found.push(Condition { subject, name: None, saw, since: Some(since), recurs: 0 });
        }
        // The message has measured values, which change all the time, so it is not part of the subject.
        let mut same: BTreeMap<(&str, &str), usize> = BTreeMap::new();
        for finding in look.findings {
            let server = finding.server.as_deref().unwrap_or_default();
            let number = same.entry((server, &finding.risk)).or_default();
            *number += 1;
            let subject = Subject {
                kind: AlarmKind::Doctor,
                what: format!("{server} {} {number}", finding.risk).into(),
            };
            let saw = match &finding.server {
                Some(server) => format!("{server}: {}", finding.message),
                None => finding.message.clone(),
            };
            found.push(Condition { subject, name: None, saw, since: None, recurs: 0 });
        }
        if let LocksSeen::Now(history) = look.locks {
            for (name, record) in history.live() {
                judge(now, name, record, &self.limits(name, record), &mut found);
            }
        }
        found
    }

    /// Returns the limits of a lock. Its name is matched against the rules once.
    fn limits(&self, name: &Name, record: &Record) -> Limits {
        let (version, kind) = (self.rules_version, record.kind);
        if let Some(known) =
            record.limits.get().filter(|known| (known.version, known.kind) == (version, kind))
        {
            return known.limits;
        }
        let limits = self.rules.limits(name.as_str(), kind);
        record.limits.set(Some(KnownLimits { version, kind, limits }));
        limits
    }
}

/// Returns the number before the first one of a run. It differs between runs and servers, and is exact in JSON.
fn first_id(now: Millis) -> u64 {
    let random = std::hash::RandomState::new().build_hasher().finish() % 1_000;
    now.saturating_mul(1_000) + random
}

/// Finds the troubles of one lock.
fn judge(now: Millis, name: &Name, record: &Record, limits: &Limits, found: &mut Vec<Condition>) {
    let mut add = |kind, saw, recurs| {
        let subject = Subject { kind, what: name.as_str().into() };
        found.push(Condition { subject, name: Some(name.clone()), saw, since: None, recurs });
    };
    let longest = record.holds().iter().min_by_key(|hold| hold.from);
    if let (Some(limit), Some(hold)) = (limits.held.at(), longest)
        && now.saturating_sub(hold.from) > millis(limit)
    {
        let (who, held, shown) = (described(&hold.who), show(now - hold.from), duration::show(limit));
        let saw = format!("held for {held} by {who}; the limit is {shown}");
        add(AlarmKind::HeldTooLong, saw, millis(limit));
    }
    let first = record.waits().iter().min_by_key(|wait| wait.from);
    if let (Some(limit), Some(wait)) = (limits.waited.at(), first)
        && now.saturating_sub(wait.from) > millis(limit)
    {
        let (who, waited, shown) = (described(&wait.who), show(now - wait.from), duration::show(limit));
        let saw = format!("{who} has waited for {waited}; the limit is {shown}");
        add(AlarmKind::WaitedTooLong, saw, millis(limit));
    }
    let waiters = record.waits().len();
    if let Some(limit) = limits.waiters.at()
        && waiters > limit as usize
    {
        let holder = match record.holds() {
            [] => "nobody holds it".to_owned(),
            [hold] => format!("{} holds it", described(&hold.who)),
            holds => format!("{} hold it", holds.len()),
        };
        add(AlarmKind::TooManyWaiters, format!("{waiters} wait; the limit is {limit}; {holder}"), 0);
    }
    let late =
        record.holds().iter().filter_map(|hold| Some((hold.late()?, hold))).min_by_key(|(left, _)| *left);
    if let Some((left, hold)) = late.filter(|_| limits.renewal) {
        let (who, left) = (described(&hold.who), duration::show(left));
        let what = if record.kind == Kind::Election { "its leadership" } else { "the lock" };
        let saw = format!("{who} has not renewed its lease, of which {left} is left; then it loses {what}");
        add(AlarmKind::LeaseNotRenewed, saw, hold.lease());
    }
}

fn described(who: &Who) -> String {
    match &who.label {
        Some(label) => format!("{} ({label})", who.text()),
        None => who.text(),
    }
}

fn show(length: Millis) -> String {
    duration::show(std::time::Duration::from_millis(length))
}

#[cfg(test)]
mod tests;
