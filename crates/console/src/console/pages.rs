//! The contents of each page.

use std::{collections::HashSet, time::Duration};

use lockkeeper::{
    doctor::ServerState,
    store::{Kind, Name},
    support::duration,
};

use super::{
    Checked, State, StoreFacts,
    rows::{MANY, latch_row, limits, lock_row, queue},
};
use crate::{
    alarms::Alarm,
    clock::Millis,
    diagnosis::{Diagnosis, Finding},
    history, hot,
    scope::Scope,
    store_words,
    table::{Order, PAGE_SIZE, Source},
    timeline::Timeline,
    view::{
        AlarmPage, By, FindingRow, Head, HotLock, HotPage, LatchCount, LockPage, Locks, Point, Query,
        SampleInfo, ServerRow, StorePage,
    },
    webhook::Webhook,
    window::Window,
};

/// The most holders of a lock in a list.
const FEW: usize = 3;
/// How many minutes the page of a lock looks back, unless the query says so.
const MINUTES: u64 = 60;

impl State {
    pub(super) fn head(&self, store: &StoreFacts, scope: Scope<'_>, now: Millis) -> Head {
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

    /// Returns the locks that there is an alarm about.
    fn alarmed(&self) -> HashSet<&str> {
        self.alarms.active().filter_map(|alarm| alarm.name.as_deref()).collect()
    }

    fn kept(&self, scope: Scope<'_>) -> String {
        let hour = duration::show(Duration::from_millis(history::KEPT));
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
            let reach = duration::show(Duration::from_millis(now.saturating_sub(since)));
            text += &format!(" Room was short: only the last {reach} is whole.");
        }
        text
    }

    pub(super) fn locks(&self, query: &Query, scope: Scope<'_>) -> Locks {
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

    pub(super) fn lock(
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

    pub(super) fn hot(&mut self, minutes: u64, by: By, scope: Scope<'_>) -> Result<HotPage, String> {
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

    pub(super) fn alarms(&self, scope: Scope<'_>, webhook: &Webhook) -> AlarmPage {
        let seen = |alarm: &&Alarm| scope.may_see_alarm(alarm);
        let mut active: Vec<Alarm> = self.alarms.active().filter(seen).cloned().collect();
        active.sort_by_key(|alarm| (alarm.kind, alarm.since_ms, alarm.id));
        AlarmPage {
            active,
            left_off: self.alarms.left_off().filter(|(_, name)| scope.may_see(name.as_str())).count(),
            ended: self.alarms.ended().filter(seen).cloned().collect(),
            limits: limits(self.alarms.rules(), scope),
            restricted: !scope.is_all(),
            // Paths and hosts, and errors about them, are for operators of the server.
            file: self
                .file
                .clone()
                .map(|file| if scope.is_all() { file } else { "a file of the server".into() }),
            file_error: self.file_error.clone().filter(|_| scope.is_all()),
            webhook: webhook.status().filter(|_| scope.is_all()),
        }
    }

    pub(super) fn store(&self, store: &StoreFacts, scope: Scope<'_>) -> StorePage {
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

/// Returns a number with a comma before each group of three digits.
fn thousands(number: usize) -> String {
    let digits = number.to_string();
    let groups: Vec<&str> =
        digits.as_bytes().rchunks(3).rev().filter_map(|group| str::from_utf8(group).ok()).collect();
    groups.join(",")
}
