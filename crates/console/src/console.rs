//! The console: takes samples in, and shows what they tell to as many pages as there are.

mod pages;
mod rows;

use std::sync::{Arc, Mutex};

use bytes::Bytes;
use lockkeeper::{
    Token,
    store::{Capability, Name},
    support,
};
use serde_json::json;
use tokio::sync::watch;

use crate::{
    alarms::{Alarm, AlarmKind, Alarms, LocksSeen, Look},
    clock::Millis,
    diagnosis::Diagnosis,
    history::{Eviction, History},
    post,
    rules::{Rules, RulesError},
    sample::Sample,
    scope::Scope,
    table::Table,
    timeline::Timeline,
    view::{AlarmPage, Body, By, HotPage, OutageInfo, Page, Query, View},
    webhook::Webhook,
    window::Window,
};

const ALARMS: &str = "lockkeeper_alarms";
const ALARMS_LEFT_OFF: &str = "lockkeeper_alarms_left_off";
const ALARMS_RAISED: &str = "lockkeeper_alarms_raised_total";

/// The store that a console shows.
#[derive(Clone, Debug)]
pub struct StoreFacts {
    /// Its URL without secrets.
    pub url: String,
    /// What it can do and survive.
    pub capability: Capability,
}

/// The store is not checked by the doctor, was not yet, or was.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
enum Checked {
    #[default]
    NotYet,
    Never,
    At(Millis),
}

/// All that is known. Pages ask it for views; a server feeds it with samples.
pub struct Console {
    store: StoreFacts,
    webhook: Webhook,
    state: Mutex<State>,
    news: watch::Sender<u64>,
}

#[derive(Default)]
struct State {
    /// The latest moment that was heard of.
    now: Millis,
    history: History,
    alarms: Alarms,
    table: Option<Table>,
    /// The store cannot be listed.
    unlisted: Option<OutageInfo>,
    /// The store does not answer at all.
    silent: Option<OutageInfo>,
    /// The hottest locks of the last sample, for those who may see everything: made once for all pages.
    hot: Vec<HotPage>,
    diagnosis: Diagnosis,
    checked: Checked,
    check_error: Option<String>,
    file: Option<String>,
    file_error: Option<String>,
}

impl Console {
    /// A console that has seen nothing yet. Alarms go to `webhook` once [`set_rules`](Self::set_rules) has told where.
    pub fn new(store: StoreFacts, webhook: Webhook) -> Self {
        metrics::describe_gauge!(ALARMS, "alarms that last, by kind");
        metrics::describe_gauge!(ALARMS_LEFT_OFF, "alarms beyond the most of their kind, which are not told");
        metrics::describe_counter!(ALARMS_RAISED, "alarms that were raised, by kind");
        for kind in AlarmKind::ALL {
            metrics::gauge!(ALARMS, "kind" => kind.word()).set(0.0);
            metrics::gauge!(ALARMS_LEFT_OFF, "kind" => kind.word()).set(0.0);
            metrics::counter!(ALARMS_RAISED, "kind" => kind.word()).absolute(0);
        }
        Self { store, webhook, state: Mutex::default(), news: watch::Sender::new(0) }
    }

    /// Tells when there is something new to show.
    pub fn news(&self) -> watch::Receiver<u64> {
        self.news.subscribe()
    }

    /// Takes a sample in.
    pub fn observe(&self, sample: Sample) {
        let events = self.take_in(sample);
        self.announce(&events);
    }

    /// Takes a sample in of which nobody has to be told: it is from a past that is played.
    pub(crate) fn observe_past(&self, sample: Sample) {
        drop(self.take_in(sample));
    }

    fn take_in(&self, sample: Sample) -> Vec<Alarm> {
        self.change(sample.at, |state, _| {
            state.history.observe(&sample);
            state.table = Some(Table::new(sample, &state.history));
            state.unlisted = None;
            state.hot.clear();
            Changed::Locks
        })
    }

    /// The store could not be listed.
    pub fn fail(&self, now: Millis, message: &str) {
        let events = self.change(now, |state, now| {
            let since_ms = state.unlisted.as_ref().map_or(now, |outage| outage.since_ms);
            state.unlisted = Some(OutageInfo { since_ms, message: message.to_owned() });
            Changed::LocksUnknown
        });
        self.announce(&events);
    }

    /// The store has not answered a small request; its last answer was at `since`.
    pub fn silent(&self, now: Millis, since: Millis, message: &str) {
        let events = self.change(now, |state, now| {
            state.silent = Some(OutageInfo { since_ms: since.min(now), message: message.to_owned() });
            Changed::LocksUnknown
        });
        self.announce(&events);
    }

    /// The store has answered a small request.
    pub fn answered(&self, now: Millis) {
        if support::lock(&self.state).silent.is_none() {
            return;
        }
        let events = self.change(now, |state, _| {
            state.silent = None;
            Changed::NoLocks
        });
        self.announce(&events);
    }

    /// The doctor has looked.
    pub fn set_diagnosis(&self, now: Millis, diagnosis: Diagnosis) {
        let events = self.change(now, |state, now| {
            state.diagnosis = diagnosis;
            state.checked = Checked::At(now);
            state.check_error = None;
            Changed::NoLocks
        });
        self.announce(&events);
    }

    /// The doctor could not look. What it found before stays, because nobody knows better.
    pub fn doctor_failed(&self, why: &str) {
        support::lock(&self.state).check_error = Some(why.to_owned());
        self.tell();
    }

    /// The doctor has no checks for this store.
    pub fn not_checked(&self) {
        support::lock(&self.state).checked = Checked::Never;
        self.tell();
    }

    /// Limits from now on, and the file that they are from. If the webhook cannot be used, nothing changes.
    ///
    /// # Errors
    /// Says what is wrong with the webhook.
    pub fn set_rules(&self, rules: Rules, file: Option<String>) -> Result<(), RulesError> {
        let target = rules.webhook().map(|hook| post::of_rule(&hook.url, hook.authorization.as_deref()));
        let target = target.transpose().map_err(|why| RulesError::new(format!("the webhook: {why}")))?;
        let mut state = support::lock(&self.state);
        state.file = file;
        // What waits for the same receiver goes on waiting.
        if state.alarms.rules().webhook() != rules.webhook() {
            self.webhook.set_target(target);
        }
        state.alarms.set_rules(rules);
        state.file_error = None;
        drop(state);
        self.tell();
        Ok(())
    }

    /// The file of limits cannot be used, so what held before holds on.
    pub fn rules_failed(&self, why: &str) {
        support::lock(&self.state).file_error = Some(why.to_owned());
        self.tell();
    }

    /// An operator evicted a holder through this server.
    pub fn evicted(&self, name: &str, token: Token, eviction: Eviction) {
        if let Ok(name) = Name::new(name) {
            support::lock(&self.state).history.evicted(&name, token, &Arc::new(eviction));
        }
    }

    /// Changes something, and looks for alarms. Returns those that were raised or ended.
    fn change(&self, now: Millis, change: impl FnOnce(&mut State, Millis) -> Changed) -> Vec<Alarm> {
        let mut state = support::lock(&self.state);
        // Several tasks tell what they know; a sample is from a moment before it is told.
        let now = state.now.max(now);
        state.now = now;
        let changed = change(&mut state, now);
        let failing = state.outage();
        let State { history, alarms, diagnosis, .. } = &mut *state;
        let look = Look {
            now,
            locks: match changed {
                Changed::Locks => LocksSeen::Now(history),
                Changed::LocksUnknown => LocksSeen::Unknown,
                Changed::NoLocks => LocksSeen::Before,
            },
            failing: failing.as_ref().map(|outage| (&*outage.message, outage.since_ms)),
            findings: &diagnosis.findings,
        };
        let events = alarms.look(&look);
        for kind in AlarmKind::ALL {
            let count = alarms.active().filter(|alarm| alarm.kind == kind).count();
            metrics::gauge!(ALARMS, "kind" => kind.word()).set(count as f64);
            let left_off = alarms.left_off().filter(|(other, _)| *other == kind).count();
            metrics::gauge!(ALARMS_LEFT_OFF, "kind" => kind.word()).set(left_off as f64);
        }
        drop(state);
        self.tell();
        events
    }

    /// Tells everybody of alarms that were raised or ended.
    fn announce(&self, alarms: &[Alarm]) {
        if alarms.is_empty() {
            return;
        }
        let instance = support::lock(&self.state).alarms.instance();
        for alarm in alarms {
            self.announce_one(alarm, instance);
        }
    }

    fn announce_one(&self, alarm: &Alarm, instance: u64) {
        let (kind, name, saw) = (alarm.kind.word(), alarm.name.as_deref().unwrap_or_default(), &*alarm.saw);
        let event = if alarm.ended_ms.is_some() {
            tracing::warn!(kind, name, saw, "alarm ended");
            "ended"
        } else {
            metrics::counter!(ALARMS_RAISED, "kind" => kind).increment(1);
            tracing::warn!(kind, name, saw, "alarm raised");
            "raised"
        };
        let subject = alarm.name.as_deref().unwrap_or("the store");
        let message = json!({
            "event": event,
            "alarm": alarm,
            "instance": instance,
            "store": self.store.url,
            "text": format!("{event}: {subject}: {saw}"),
        });
        self.webhook.send(alarm.id, Bytes::from(message.to_string()));
    }

    fn tell(&self) {
        self.news.send_modify(|number| *number += 1);
    }

    /// The last minutes of one lock, at most 60.
    ///
    /// # Errors
    /// Says what is wrong with the name.
    pub fn history(&self, name: &str, minutes: u64) -> Result<Timeline, String> {
        let name = Name::new(name).map_err(|error| error.to_string())?;
        let state = support::lock(&self.state);
        let now = state.history.last().unwrap_or(state.now);
        Ok(Timeline::new(&state.history, state.history.record(&name), now, minutes.clamp(1, 60) * 60_000))
    }

    /// The hottest locks of the last 1, 5 or 60 minutes.
    ///
    /// # Errors
    /// Says which minutes there are.
    pub fn hot(&self, minutes: u64, by: By, scope: Scope<'_>) -> Result<HotPage, String> {
        support::lock(&self.state).hot(minutes, by, scope)
    }

    /// The alarms, and the limits that they are for.
    pub fn alarms(&self, scope: Scope<'_>) -> AlarmPage {
        support::lock(&self.state).alarms(scope, &self.webhook)
    }

    /// What a page shows at this moment.
    ///
    /// # Errors
    /// Says what is wrong with the query.
    pub fn view(&self, query: &Query, scope: Scope<'_>, now: Millis) -> Result<View, String> {
        let mut state = support::lock(&self.state);
        let head = state.head(&self.store, scope, now);
        let body = match query.view {
            Page::Locks => Body::Locks(state.locks(query, scope)),
            Page::Lock => Body::Lock(Box::new(state.lock(&self.store, query, scope, now)?)),
            Page::Hot => {
                Body::Hot(state.hot(query.minutes.unwrap_or(Window::default().minutes()), query.by, scope)?)
            }
            Page::Alarms => Body::Alarms(state.alarms(scope, &self.webhook)),
            Page::Store => Body::Store(state.store(&self.store, scope)),
        };
        Ok(View { head, body })
    }
}

/// What a change was about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Changed {
    /// There is a new sample.
    Locks,
    /// There is none, because the store could not be asked.
    LocksUnknown,
    /// The locks were not looked at.
    NoLocks,
}

impl State {
    /// Why the store cannot be asked. If it neither answers nor can be listed, since the earlier of both.
    fn outage(&self) -> Option<OutageInfo> {
        let since = self.unlisted.iter().chain(&self.silent).map(|outage| outage.since_ms).min()?;
        let message = self.unlisted.as_ref().or(self.silent.as_ref())?.message.clone();
        Some(OutageInfo { since_ms: since, message })
    }
}

#[cfg(test)]
mod tests;
