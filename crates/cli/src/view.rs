//! `list` and `show`: the holders and the waiters, for people and for programs.

use lockkeeper::{
    Keeper,
    store::{Capacity, Details, HolderView, Name, ResourceView, Units},
    support::duration,
};
use serde_json::{Value, json};

use crate::{
    args::{ListArgs, ShowArgs},
    exit::Failure,
    text::{self, ago, plain},
};

/// How many names one request asks for.
const PAGE: usize = 500;

/// Runs `lockkeeper list`.
pub(crate) async fn list(keeper: &Keeper, args: &ListArgs) -> Result<u8, Failure> {
    let views = all(keeper, &args.prefix).await?;
    let text = if args.json {
        format!("{}\n", text::json(&views.iter().map(object).collect()))
    } else {
        text::table(&rows(&views))
    };
    text::print(&text).map(|()| 0)
}

/// Runs `lockkeeper show`.
pub(crate) async fn show(keeper: &Keeper, args: &ShowArgs) -> Result<u8, Failure> {
    let view = keeper.inspect(&args.name).await?;
    let text = match (view, args.json) {
        (Some(view), true) => format!("{}\n", text::json(&object(&view))),
        (Some(view), false) => details(&view),
        (None, true) => {
            let free = json!({
                "name": args.name, "kind": null, "capacity": null, "holders": [], "waiters": [],
            });
            format!("{}\n", text::json(&free))
        }
        (None, false) => format!("{} is free\n", plain(&args.name)),
    };
    text::print(&text).map(|()| 0)
}

/// Returns all names that are held or waited for and start with `prefix`.
pub(crate) async fn all(keeper: &Keeper, prefix: &str) -> Result<Vec<ResourceView>, Failure> {
    let mut views = Vec::new();
    let mut after: Option<Name> = None;
    loop {
        let page = keeper.list(prefix, after.as_ref(), PAGE).await?;
        views.extend(page.resources);
        match page.next {
            Some(next) => after = Some(next),
            None => return Ok(views),
        }
    }
}

/// Returns the head and the body of the table: one line per holder, or one for a name that is only waited for.
pub(crate) fn rows(views: &[ResourceView]) -> Vec<Vec<String>> {
    let head = ["NAME", "KIND", "HELD BY", "LABEL", "FOR", "LEFT", "TOKEN", "UNITS", "WAITING"];
    let mut rows = vec![head.map(String::from).to_vec()];
    for view in views {
        let kind = any_details(view).map_or("", |details| details.kind.word());
        for holder in &view.holders {
            let share = format!("{}/{}", holder.units, view.capacity);
            rows.push(vec![
                plain(view.name.as_str()),
                kind.to_owned(),
                process(&holder.details),
                label(&holder.details),
                duration::show(ago(holder.since)),
                left(holder),
                holder.token.to_string(),
                share,
                view.waiters.len().to_string(),
            ]);
        }
        if view.holders.is_empty() {
            let blank = String::new;
            let waiting = view.waiters.len().to_string();
            let mut row = vec![plain(view.name.as_str()), kind.to_owned(), "nobody".to_owned()];
            row.extend([blank(), blank(), blank(), blank(), blank(), waiting]);
            rows.push(row);
        }
    }
    rows
}

/// Returns the rest of a holder's lease, or its length where the store cannot tell.
fn left(holder: &HolderView) -> String {
    holder.remaining.map_or_else(|| format!("up to {}", duration::show(holder.lease)), duration::show)
}

/// Shows one name in full, for people.
fn details(view: &ResourceView) -> String {
    let kind = any_details(view).map_or("", |details| details.kind.word());
    let mut text = format!("{}: {kind}, capacity {}\n", plain(view.name.as_str()), view.capacity);
    let mut rows = Vec::new();
    for holder in &view.holders {
        let mut left = format!("{} left", left(holder));
        if holder.evicted {
            left += ", being evicted";
        }
        if holder.detached {
            left += ", detached";
        }
        rows.push(vec![
            "  holds".into(),
            process(&holder.details),
            format!("for {}", duration::show(ago(holder.since))),
            left,
            format!("token {}", holder.token),
            format!("units {}", holder.units),
            label(&holder.details),
            value(&holder.details),
        ]);
    }
    for (index, waiter) in view.waiters.iter().enumerate() {
        rows.push(vec![
            "  waits".into(),
            process(&waiter.details),
            format!("for {}", duration::show(ago(waiter.since))),
            format!("position {}", index + 1),
            String::new(),
            format!("units {}", waiter.units),
            label(&waiter.details),
        ]);
    }
    text += &text::table(&rows);
    text
}

/// Names the first holder, for how long it has held, and how many others there are; `None` if nobody holds it.
pub(crate) fn holders(view: &ResourceView) -> Option<String> {
    let holder = view.holders.first()?;
    let mut text = process(&holder.details);
    match &*label(&holder.details) {
        "" => {}
        label => text += &format!(" ({label})"),
    }
    text += &format!(" for {}", duration::show(ago(holder.since)));
    if view.holders.len() > 1 {
        text += &format!(" and {} more", view.holders.len() - 1);
    }
    Some(text)
}

/// Returns program, process id and host as one word.
pub(crate) fn process(details: &Details) -> String {
    plain(&format!("{}[{}]@{}", details.process.program, details.process.pid, details.process.host))
}

fn label(details: &Details) -> String {
    plain(details.label.as_deref().unwrap_or_default())
}

/// Returns the value that the leader of an election publishes.
fn value(details: &Details) -> String {
    match details.value.as_deref() {
        None | Some("") => String::new(),
        Some(value) => plain(&format!("value {value}")),
    }
}

/// Returns the details of the first holder or waiter. They stand for all: all agree on the capacity, and so nearly
/// always on the kind.
fn any_details(view: &ResourceView) -> Option<&Details> {
    view.holders.first().map(|holder| &holder.details).or(view.waiters.first().map(|waiter| &waiter.details))
}

/// Shows one name as JSON.
fn object(view: &ResourceView) -> Value {
    let capacity = match view.capacity {
        Capacity::All => Value::from("all"),
        Capacity::Count(count) => Value::from(count.get()),
    };
    let units = |units| match units {
        Units::All => Value::from("all"),
        Units::Count(count) => Value::from(count.get()),
    };
    let holders: Vec<Value> = view
        .holders
        .iter()
        .map(|holder| {
            json!({
                "token": holder.token.to_string(),
                "host": holder.details.process.host,
                "pid": holder.details.process.pid,
                "program": holder.details.process.program,
                "label": holder.details.label.as_deref(),
                "since": text::moment(holder.since),
                "remaining_ms": holder.remaining.map(|left| u64::try_from(left.as_millis()).unwrap_or(u64::MAX)),
                "units": units(holder.units),
                "value": holder.details.value.as_deref(),
                "evicted": holder.evicted,
            })
        })
        .collect();
    let waiters: Vec<Value> = view
        .waiters
        .iter()
        .map(|waiter| {
            json!({
                "host": waiter.details.process.host,
                "pid": waiter.details.process.pid,
                "program": waiter.details.process.program,
                "label": waiter.details.label.as_deref(),
                "since": text::moment(waiter.since),
                "units": units(waiter.units),
            })
        })
        .collect();
    json!({
        "name": view.name.as_str(),
        "kind": any_details(view).map(|details| details.kind.word()),
        "capacity": capacity,
        "holders": holders,
        "waiters": waiters,
    })
}
