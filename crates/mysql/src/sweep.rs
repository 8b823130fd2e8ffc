//! The sweep: removes rows that have ended and that nobody asks for any more. One keeper of all does it, once a minute.
//!
//! It goes through the tables by primary key, a part at a time, so it needs no index that every request would have to
//! keep, and stops nobody for long.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use lockkeeper_core::{
    ContenderId, Name, StoreError,
    store::{Leave, Request},
    support::backoff::Backoff,
};
use lockkeeper_rows::high_water_from;
use mysql_async::Row;

use crate::{
    codec::{bytes, maybe_number, name_of, number},
    connection::{Connection, Progress, Worked},
    flights,
    groups::Group,
    own::Own,
    session::Session,
    statements::{Busy, CLOCK, Hex, LockWait, Table, literals},
};

/// How often the sweep is made, and how soon after connecting a keeper looks whether one is due.
const EVERY: Duration = Duration::from_secs(60);
const FIRST: Duration = Duration::from_secs(2);
/// How long the row of a free name is kept, and for how long empty slots wait to be used again.
const KEPT: Duration = Duration::from_secs(24 * 3600);
const SLOTS_KEPT: Duration = Duration::from_secs(60);
/// How many rows are looked at in one read, and the pause after it.
const AT_ONCE: usize = 500;
const PAUSE: Duration = Duration::from_millis(5);
/// How many names are settled in one transaction.
const SETTLED_AT_ONCE: usize = 50;

/// Sweeps until the connection ends.
pub(crate) async fn run(requests: Weak<Connection>, own: Own) {
    // Keepers that start together do not sweep together.
    let mut pause = Backoff::new(FIRST, EVERY);
    loop {
        tokio::time::sleep(pause.jittered()).await;
        let Some(requests) = requests.upgrade() else { return };
        if let Err(error) = (Sweep { requests, own: own.clone(), now: 0 }).run().await {
            tracing::debug!(%error, "the sweep failed; another one follows");
        }
    }
}

struct Sweep {
    requests: Arc<Connection>,
    own: Own,
    /// The time at which it began, by the server's clock.
    now: i64,
}

/// The facts about the row of a name, as they are known without a lock.
struct Seen {
    name: Name,
    used: i64,
    high_water: i64,
    /// How many holders and waiters there are.
    entries: i64,
    /// Whether all of them have ended.
    ended: bool,
    empty_slots: bool,
}

impl Sweep {
    /// Sweeps, unless another keeper did so within the last minute.
    async fn run(mut self) -> Result<(), StoreError> {
        let every = micros(EVERY) * 3 / 4;
        let start = format!(
            "UPDATE {{p}}store SET swept = {CLOCK} WHERE swept < {CLOCK} - {every}; SELECT ROW_COUNT(), {CLOCK}"
        );
        let rows = self.rows(start).await?;
        let Some(row) = rows.first().filter(|row| number(row, 0).is_ok_and(|count| count == 1)) else {
            return Ok(());
        };
        self.now = number(row, 1)?;
        // One that fails stops none of the others.
        for done in [
            self.resources().await,
            self.latches().await,
            self.old("tombstone").await,
            self.old("counted").await,
        ] {
            skip(done);
        }
        Ok(())
    }

    /// Runs a lone packet, and returns the rows of its last statement that has rows.
    async fn rows(&self, packet: String) -> Result<Vec<Row>, StoreError> {
        let run = self.requests.run(move |session, _| {
            Box::pin(async move { flights::rows(&session, &session.statements.in_tables(&packet)).await })
        });
        run.await
    }

    async fn resources(&self) -> Result<(), StoreError> {
        let mut after = Vec::new();
        loop {
            let rows = self.rows(part(&format!("name > {}", Hex(&after)))).await?;
            let is_last = rows.len() < AT_ONCE;
            // A row that cannot be read stops nothing but itself.
            let seen: Vec<Seen> = rows.iter().filter_map(|row| self.seen(row).ok()).collect();
            let Some(last) = rows.last() else { return Ok(()) };
            after = bytes(last, 0)?.unwrap_or_default().to_vec();
            let ended = seen.iter().filter(|seen| seen.entries > 0 && seen.ended);
            let ended: Vec<Name> = ended.map(|seen| seen.name.clone()).collect();
            for names in ended.chunks(SETTLED_AT_ONCE) {
                skip(self.settle(names).await);
            }
            let free: Vec<Name> =
                seen.iter().filter(|seen| self.is_free(seen)).map(|seen| seen.name.clone()).collect();
            if !free.is_empty() {
                skip(self.remove(free).await);
            }
            if is_last {
                return Ok(());
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    fn seen(&self, row: &Row) -> Result<Seen, StoreError> {
        let holder = number(row, 4)?;
        let in_slots = maybe_number(row, 6)?.unwrap_or_default();
        let ends = number(row, 3)?.max(maybe_number(row, 7)?.unwrap_or_default());
        Ok(Seen {
            name: name_of(row, 0)?,
            used: number(row, 1)?,
            high_water: granted(number(row, 2)?)?,
            entries: holder + in_slots,
            ended: ends < self.now,
            empty_slots: number(row, 5)? > in_slots,
        })
    }

    /// Whether there is something to remove.
    fn is_free(&self, seen: &Seen) -> bool {
        seen.entries == 0
            && (self.is_old(seen.used) || seen.empty_slots && seen.used < self.now - micros(SLOTS_KEPT))
    }

    fn is_old(&self, used: i64) -> bool {
        used < self.now - micros(KEPT)
    }

    /// Settles names in which everything has ended. A leave of nobody does so.
    async fn settle(&self, names: &[Name]) -> Result<(), StoreError> {
        let contender = ContenderId { keeper: self.own.keeper, seq: 0 };
        let leave = |name: &Name| {
            let (name, hold_at_least) = (name.clone(), Duration::ZERO);
            Request::Leave(Leave { name, contender, tombstone_until: None, hold_at_least })
        };
        let (group, own): (Arc<[Request]>, _) = (names.iter().map(leave).collect(), self.own.clone());
        let applied = self.requests.run(move |session, progress| {
            Box::pin(Group { session, progress, own, wait: LockWait::Brief }.apply(group))
        });
        applied.await.map(drop)
    }

    /// Locks rows, looks again, and removes those that are still free. The floor is raised in the same transaction.
    async fn remove(&self, names: Vec<Name>) -> Result<(), StoreError> {
        let again = Self { requests: self.requests.clone(), own: self.own.clone(), now: self.now };
        let removed = self.requests.run(move |session, progress| {
            Box::pin(async move { again.remove_locked(&session, &progress, &names).await })
        });
        removed.await
    }

    async fn remove_locked(&self, session: &Session, progress: &Progress, names: &[Name]) -> Worked<()> {
        let statements = &session.statements;
        let lock = statements.lock(Table::Resource, names, Busy::Skipped);
        let look = statements.in_tables(&part(&format!("name IN ({})", literals(names))));
        let flight = flights::first(session, &lock, &look).await?;
        let seen: Vec<Seen> = flight.read.iter().filter_map(|row| self.seen(row).ok()).collect();
        let locked = flight.names();
        let free: Vec<&Seen> =
            seen.iter().filter(|seen| locked.contains(&seen.name) && self.is_free(seen)).collect();
        if free.is_empty() {
            return flights::roll_back(session).await;
        }
        let slots = literals(free.iter().map(|seen| &seen.name));
        // The primary key is forced: a scan would wait for the rows of others.
        let delete = |table: &str, names: &str| {
            format!("DELETE t FROM {{p}}{table} AS t FORCE INDEX (PRIMARY) WHERE t.name IN ({names})")
        };
        let mut writes = vec![delete("entry", &slots)];
        let old: Vec<&&Seen> = free.iter().filter(|seen| self.is_old(seen.used)).collect();
        if let Some(highest) = old.iter().map(|seen| seen.high_water).max() {
            let names = literals(old.iter().map(|seen| &seen.name));
            writes.push(raise(highest));
            writes.push(delete("resource", &names));
        }
        let writes: Vec<String> = writes.iter().map(|text| statements.in_tables(text)).collect();
        flights::second(session, progress, &writes).await
    }

    async fn latches(&self) -> Result<(), StoreError> {
        let old = self.now - micros(KEPT);
        let mut after = Vec::new();
        loop {
            let rows = self
                .rows(format!(
                    "SELECT name FROM {{p}}latch WHERE name > {} AND remaining IS NULL AND used < {old} \
                     ORDER BY name LIMIT {AT_ONCE}",
                    Hex(&after)
                ))
                .await?;
            let Some(last) = rows.last() else { return Ok(()) };
            after = bytes(last, 0)?.unwrap_or_default().to_vec();
            let names: Vec<Name> = rows.iter().filter_map(|row| name_of(row, 0).ok()).collect();
            if !names.is_empty() {
                let removed = self.requests.run(move |session, progress| {
                    Box::pin(async move { remove_latches(&session, &progress, &names, old).await })
                });
                skip(removed.await);
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Removes rows that are remembered only for a time.
    async fn old(&self, table: &str) -> Result<(), StoreError> {
        loop {
            let delete = format!(
                "DELETE FROM {{p}}{table} WHERE until < {} LIMIT {AT_ONCE}; SELECT ROW_COUNT()",
                self.now
            );
            let rows = self.rows(delete).await?;
            let count = rows.first().map_or(Ok(0), |row| number(row, 0))?;
            if usize::try_from(count).unwrap_or_default() < AT_ONCE {
                return Ok(());
            }
            tokio::time::sleep(PAUSE).await;
        }
    }
}

/// Logs the failure of a part. The next sweep does that part.
fn skip(done: Result<(), StoreError>) {
    if let Err(error) = done {
        tracing::debug!(%error, "a part of the sweep failed; another one follows");
    }
}

/// Checks that a number was granted to somebody. Others must not raise the floor of all.
fn granted(high_water: i64) -> Result<i64, StoreError> {
    high_water_from(high_water)?;
    Ok(high_water)
}

/// Locks rows of latches, and removes those that are still deleted and were not used.
async fn remove_latches(session: &Session, progress: &Progress, names: &[Name], old: i64) -> Worked<()> {
    let statements = &session.statements;
    let lock = statements.lock(Table::Latch, names, Busy::Skipped);
    let look = format!(
        "SELECT name, high_water FROM {{p}}latch WHERE name IN ({}) AND remaining IS NULL AND used < {old}",
        literals(names)
    );
    let flight = flights::first(session, &lock, &statements.in_tables(&look)).await?;
    let read = |row: &Row| Some((name_of(row, 0).ok()?, granted(number(row, 1).ok()?).ok()?));
    let (read, locked) = (flight.read.iter().filter_map(read), flight.names());
    let free: Vec<_> = read.filter(|(name, _)| locked.contains(name)).collect();
    let Some(highest) = free.iter().map(|(_, high_water)| *high_water).max() else {
        return flights::roll_back(session).await;
    };
    let names = literals(free.iter().map(|(name, _)| name));
    let delete = format!("DELETE t FROM {{p}}latch AS t FORCE INDEX (PRIMARY) WHERE t.name IN ({names})");
    let writes = [raise(highest), delete].map(|text| statements.in_tables(&text));
    flights::second(session, progress, &writes).await
}

/// Raises the floor. Numbers are given above it, so a name that comes back goes on above those that it had.
fn raise(highest: i64) -> String {
    format!("UPDATE {{p}}store SET floor = GREATEST(floor, {highest})")
}

/// A part of the resources: name, used, high-water mark, end of the holder in the row, whether there is one, slots, how
/// many of these are taken, and when the last of them ends.
fn part(which: &str) -> String {
    format!(
        "SELECT r.name, r.used, r.high_water, r.ends, r.held, COUNT(e.slot), SUM(e.entry IS NOT NULL), MAX(e.ends) \
         FROM (SELECT name, used, high_water, ends, holder IS NOT NULL AS held FROM {{p}}resource WHERE {which} \
         ORDER BY name LIMIT {AT_ONCE}) AS r LEFT JOIN {{p}}entry AS e ON e.name = r.name \
         GROUP BY r.name, r.used, r.high_water, r.ends, r.held ORDER BY r.name"
    )
}

fn micros(length: Duration) -> i64 {
    i64::try_from(length.as_micros()).unwrap_or(i64::MAX)
}
