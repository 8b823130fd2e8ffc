//! The console: takes samples in, and shows what they tell to as many pages as there are.

use std::{
    collections::HashSet,
    sync::{Arc, Mutex},
};

use bytes::Bytes;
use lockkeeper::{
    Token,
    store::{Capability, CountState, HolderView, Kind, Name, ResourceView},
    support::{self, duration},
};
use serde_json::json;
use tokio::sync::watch;

use crate::{
    alarms::{Alarm, AlarmKind, Alarms, Look},
    clock::{Millis, millis},
    history::{self, Eviction, History, Record},
    hot::{self, Window},
    post,
    rules::{Limit, Limits, Rules},
    sample::{Sample, kind},
    store_words,
    table::{Order, PAGE_SIZE, Source, Table},
    timeline::Timeline,
    view::{
        AlarmPage, Body, By, FindingRow, Head, Holder, HotLock, HotPage, LimitRow, LockPage, Locks,
        OutageInfo, Page, Point, Query, Row, SampleInfo, StorePage, View, Waiter,
    },
    webhook::Webhook,
};

/// The most holders of a lock in a list.
const FEW: usize = 3;
/// The most holders and waiters on the page of a lock.
const MANY: usize = 200;
/// How far back the page of a lock looks, in minutes, unless it says so.
const MINUTES: u64 = 60;

const ALARMS: &str = "lockkeeper_alarms";
const ALARMS_RAISED: &str = "lockkeeper_alarms_raised_total";

/// The store that a console shows.
#[derive(Clone, Debug)]
pub struct StoreFacts {
    /// Its URL without secrets.
    pub url: String,
    /// What it can do and survive.
    pub capability: Capability,
}

/// Something that puts locks at risk, as the doctor found it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finding {
    /// The server or member, if there are several.
    pub server: Option<String>,
    /// What it is and what to do.
    pub message: String,
}

/// What a token may see: names that begin with one of its prefixes, or everything if it has none.
#[derive(Clone, Copy, Debug)]
pub struct Scope<'a> {
    prefixes: &'a [String],
}

impl<'a> Scope<'a> {
    /// Everything.
    pub const fn all() -> Self {
        Self { prefixes: &[] }
    }

    /// Names that begin with one of these; everything if there are none.
    pub const fn of(prefixes: &'a [String]) -> Self {
        Self { prefixes }
    }

    pub(crate) fn is_all(&self) -> bool {
        self.prefixes.is_empty()
    }

    pub(crate) fn may_see(&self, name: &str) -> bool {
        self.is_all() || self.prefixes.iter().any(|prefix| name.starts_with(prefix))
    }

    fn may_see_alarm(&self, alarm: &Alarm) -> bool {
        alarm.name.as_deref().is_none_or(|name| self.may_see(name))
    }
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
    history: History,
    alarms: Alarms,
    table: Option<Table>,
    outage: Option<OutageInfo>,
    findings: Vec<Finding>,
    checked: Option<Millis>,
    file: Option<String>,
    file_error: Option<String>,
}

impl Console {
    /// A console that has seen nothing yet. Alarms go to `webhook` once [`set_rules`](Self::set_rules) has told where.
    pub fn new(store: StoreFacts, webhook: Webhook) -> Self {
        metrics::describe_gauge!(ALARMS, "alarms that last, by kind");
        metrics::describe_counter!(ALARMS_RAISED, "alarms that were raised, by kind");
        for kind in AlarmKind::ALL {
            metrics::gauge!(ALARMS, "kind" => kind.word()).set(0.0);
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
        let now = sample.at;
        self.change(now, |state| {
            state.history.observe(&sample);
            state.table = Some(Table::new(sample, &state.history));
            state.outage = None;
            true
        });
    }

    /// The store could not be listed.
    pub fn fail(&self, now: Millis, message: &str) {
        self.change(now, |state| {
            let since_ms = state.outage.as_ref().map_or(now, |outage| outage.since_ms);
            state.outage = Some(OutageInfo { since_ms, message: message.to_owned() });
            false
        });
    }

    /// The doctor has looked.
    pub fn set_findings(&self, now: Millis, findings: Vec<Finding>) {
        self.change(now, |state| {
            state.findings = findings;
            state.checked = Some(now);
            false
        });
    }

    /// Limits from now on, and the file that they are from.
    pub fn set_rules(&self, rules: Rules, file: Option<String>) {
        let target = rules.webhook().map(|hook| post::of_rule(&hook.url, hook.authorization.as_deref()));
        let mut state = support::lock(&self.state);
        state.file = file;
        match target.transpose() {
            Ok(target) => {
                // What waits for the same receiver goes on waiting.
                if state.alarms.rules().webhook() != rules.webhook() {
                    self.webhook.set_target(target);
                }
                state.alarms.set_rules(rules);
                state.file_error = None;
            }
            Err(why) => state.file_error = Some(why),
        }
        drop(state);
        self.tell();
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

    /// Changes something, and looks for alarms. `change` says whether the locks were seen.
    fn change(&self, now: Millis, change: impl FnOnce(&mut State) -> bool) {
        let mut state = support::lock(&self.state);
        let seen = change(&mut state);
        let State { history, alarms, outage, findings, .. } = &mut *state;
        let look = Look {
            now,
            history: seen.then_some(&*history),
            failing: outage.as_ref().map(|outage| (&*outage.message, outage.since_ms)),
            findings,
        };
        let events = alarms.look(&look);
        for kind in AlarmKind::ALL {
            let count = alarms.active().filter(|alarm| alarm.kind == kind).count();
            metrics::gauge!(ALARMS, "kind" => kind.word()).set(count as f64);
        }
        drop(state);
        for alarm in events {
            self.announce(&alarm);
        }
        self.tell();
    }

    fn announce(&self, alarm: &Alarm) {
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
            "store": self.store.url,
            "text": format!("{event}: {subject}: {saw}"),
        });
        self.webhook.send(Bytes::from(message.to_string()));
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
        let now = state.history.last().unwrap_or(0);
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
        let state = support::lock(&self.state);
        let head = state.head(&self.store, scope, now);
        let body = match query.view {
            Page::Locks => Body::Locks(state.locks(query, scope)),
            Page::Lock => Body::Lock(Box::new(state.lock(&self.store, query, scope)?)),
            Page::Hot => {
                Body::Hot(state.hot(query.minutes.unwrap_or(Window::default().minutes()), query.by, scope)?)
            }
            Page::Alarms => Body::Alarms(state.alarms(scope, &self.webhook)),
            Page::Store => Body::Store(state.store(&self.store)),
        };
        Ok(View { head, body })
    }
}

impl State {
    fn head(&self, store: &StoreFacts, scope: Scope<'_>, now: Millis) -> Head {
        let sample = self.table.as_ref().map(|table| SampleInfo {
            age_ms: now.saturating_sub(table.sample.at),
            took_ms: table.sample.took,
            every_ms: table.sample.every,
        });
        Head {
            now_ms: now,
            store: store.url.clone(),
            sample,
            outage: self.outage.clone(),
            alarms: self.alarms.active().filter(|alarm| scope.may_see_alarm(alarm)).count(),
        }
    }

    /// The locks that there is an alarm about.
    fn alarmed(&self) -> HashSet<&str> {
        self.alarms.active().filter_map(|alarm| alarm.name.as_deref()).collect()
    }

    fn kept(&self) -> String {
        let hour = duration::show(std::time::Duration::from_millis(history::KEPT));
        let (most, entries) = (thousands(history::MOST), thousands(self.history.kept()));
        let mut text = format!(
            "History is what this server saw in its samples, and only since it started. It is in memory: the last {hour}, \
             at most {most} holds and waits that are over ({entries} of them now). What happens between two samples is not seen."
        );
        if let (Some(since), Some(now)) = (self.history.whole_since(), self.history.last()) {
            let reach = duration::show(std::time::Duration::from_millis(now.saturating_sub(since)));
            text += &format!(" Room was short: only the last {reach} is whole.");
        }
        text
    }

    fn locks(&self, query: &Query, scope: Scope<'_>) -> Locks {
        let Some(table) = &self.table else {
            let (totals, rows) = Default::default();
            return Locks { totals, matches: 0, page: 0, page_size: PAGE_SIZE, rows };
        };
        let (at, alarmed) = (table.sample.at, self.alarmed());
        let order = query.order.unwrap_or(Order::Usual);
        let part = table.part(scope, &query.prefix, query.sort, order, query.page);
        let row = |source: &Source| match *source {
            Source::Lock(place) => {
                let view = &table.sample.locks[place];
                let record = self.history.record(&view.name);
                lock_row(view, record, at, alarmed.contains(view.name.as_str()), FEW)
            }
            Source::Latch(place) => {
                let (name, state) = &table.sample.latches[place];
                latch_row(name, *state)
            }
        };
        Locks {
            totals: table.totals(scope, at),
            matches: part.matches,
            page: part.page,
            page_size: PAGE_SIZE,
            rows: part.rows.iter().map(row).collect(),
        }
    }

    fn lock(&self, store: &StoreFacts, query: &Query, scope: Scope<'_>) -> Result<LockPage, String> {
        let name = Name::new(&query.name).map_err(|error| error.to_string())?;
        if !scope.may_see(name.as_str()) {
            return Err("your token is not for this name".into());
        }
        let minutes = query.minutes.unwrap_or(MINUTES).clamp(1, 60);
        let record = self.history.record(&name);
        let at = self.history.last().unwrap_or(0);
        let view = self.table.as_ref().and_then(|table| {
            let locks = &table.sample.locks;
            locks.binary_search_by(|lock| lock.name.cmp(&name)).ok().map(|place| locks[place].clone())
        });
        let latch = self.table.as_ref().and_then(|table| {
            table.sample.latches.iter().find(|(latch, _)| *latch == name).map(|(_, latch)| *latch)
        });
        let alarms: Vec<Alarm> = self
            .alarms
            .active()
            .filter(|alarm| alarm.name.as_deref() == Some(name.as_str()))
            .cloned()
            .collect();
        let lock = match (&view, latch) {
            (Some(view), _) => Some(lock_row(view, record, at, !alarms.is_empty(), MANY)),
            (None, Some(latch)) => Some(latch_row(&name, latch)),
            (None, None) => None,
        };
        let kind = record.map(|record| record.kind);
        let meaning = match (kind, latch) {
            (None, Some(_)) => vec!["Waiters go on when it has been counted down to zero.".to_owned()],
            (kind, _) => store_words::meaning(kind.unwrap_or(Kind::Mutex), &store.capability),
        };
        Ok(LockPage {
            lock,
            name: name.as_str().to_owned(),
            queue: view.map(|view| queue(&view, record, at)).unwrap_or_default(),
            timeline: Timeline::new(&self.history, record, at, minutes * 60_000),
            meaning,
            alarms,
            kept: self.kept(),
        })
    }

    fn hot(&self, minutes: u64, by: By, scope: Scope<'_>) -> Result<HotPage, String> {
        let window = Window::from_minutes(minutes).ok_or("minutes is 1, 5 or 60")?;
        let now = self.history.last().unwrap_or(0);
        let may_see = |name: &Name| scope.may_see(name.as_str());
        let locks = hot::hottest(&self.history, now, window, by, may_see);
        let locks = locks.into_iter().map(|hot| HotLock {
            name: hot.name.as_str().to_owned(),
            kind: hot.kind.word(),
            waited_ms: hot.used.waited,
            waiters: hot.used.waiters,
            changes: hot.used.changes,
            waiting: hot.waiters_now,
            why: hot.advice.why,
            helps: hot.advice.helps,
            curve: hot
                .points
                .iter()
                .map(|point| Point {
                    waited_ms: point.waited,
                    waiters: point.waiters,
                    changes: point.changes,
                })
                .collect(),
        });
        Ok(HotPage { minutes, by, locks: locks.collect(), kept: self.kept() })
    }

    fn alarms(&self, scope: Scope<'_>, webhook: &Webhook) -> AlarmPage {
        let seen = |alarm: &&Alarm| scope.may_see_alarm(alarm);
        let mut active: Vec<Alarm> = self.alarms.active().filter(seen).cloned().collect();
        active.sort_by_key(|alarm| (alarm.kind, alarm.since_ms, alarm.id));
        AlarmPage {
            active,
            left_off: self.alarms.left_off(),
            ended: self.alarms.ended().filter(seen).cloned().collect(),
            limits: limits(self.alarms.rules()),
            file: self.file.clone(),
            file_error: self.file_error.clone(),
            webhook: webhook.status(),
        }
    }

    fn store(&self, store: &StoreFacts) -> StorePage {
        let finding = |finding: &Finding| FindingRow {
            server: finding.server.clone(),
            message: finding.message.clone(),
        };
        StorePage {
            url: store.url.clone(),
            kind: store.capability.store,
            words: store_words::words(&store.capability),
            findings: self.findings.iter().map(finding).collect(),
            checked_ms: self.checked,
            kept: self.kept(),
        }
    }
}

/// A number as people write it.
fn thousands(number: usize) -> String {
    let digits = number.to_string();
    let groups: Vec<&str> =
        digits.as_bytes().rchunks(3).rev().filter_map(|group| str::from_utf8(group).ok()).collect();
    groups.join(",")
}

fn lock_row(view: &ResourceView, record: Option<&Record>, at: Millis, alarm: bool, most: usize) -> Row {
    let longest = record.and_then(|record| record.waits().iter().map(|wait| wait.from).min());
    Row {
        name: view.name.as_str().to_owned(),
        kind: kind(view).unwrap_or(Kind::Mutex).word(),
        capacity: view.capacity.to_string(),
        holders: view.holders.iter().take(most).map(|view| holder(view, record, at)).collect(),
        holder_count: view.holders.len(),
        waiters: view.waiters.len(),
        longest_wait_ms: longest.map(|from| at.saturating_sub(from)),
        remaining: None,
        initial: None,
        alarm,
    }
}

fn latch_row(name: &Name, latch: CountState) -> Row {
    Row {
        name: name.as_str().to_owned(),
        kind: "latch",
        capacity: String::new(),
        holders: Vec::new(),
        holder_count: 0,
        waiters: 0,
        longest_wait_ms: None,
        remaining: Some(latch.remaining),
        initial: Some(latch.initial),
        alarm: false,
    }
}

fn holder(view: &HolderView, record: Option<&Record>, at: Millis) -> Holder {
    let known = record.and_then(|record| record.holds().iter().find(|hold| hold.token == view.token));
    let from = known.map_or_else(|| crate::clock::wall(view.since), |hold| hold.from);
    let details = &view.details;
    Holder {
        program: details.process.program.clone(),
        host: details.process.host.clone(),
        pid: details.process.pid,
        label: details.label.as_deref().map(str::to_owned),
        value: details.value.as_deref().map(str::to_owned),
        token: view.token.to_string(),
        held_ms: at.saturating_sub(from),
        lease_ms: millis(view.lease),
        left_ms: view.remaining.map(millis),
        units: view.units.to_string(),
        renewed: view.renewed,
        evicted: view.evicted,
        detached: view.detached,
    }
}

fn queue(view: &ResourceView, record: Option<&Record>, at: Millis) -> Vec<Waiter> {
    let known = record.map(Record::waits).unwrap_or_default();
    let waiter = |(place, view): (usize, &lockkeeper::store::WaiterView)| {
        let from = known.get(place).map_or_else(|| crate::clock::wall(view.since), |wait| wait.from);
        let process = &view.details.process;
        Waiter {
            program: process.program.clone(),
            host: process.host.clone(),
            pid: process.pid,
            label: view.details.label.as_deref().map(str::to_owned),
            waited_ms: at.saturating_sub(from),
            units: view.units.to_string(),
        }
    };
    view.waiters.iter().take(MANY).enumerate().map(waiter).collect()
}

fn limits(rules: &Rules) -> Vec<LimitRow> {
    let length =
        |limit: Limit<std::time::Duration>| limit.at().map_or_else(|| "off".to_owned(), duration::show);
    let number = |limit: Limit<u32>| limit.at().map_or_else(|| "off".to_owned(), |limit| limit.to_string());
    let switch = |on: bool| if on { "on" } else { "off" }.to_owned();
    let mut rows: Vec<LimitRow> = rules
        .rules()
        .iter()
        .map(|rule| LimitRow {
            names: rule.names.iter().map(crate::pattern::Pattern::as_str).collect::<Vec<_>>().join(", "),
            held: rule.held.map(length),
            waited: rule.waited.map(length),
            waiters: rule.waiters.map(number),
            renewal: rule.renewal.map(switch),
        })
        .collect();
    for (names, kind) in [("elections", Kind::Election), ("all others", Kind::Mutex)] {
        let Limits { held, waited, waiters, renewal } = Limits::of(kind);
        rows.push(LimitRow {
            names: names.to_owned(),
            held: Some(length(held)),
            waited: Some(length(waited)),
            waiters: Some(number(waiters)),
            renewal: Some(switch(renewal)),
        });
    }
    rows
}

#[cfg(test)]
mod tests;
