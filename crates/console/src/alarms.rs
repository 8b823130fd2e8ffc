//! Alarms: what is wrong now, since when, and what was wrong before.
//!
//! An alarm is raised when its condition has lasted for a while, and ends when the condition has been gone for a while.
//! Between the two it is one alarm, however often the condition comes and goes.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

use lockkeeper::{
    store::{Kind, Name},
    support::duration,
};
use serde::Serialize;
use utoipa::ToSchema;

use crate::{
    clock::Millis,
    console::Finding,
    history::{History, Record, Who},
    rules::{Limits, Rules},
};

/// The most alarms at a time.
const MOST: usize = 1_000;
/// The most alarms that are over and still shown.
const MOST_ENDED: usize = 200;

/// What an alarm is about.
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

    /// The word in JSON and metrics.
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
}

/// What is wrong, or was.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, ToSchema)]
pub struct Alarm {
    /// Its number. Others never have the same one, as long as this process runs.
    pub id: u64,
    /// What it is about.
    pub kind: AlarmKind,
    /// The lock, if it is about one.
    pub name: Option<String>,
    /// What was seen, as a sentence.
    pub saw: String,
    /// Since when, in milliseconds since 1970.
    pub since_ms: u64,
    /// When it ended, in milliseconds since 1970; null while it lasts.
    pub ended_ms: Option<u64>,
}

/// What an alarm is about, exactly: two of one subject are one alarm.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Subject {
    kind: AlarmKind,
    what: Arc<str>,
}

/// Something that is wrong in this sample.
struct Condition {
    subject: Subject,
    name: Option<Name>,
    saw: String,
}

#[derive(Debug)]
struct State {
    alarm: Alarm,
    raised: bool,
    last_true: Millis,
}

/// All alarms.
#[derive(Debug, Default)]
pub(crate) struct Alarms {
    rules: Rules,
    states: BTreeMap<Subject, State>,
    ended: VecDeque<Alarm>,
    last_id: u64,
    /// How many more there would be in the last sample.
    left_off: usize,
}

/// What the alarms look at.
pub(crate) struct Look<'a> {
    pub(crate) now: Millis,
    /// What is known of the locks; `None` if the store could not be asked this time.
    pub(crate) history: Option<&'a History>,
    /// Why the store could not be asked, and since when.
    pub(crate) failing: Option<(&'a str, Millis)>,
    pub(crate) findings: &'a [Finding],
}

impl Alarms {
    pub(crate) fn set_rules(&mut self, rules: Rules) {
        self.rules = rules;
    }

    pub(crate) fn rules(&self) -> &Rules {
        &self.rules
    }

    pub(crate) fn active(&self) -> impl Iterator<Item = &Alarm> {
        self.states.values().filter(|state| state.raised).map(|state| &state.alarm)
    }

    /// Those that are over, the last one first.
    pub(crate) fn ended(&self) -> impl Iterator<Item = &Alarm> {
        self.ended.iter().rev()
    }

    pub(crate) fn left_off(&self) -> usize {
        self.left_off
    }

    /// Looks at what is there now. Returns the alarms that were raised or ended by it.
    pub(crate) fn look(&mut self, look: &Look<'_>) -> Vec<Alarm> {
        let mut events = Vec::new();
        let conditions = self.conditions(look);
        self.left_off = 0;
        for condition in conditions {
            self.hold_true(look.now, condition, &mut events);
        }
        self.end(look, &mut events);
        events
    }

    fn hold_true(&mut self, now: Millis, condition: Condition, events: &mut Vec<Alarm>) {
        let Condition { subject, name, saw } = condition;
        if !self.states.contains_key(&subject) && self.states.len() >= MOST {
            self.left_off += 1;
            return;
        }
        let kind = subject.kind;
        let state = self.states.entry(subject).or_insert_with(|| {
            self.last_id += 1;
            let name = name.map(|name| name.as_str().to_owned());
            let alarm =
                Alarm { id: self.last_id, kind, name, saw: String::new(), since_ms: now, ended_ms: None };
            State { alarm, raised: false, last_true: now }
        });
        state.alarm.saw = saw;
        state.last_true = now;
        if !state.raised && now - state.alarm.since_ms >= kind.raised_after() {
            state.raised = true;
            events.push(state.alarm.clone());
        }
    }

    fn end(&mut self, look: &Look<'_>, events: &mut Vec<Alarm>) {
        let ended = &mut self.ended;
        self.states.retain(|subject, state| {
            // Nobody knows how the locks are while the store cannot be asked.
            let about_locks = !matches!(subject.kind, AlarmKind::StoreOutOfReach | AlarmKind::Doctor);
            if about_locks && look.history.is_none() {
                state.last_true = look.now;
                return true;
            }
            let quiet = look.now - state.last_true;
            let over = look.now > state.last_true && quiet >= subject.kind.ends_after();
            // A condition that was never an alarm must begin anew.
            if !state.raised {
                return quiet == 0;
            }
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

    fn conditions(&self, look: &Look<'_>) -> Vec<Condition> {
        let mut found = Vec::new();
        if let Some((why, since)) = look.failing {
            let lasted = show(look.now - since);
            let subject = Subject { kind: AlarmKind::StoreOutOfReach, what: "store".into() };
            let saw = format!("the store has not answered for {lasted}: {why}");
            found.push(Condition { subject, name: None, saw });
        }
        for finding in look.findings {
            let what = format!("{} {}", finding.server.as_deref().unwrap_or_default(), finding.message);
            let saw = match &finding.server {
                Some(server) => format!("{server}: {}", finding.message),
                None => finding.message.clone(),
            };
            let subject = Subject { kind: AlarmKind::Doctor, what: what.into() };
            found.push(Condition { subject, name: None, saw });
        }
        for (name, record) in look.history.iter().flat_map(|history| history.records()) {
            if record.is_live() {
                let limits = self.rules.limits(name.as_str(), record.kind);
                judge(look.now, name, record, &limits, &mut found);
            }
        }
        found
    }
}

/// What is wrong with one lock.
fn judge(now: Millis, name: &Name, record: &Record, limits: &Limits, found: &mut Vec<Condition>) {
    let mut add = |kind, saw| {
        let subject = Subject { kind, what: name.as_str().into() };
        found.push(Condition { subject, name: Some(name.clone()), saw });
    };
    let longest = record.holds().iter().min_by_key(|hold| hold.from);
    if let (Some(limit), Some(hold)) = (limits.held.at(), longest)
        && u128::from(now - hold.from) > limit.as_millis()
    {
        let (who, held, limit) = (described(&hold.who), show(now - hold.from), duration::show(limit));
        add(AlarmKind::HeldTooLong, format!("held for {held} by {who}; the limit is {limit}"));
    }
    let first = record.waits().iter().min_by_key(|wait| wait.from);
    if let (Some(limit), Some(wait)) = (limits.waited.at(), first)
        && u128::from(now - wait.from) > limit.as_millis()
    {
        let (who, waited, limit) = (described(&wait.who), show(now - wait.from), duration::show(limit));
        add(AlarmKind::WaitedTooLong, format!("{who} has waited for {waited}; the limit is {limit}"));
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
        add(AlarmKind::TooManyWaiters, format!("{waiters} wait; the limit is {limit}; {holder}"));
    }
    let late =
        record.holds().iter().filter_map(|hold| Some((hold.late()?, hold))).min_by_key(|(left, _)| *left);
    if let Some((left, hold)) = late.filter(|_| limits.renewal) {
        let (who, left) = (described(&hold.who), duration::show(left));
        let what = if record.kind == Kind::Election { "its leadership" } else { "the lock" };
        add(
            AlarmKind::LeaseNotRenewed,
            format!("{who} has not renewed its lease, of which {left} is left; then it loses {what}"),
        );
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
