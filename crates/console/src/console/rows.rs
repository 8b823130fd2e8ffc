//! Rows of pages: locks, latches, holders, waiters and limits.

use std::time::Duration;

use lockkeeper::{
    store::{CountState, HolderView, Kind, Name, ResourceView, WaiterView},
    support::duration,
};

use crate::{
    clock::{Millis, millis, wall},
    history::Record,
    pattern::Pattern,
    rules::{Limit, Limits, Rule, Rules},
    sample::kind,
    scope::Scope,
    view::{Holder, LimitRow, Row, Waiter},
};

/// The most waiters on the page of a lock, and the most holders.
pub(super) const MANY: usize = 200;

pub(super) fn lock_row(
    view: &ResourceView,
    record: Option<&Record>,
    at: Millis,
    alarm: bool,
    most: usize,
) -> Row {
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

pub(super) fn latch_row(name: &Name, latch: CountState) -> Row {
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
    let from = known.map_or_else(|| wall(view.since), |hold| hold.from);
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

pub(super) fn queue(view: &ResourceView, record: Option<&Record>, at: Millis) -> Vec<Waiter> {
    let known = record.map(Record::waits).unwrap_or_default();
    let waiter = |(place, view): (usize, &WaiterView)| {
        let from = known.get(place).map_or_else(|| wall(view.since), |wait| wait.from);
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

/// Returns the limits that may be for names that `scope` may see.
pub(super) fn limits(rules: &Rules, scope: Scope<'_>) -> Vec<LimitRow> {
    let length = |limit: Limit<Duration>| limit.at().map_or_else(|| "off".to_owned(), duration::show);
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
