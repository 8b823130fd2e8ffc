//! The console: takes samples in, and shows what they tell to as many pages as there are.

use std::{
    collections::HashSet,
    sync::{Arc, Mutex},
};

use bytes::Bytes;
use lockkeeper::{
    Token,
    doctor::ServerState,
    store::{Capability, CountState, HolderView, Kind, Name, ResourceView},
    support::{self, duration},
};
use serde_json::json;
use tokio::sync::watch;

use crate::{
    alarms::{Alarm, AlarmKind, Alarms, LocksSeen, Look},
    clock::{Millis, millis},
    history::{self, Eviction, History, Record},
    hot::{self, Window},
    pattern::Pattern,
    post,
    rules::{Limit, Limits, Rule, Rules, RulesError},
    sample::{Sample, kind},
    store_words,
    table::{Order, PAGE_SIZE, Source, Table},
    timeline::Timeline,
    view::{
        AlarmPage, Body, By, FindingRow, Head, Holder, HotLock, HotPage, LatchCount, LimitRow, LockPage,
        Locks, OutageInfo, Page, Point, Query, Row, SampleInfo, ServerRow, StorePage, View, Waiter,
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

/// Something that puts locks at risk, as the doctor found it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finding {
    /// The server or member, if there are several.
    pub server: Option<String>,
    /// The kind of risk, as one word. It stays the same while the message may change with what was measured.
    pub risk: String,
    /// What it is and what to do.
    pub message: String,
}

impl Finding {
    /// Whether it is about this server; some are about several.
    fn is_of(&self, server: &str) -> bool {
        self.server.as_deref().is_some_and(|servers| servers.split(',').any(|one| one == server))
    }
}

/// What the doctor found at a store.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Diagnosis {
    /// Its servers, if it has any.
    pub servers: Vec<ServerState>,
    /// What puts locks at risk.
    pub findings: Vec<Finding>,
}

/// The store is not checked by the doctor, was not yet, or was.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
enum Checked {
    #[default]
    NotYet,
    Never,
    At(Millis),
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

    /// Whether a pattern may match a name that may be seen.
    fn may_see_pattern(&self, pattern: &Pattern) -> bool {
        self.is_all() || self.prefixes.iter().any(|prefix| pattern.may_begin_with(prefix))
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
            outage: self.outage(),
            alarms: self.alarms.active().filter(|alarm| scope.may_see_alarm(alarm)).count(),
        }
    }

    /// The locks that there is an alarm about.
    fn alarmed(&self) -> HashSet<&str> {
        self.alarms.active().filter_map(|alarm| alarm.name.as_deref()).collect()
    }

    fn kept(&self, scope: Scope<'_>) -> String {
        let hour = duration::show(std::time::Duration::from_millis(history::KEPT));
        let (most, of_one) = (thousands(history::MOST), thousands(history::MOST_OF_ONE));
        let names = thousands(history::MOST_RECORDS);
        // The count is that of all names.
        let now = if scope.is_all() {
            format!(" ({} of them now)", thousands(self.history.kept()))
        } else {
            String::new()
        };
        let mut text = format!(
            "History is what this server saw in its samples, and only since it started. It is in memory: the last {hour}, \
             at most {most} holds and waits that are over{now}, at most {of_one} of one lock, of at most {names} locks unless \
             more are in use. What happens between two samples is not seen."
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

    fn lock(
        &self,
        store: &StoreFacts,
        query: &Query,
        scope: Scope<'_>,
        now: Millis,
    ) -> Result<LockPage, String> {
        let name = Name::new(&query.name).map_err(|error| error.to_string())?;
        if !scope.may_see(name.as_str()) {
            return Err("your token is not for this name".into());
        }
        let minutes = query.minutes.unwrap_or(MINUTES).clamp(1, 60);
        let record = self.history.record(&name);
        let at = self.history.last().unwrap_or(now);
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
        let beside = latch.filter(|_| view.is_some());
        Ok(LockPage {
            lock,
            latch: beside.map(|latch| LatchCount { remaining: latch.remaining, initial: latch.initial }),
            name: name.as_str().to_owned(),
            queue: view.map(|view| queue(&view, record, at)).unwrap_or_default(),
            timeline: Timeline::new(&self.history, record, at, minutes * 60_000),
            meaning,
            alarms,
            kept: self.kept(scope),
        })
    }

    fn hot(&mut self, minutes: u64, by: By, scope: Scope<'_>) -> Result<HotPage, String> {
        if !scope.is_all() {
            return self.find_hot(minutes, by, scope);
        }
        if let Some(known) = self.hot.iter().find(|known| (known.minutes, known.by) == (minutes, by)) {
            return Ok(known.clone());
        }
        let found = self.find_hot(minutes, by, scope)?;
        self.hot.push(found.clone());
        Ok(found)
    }

    fn find_hot(&self, minutes: u64, by: By, scope: Scope<'_>) -> Result<HotPage, String> {
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
        Ok(HotPage { minutes, by, locks: locks.collect(), kept: self.kept(scope) })
    }

    fn alarms(&self, scope: Scope<'_>, webhook: &Webhook) -> AlarmPage {
        let seen = |alarm: &&Alarm| scope.may_see_alarm(alarm);
        let mut active: Vec<Alarm> = self.alarms.active().filter(seen).cloned().collect();
        active.sort_by_key(|alarm| (alarm.kind, alarm.since_ms, alarm.id));
        AlarmPage {
            active,
            left_off: self.alarms.left_off().filter(|(_, name)| scope.may_see(name.as_str())).count(),
            ended: self.alarms.ended().filter(seen).cloned().collect(),
            limits: limits(self.alarms.rules(), scope),
            restricted: !scope.is_all(),
            // Paths, hosts and what is wrong with them are for operators of the server.
            file: self
                .file
                .clone()
                .map(|file| if scope.is_all() { file } else { "a file of the server".into() }),
            file_error: self.file_error.clone().filter(|_| scope.is_all()),
            webhook: webhook.status().filter(|_| scope.is_all()),
        }
    }

    fn store(&self, store: &StoreFacts, scope: Scope<'_>) -> StorePage {
        let finding = |finding: &Finding| FindingRow {
            server: finding.server.clone(),
            message: finding.message.clone(),
        };
        let Diagnosis { servers, findings } = &self.diagnosis;
        let server = |state: &ServerState| ServerRow {
            server: state.server.clone(),
            answers: state.answers,
            words: state.words(),
            warnings: findings.iter().filter(|found| found.is_of(&state.server)).count(),
        };
        StorePage {
            servers: servers.iter().map(server).collect(),
            url: store.url.clone(),
            kind: store.capability.store,
            words: store_words::words(&store.capability),
            findings: findings.iter().map(finding).collect(),
            checked_ms: if let Checked::At(at) = self.checked { Some(at) } else { None },
            is_checked: self.checked != Checked::Never,
            check_error: self.check_error.clone(),
            kept: self.kept(scope),
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
        late: known.is_some_and(|hold| hold.late().is_some()),
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

/// The limits, as far as they are for names that `scope` may see.
fn limits(rules: &Rules, scope: Scope<'_>) -> Vec<LimitRow> {
    let length =
        |limit: Limit<std::time::Duration>| limit.at().map_or_else(|| "off".to_owned(), duration::show);
    let number = |limit: Limit<u32>| limit.at().map_or_else(|| "off".to_owned(), |limit| limit.to_string());
    let switch = |on: bool| if on { "on" } else { "off" }.to_owned();
    let row = |rule: &Rule| {
        let names: Vec<&str> =
            rule.names.iter().filter(|names| scope.may_see_pattern(names)).map(Pattern::as_str).collect();
        (!names.is_empty()).then(|| LimitRow {
            names: names.join(", "),
            held: rule.held.map(length),
            waited: rule.waited.map(length),
            waiters: rule.waiters.map(number),
            renewal: rule.renewal.map(switch),
        })
    };
    let mut rows: Vec<LimitRow> = rules.rules().iter().filter_map(row).collect();
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
