//! The list of present locks and latches: filtered, sorted and cut into parts. The orders are made once for each
//! sample.

use std::{cmp::Reverse, sync::OnceLock};

use lockkeeper::store::Kind;
use serde::{Deserialize, Serialize};

use crate::{
    clock::Millis,
    history::History,
    sample::{Sample, kind},
    scope::Scope,
};

/// How many rows a part has.
pub(crate) const PAGE_SIZE: usize = 50;

/// The order of rows.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Sort {
    /// By name.
    Name,
    /// By how long it is held, the longest first.
    Held,
    /// By the number of waiters and the longest wait, the most first.
    #[default]
    Waiters,
}

/// The direction of an order.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Order {
    /// As [`Sort`] says.
    Usual,
    /// The other way round.
    Reverse,
}

/// Counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Totals {
    /// Names that are held.
    pub held: usize,
    /// Contenders that wait.
    pub waiting: usize,
    /// Names that are waited for.
    pub waited_for: usize,
    /// Latches.
    pub latches: usize,
    /// The oldest hold. Leaders do not count.
    pub oldest_hold_ms: Option<u64>,
    /// The longest wait of those that wait now. Candidates of elections do not count.
    pub longest_wait_ms: Option<u64>,
}

/// The source of a row: its place among the locks or the latches of the sample.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Source {
    Lock(usize),
    Latch(usize),
}

/// The values that a row is sorted by.
#[derive(Clone, Copy, Debug)]
struct Entry {
    source: Source,
    is_election: bool,
    is_held: bool,
    waiters: usize,
    /// When the oldest hold began.
    held_from: Option<Millis>,
    /// When the longest wait began.
    waited_from: Option<Millis>,
}

/// One sample as a list.
#[derive(Debug)]
pub(crate) struct Table {
    pub(crate) sample: Sample,
    /// In order of name.
    entries: Vec<Entry>,
    by_held: OnceLock<Vec<usize>>,
    by_waiters: OnceLock<Vec<usize>>,
    totals: OnceLock<Totals>,
}

/// A part of a list.
pub(crate) struct Part {
    pub(crate) matches: usize,
    pub(crate) page: usize,
    pub(crate) rows: Vec<Source>,
}

impl Table {
    pub(crate) fn new(sample: Sample, history: &History) -> Self {
        let locks = sample.locks.iter().enumerate().map(|(place, view)| {
            let record = history.record(&view.name);
            Entry {
                source: Source::Lock(place),
                is_election: kind(view) == Some(Kind::Election),
                is_held: !view.holders.is_empty(),
                waiters: view.waiters.len(),
                held_from: record.and_then(|record| record.holds().iter().map(|hold| hold.from).min()),
                waited_from: record.and_then(|record| record.waits().iter().map(|wait| wait.from).min()),
            }
        });
        let latches = (0..sample.latches.len()).map(|place| Entry {
            source: Source::Latch(place),
            is_election: false,
            is_held: false,
            waiters: 0,
            held_from: None,
            waited_from: None,
        });
        let mut entries: Vec<Entry> = locks.chain(latches).collect();
        if !sample.latches.is_empty() {
            entries.sort_by(|one, other| name(&sample, one.source).cmp(name(&sample, other.source)));
        }
        Self {
            sample,
            entries,
            by_held: OnceLock::new(),
            by_waiters: OnceLock::new(),
            totals: OnceLock::new(),
        }
    }

    /// Returns the part of the list that a page asks for. A part beyond the end is the last one.
    pub(crate) fn part(&self, scope: Scope<'_>, prefix: &str, sort: Sort, order: Order, page: usize) -> Part {
        let matches = |entry: &&Entry| {
            let name = name(&self.sample, entry.source);
            name.starts_with(prefix) && scope.may_see(name)
        };
        let all = || self.entries.iter();
        let mut found: Vec<&Entry> = match sort {
            Sort::Name => all().filter(matches).collect(),
            Sort::Held => self.sorted(&self.by_held, held_key).filter(matches).collect(),
            Sort::Waiters => self.sorted(&self.by_waiters, waiters_key).filter(matches).collect(),
        };
        if order == Order::Reverse {
            found.reverse();
        }
        let last = found.len().saturating_sub(1) / PAGE_SIZE;
        let page = page.min(last);
        let rows = found.iter().skip(page * PAGE_SIZE).take(PAGE_SIZE).map(|entry| entry.source).collect();
        Part { matches: found.len(), page, rows }
    }

    fn sorted<'a, K: Ord>(
        &'a self,
        order: &'a OnceLock<Vec<usize>>,
        key: impl Fn(&Entry) -> K,
    ) -> impl Iterator<Item = &'a Entry> {
        let order = order.get_or_init(|| {
            let mut places: Vec<usize> = (0..self.entries.len()).collect();
            // It is stable, so equal rows stay in order of name.
            places.sort_by_key(|place| key(&self.entries[*place]));
            places
        });
        order.iter().map(|place| &self.entries[*place])
    }

    /// Returns counts of the names that `scope` may see.
    pub(crate) fn totals(&self, scope: Scope<'_>, now: Millis) -> Totals {
        let mut totals =
            if scope.is_all() { *self.totals.get_or_init(|| self.count(scope)) } else { self.count(scope) };
        // The two are kept as moments, because their lengths grow with time.
        totals.oldest_hold_ms = totals.oldest_hold_ms.map(|from| now.saturating_sub(from));
        totals.longest_wait_ms = totals.longest_wait_ms.map(|from| now.saturating_sub(from));
        totals
    }

    fn count(&self, scope: Scope<'_>) -> Totals {
        let mut totals = Totals::default();
        let earlier = |one: Option<Millis>, other: Option<Millis>| one.into_iter().chain(other).min();
        for entry in self.entries.iter().filter(|entry| scope.may_see(name(&self.sample, entry.source))) {
            totals.latches += usize::from(matches!(entry.source, Source::Latch(_)));
            totals.held += usize::from(entry.is_held);
            if !entry.is_election {
                totals.waiting += entry.waiters;
                totals.waited_for += usize::from(entry.waiters > 0);
                totals.oldest_hold_ms = earlier(totals.oldest_hold_ms, entry.held_from);
                totals.longest_wait_ms = earlier(totals.longest_wait_ms, entry.waited_from);
            }
        }
        totals
    }
}

fn held_key(entry: &Entry) -> (bool, Option<Millis>) {
    (entry.held_from.is_none(), entry.held_from)
}

/// Returns the key of the order by waiters. Candidates wait by design, so elections come after locks with waiters.
fn waiters_key(entry: &Entry) -> impl Ord + use<> {
    let waiters = if entry.is_election { 0 } else { entry.waiters };
    (
        Reverse(waiters),
        waiters > 0 && entry.waited_from.is_none(),
        entry.waited_from.filter(|_| waiters > 0),
        held_key(entry),
    )
}

fn name(sample: &Sample, source: Source) -> &str {
    match source {
        Source::Lock(place) => sample.locks[place].name.as_str(),
        Source::Latch(place) => sample.latches[place].0.as_str(),
    }
}

#[cfg(test)]
mod tests {
    use lockkeeper::store::{CountState, Name};

    use super::*;
    use crate::history::tests::{START, Seen, resource, sample};

    fn table(seen: &[Seen], latches: &[&str]) -> Table {
        let mut history = History::default();
        let mut sample = sample(START, seen);
        let state = CountState { remaining: 1, initial: 2, opened: 0, born: 1 };
        sample.latches = latches.iter().map(|name| (Name::new(name).expect("a name"), state)).collect();
        history.observe(&sample);
        Table::new(sample, &history)
    }

    fn names(table: &Table, scope: Scope<'_>, prefix: &str, sort: Sort, order: Order) -> Vec<String> {
        let part = table.part(scope, prefix, sort, order, 0);
        part.rows.iter().map(|source| name(&table.sample, *source).to_owned()).collect()
    }

    fn four() -> Table {
        table(
            &[
                resource("b/1").held_by(1).since(START - 3000),
                resource("a/2").held_by(2).since(START - 9000).waited_by(3),
                resource("a/1").held_by(4).since(START - 1000).waited_by(5).waited_by(6),
                resource("a/z")
                    .election()
                    .held_by(7)
                    .since(START - 99_000)
                    .waited_by(8)
                    .waited_by(9)
                    .waited_by(10),
            ],
            &["a/latch"],
        )
    }

    #[test]
    fn sorted_each_way() {
        let all = Scope::all();
        let table = four();
        assert_eq!(names(&table, all, "", Sort::Name, Order::Usual), ["a/1", "a/2", "a/latch", "a/z", "b/1"]);
        assert_eq!(names(&table, all, "", Sort::Held, Order::Usual), ["a/z", "a/2", "b/1", "a/1", "a/latch"]);
        assert_eq!(
            names(&table, all, "", Sort::Waiters, Order::Usual),
            ["a/1", "a/2", "a/z", "b/1", "a/latch"]
        );
        assert_eq!(names(&table, all, "", Sort::Name, Order::Reverse)[0], "b/1");
    }

    #[test]
    fn filtered_by_prefix_and_by_what_a_token_may_see() {
        let table = four();
        let prefixes = ["a/".to_owned()];
        assert_eq!(names(&table, Scope::all(), "b", Sort::Name, Order::Usual), ["b/1"]);
        assert_eq!(names(&table, Scope::of(&prefixes), "", Sort::Name, Order::Usual).len(), 4);
        assert!(names(&table, Scope::of(&prefixes), "b", Sort::Name, Order::Usual).is_empty());
    }

    #[test]
    fn totals_are_of_what_a_token_may_see() {
        let table = four();
        let totals = table.totals(Scope::all(), START + 1000);
        assert_eq!((totals.held, totals.waiting, totals.waited_for, totals.latches), (4, 3, 2, 1));
        assert_eq!(totals.oldest_hold_ms, Some(10_000));
        let prefixes = ["b/".to_owned()];
        let totals = table.totals(Scope::of(&prefixes), START);
        assert_eq!((totals.held, totals.waiting, totals.latches, totals.longest_wait_ms), (1, 0, 0, None));
    }

    #[test]
    fn parts_are_whole_and_the_last_one_is_the_last() {
        let seen: Vec<Seen> =
            (0..120).map(|place| resource(format!("lock-{place:03}").leak()).held_by(place)).collect();
        let table = table(&seen, &[]);
        let part = |page| table.part(Scope::all(), "", Sort::Name, Order::Usual, page);
        assert_eq!((part(0).matches, part(0).rows.len(), part(2).rows.len()), (120, 50, 20));
        assert_eq!((part(99).page, part(99).rows.len()), (2, 20));
        let nothing = table.part(Scope::all(), "x", Sort::Name, Order::Usual, 3);
        assert_eq!((nothing.matches, nothing.page, nothing.rows.len()), (0, 0, 0));
    }
}
