//! The console: takes samples in, and shows their contents to all pages.

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
    /// Its abilities and the troubles that it survives.
    pub capability: Capability,
}

/// Whether the doctor has looked at the store: not yet, never, or at a moment.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
enum Checked {
    #[default]
    NotYet,
    Never,
    At(Millis),
}

/// The console's knowledge. Pages ask it for views; a server feeds it with samples.
pub struct Console {
    store: StoreFacts,
    webhook: Webhook,
    state: Mutex<State>,
    news: watch::Sender<u64>,
}

#[derive(Default)]
struct State {
    /// The latest moment that it was told.
    now: Millis,
    history: History,
    alarms: Alarms,
    table: Option<Table>,
    /// The outage of a store that cannot be listed.
    unlisted: Option<OutageInfo>,
    /// The outage of a store that does not answer at all.
    silent: Option<OutageInfo>,
    /// The hottest locks of the last sample, for tokens that may see all names: made once for all pages.
    hot: Vec<HotPage>,
    diagnosis: Diagnosis,
    checked: Checked,
    check_error: Option<String>,
    file: Option<String>,
    file_error: Option<String>,
}

impl Console {
    /// Makes a console that has seen nothing yet. Alarms go to `webhook` once [`set_rules`](Self::set_rules) has given
    /// it a target.
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

    /// Returns a receiver that hears when there is something new to show.
    pub fn news(&self) -> watch::Receiver<u64> {
        self.news.subscribe()
    }

    /// Takes a sample in.
    pub fn observe(&self, sample: Sample) {
        let events = self.take_in(sample);
        self.announce(&events);
    }

    /// Takes a sample of a played past in. Nobody is told of its alarms.
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

    /// Takes note that the store could not be listed.
    pub fn fail(&self, now: Millis, message: &str) {
        let events = self.change(now, |state, now| {
            let since_ms = state.unlisted.as_ref().map_or(now, |outage| outage.since_ms);
            state.unlisted = Some(OutageInfo { since_ms, message: message.to_owned() });
            Changed::LocksUnknown
        });
        self.announce(&events);
    }

    /// Takes note that the store has not answered a small request; its last answer was at `since`.
    pub fn silent(&self, now: Millis, since: Millis, message: &str) {
        let events = self.change(now, |state, now| {
            state.silent = Some(OutageInfo { since_ms: since.min(now), message: message.to_owned() });
            Changed::LocksUnknown
        });
        self.announce(&events);
    }

    /// Takes note that the store has answered a small request.
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

    /// Takes in the findings of the doctor.
    pub fn set_diagnosis(&self, now: Millis, diagnosis: Diagnosis) {
        let events = self.change(now, |state, now| {
            state.diagnosis = diagnosis;
            state.checked = Checked::At(now);
            state.check_error = None;
            Changed::NoLocks
        });
        self.announce(&events);
    }

    /// Takes note that the doctor could not look. Its earlier findings stay, because nobody knows better.
    pub fn doctor_failed(&self, why: &str) {
        support::lock(&self.state).check_error = Some(why.to_owned());
        self.tell();
    }

    /// Takes note that the doctor has no checks for this store.
    pub fn not_checked(&self) {
        support::lock(&self.state).checked = Checked::Never;
        self.tell();
    }

    /// Sets the limits, and the name of the file that they are from. If the webhook cannot be used, nothing changes.
    ///
    /// # Errors
    /// Names the mistake in the settings of the webhook.
    pub fn set_rules(&self, rules: Rules, file: Option<String>) -> Result<(), RulesError> {
        let target = rules.webhook().map(|hook| post::of_rule(&hook.url, hook.authorization.as_deref()));
        let target = target.transpose().map_err(|why| RulesError::new(format!("the webhook: {why}")))?;
        let mut state = support::lock(&self.state);
        state.file = file;
        // Messages that wait for the same receiver go on waiting.
        if state.alarms.rules().webhook() != rules.webhook() {
            self.webhook.set_target(target);
        }
        state.alarms.set_rules(rules);
        state.file_error = None;
        drop(state);
        self.tell();
        Ok(())
    }

    /// Takes note that the file of limits cannot be used. The limits of before stay.
    pub fn rules_failed(&self, why: &str) {
        support::lock(&self.state).file_error = Some(why.to_owned());
        self.tell();
    }

    /// Takes note that an operator evicted a holder through this server.
    pub fn evicted(&self, name: &str, token: Token, eviction: Eviction) {
        if let Ok(name) = Name::new(name) {
            support::lock(&self.state).history.evicted(&name, token, &Arc::new(eviction));
        }
    }

    /// Makes a change, and looks for alarms. Returns the alarms that were raised or ended.
    fn change(&self, now: Millis, change: impl FnOnce(&mut State, Millis) -> Changed) -> Vec<Alarm> {
        let mut state = support::lock(&self.state);
        // Several tasks report; a sample is from a moment before its report.
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

    /// Sends alarms that were raised or ended to the log, the metrics and the webhook.
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

    /// Returns the last minutes of one lock, at most 60.
    ///
    /// # Errors
    /// Says which rule the name breaks.
    pub fn history(&self, name: &str, minutes: u64) -> Result<Timeline, String> {
        let name = Name::new(name).map_err(|error| error.to_string())?;
        let state = support::lock(&self.state);
        let now = state.history.last().unwrap_or(state.now);
        Ok(Timeline::new(&state.history, state.history.record(&name), now, minutes.clamp(1, 60) * 60_000))
    }

    /// Returns the hottest locks of the last 1, 5 or 60 minutes.
    ///
    /// # Errors
    /// Says which minutes there are.
    pub fn hot(&self, minutes: u64, by: By, scope: Scope<'_>) -> Result<HotPage, String> {
        support::lock(&self.state).hot(minutes, by, scope)
    }

    /// Returns the alarms, and the limits that they are for.
    pub fn alarms(&self, scope: Scope<'_>) -> AlarmPage {
        support::lock(&self.state).alarms(scope, &self.webhook)
    }

    /// Returns the present content of a page.
    ///
    /// # Errors
    /// Says which part of the query is wrong.
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

/// The effect of a change on the knowledge about the locks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Changed {
    /// There is a new sample.
    Locks,
    /// There is no new sample, because the store could not be asked.
    LocksUnknown,
    /// The locks were not looked at.
    NoLocks,
}

impl State {
    /// Returns the outage of the store. If it neither answers nor can be listed, the outage began with the earlier of
    /// both.
    fn outage(&self) -> Option<OutageInfo> {
        let since = self.unlisted.iter().chain(&self.silent).map(|outage| outage.since_ms).min()?;
        let message = self.unlisted.as_ref().or(self.silent.as_ref())?.message.clone();
        Some(OutageInfo { since_ms: since, message })
    }
}

#[cfg(test)]
mod tests;
