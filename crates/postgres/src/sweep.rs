//! The sweep: removes rows that have ended and that nobody asks for any more. One keeper of all makes it, once a
//! minute, in small steps between which others have their turn.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use lockkeeper_core::{
    ContenderId, KeeperId, Name, StoreError,
    store::{Leave, Request, WakeSink},
    support::{backoff::Backoff, lease_option},
};

use crate::{
    codec::{ReadRows, get, name_from_bytes},
    connection::{Connection, Opener, Progress, Working},
    flights::{self, Call, LockWait, unread},
    groups::Group,
    own::Own,
    session::{Parameter, Session},
    settings::Settings,
    statements::Statement,
};

/// How often the sweep is made.
const EVERY: Duration = Duration::from_secs(60);
/// How long the row of a free name is kept, and for how long empty slots wait to be used again.
const KEPT: Duration = Duration::from_secs(24 * 3600);
const SLOTS_KEPT: Duration = Duration::from_secs(60);
/// How many names are settled in one transaction.
const AT_ONCE: usize = 200;
/// The pause between steps, so that a large table is swept slowly instead of loading the server.
const PAUSE: Duration = Duration::from_millis(10);

/// The statements of most sweeps. They are prepared together, so that this takes one transaction.
const STATEMENTS: [Statement; 5] = [
    Statement::StartSweep,
    Statement::SweepPage,
    Statement::LockFree,
    Statement::Read,
    Statement::SweepResources,
];

/// Sweeps until the connection ends.
pub(crate) async fn run(waits: Weak<Connection>, own: Own) {
    // Keepers that start together do not sweep together.
    let mut pause = Backoff::new(EVERY, EVERY);
    loop {
        tokio::time::sleep(pause.jittered()).await;
        let Some(waits) = waits.upgrade() else { return };
        if let Err(error) = (Sweep { waits, own: own.clone() }).unless_swept_within(EVERY * 3 / 4).await {
            tracing::debug!(%error, "the sweep failed; another one follows");
        }
    }
}

/// Sweeps the store that `url` names at once, even if another keeper has done so just now.
///
/// # Errors
/// [`StoreError`] if the URL is wrong or the server cannot be reached.
#[doc(hidden)]
pub async fn sweep(url: &str) -> Result<(), StoreError> {
    let (url, _) = lease_option::take(url)?;
    let (background, wakes) = (tokio::runtime::Handle::current(), WakeSink::new(|_| {}));
    let opener = Arc::new(Opener::new(Settings::parse(&url)?, background, wakes.clone()));
    let waits = Arc::new(Connection::new(opener, Duration::from_secs(10), None));
    let own = Own::new(KeeperId::random(), wakes);
    Sweep { waits, own }.unless_swept_within(Duration::ZERO).await
}

/// One sweep.
struct Sweep {
    waits: Arc<Connection>,
    own: Own,
}

/// The clock at the start of a sweep, and whether there is more to sweep than names.
struct Started {
    now: i64,
    has_latches: bool,
    has_forgotten: bool,
}

/// A page of names, sorted by the work that they need.
struct PageOfNames {
    last: Vec<u8>,
    /// Whether it is as long as a page may be.
    is_full: bool,
    ended: Vec<Name>,
    free: Vec<Vec<u8>>,
}

impl Sweep {
    /// Sweeps, unless another keeper did so within this time.
    async fn unless_swept_within(&self, every: Duration) -> Result<(), StoreError> {
        let Some(Started { now, has_latches, has_forgotten }) = self.start(every).await? else {
            return Ok(());
        };
        self.resources(now).await?;
        let (old, mut after) = (now - micros(KEPT), has_latches.then(Vec::new));
        while let Some(last) = after {
            after = self.latches(last, old).await?;
            tokio::time::sleep(PAUSE).await;
        }
        while has_forgotten && self.forgotten(now).await? > 0 {
            tokio::time::sleep(PAUSE).await;
        }
        Ok(())
    }

    /// Claims the sweep; `None` if another keeper made it within this time.
    async fn start(&self, every: Duration) -> Result<Option<Started>, StoreError> {
        let (every, kept) = (micros(every), micros(KEPT));
        let work = move |session: Arc<Session>, _| -> Working<_> {
            Box::pin(async move {
                session.prepare(&STATEMENTS).await.map_err(unread)?;
                session.query(Statement::StartSweep, &[&every, &kept]).await.map_err(unread)
            })
        };
        let rows = self.waits.run(work).await?;
        let started =
            |row| Ok(Started { now: get(row, 0)?, has_latches: get(row, 1)?, has_forgotten: get(row, 2)? });
        rows.first().map(started).transpose()
    }

    /// Goes through all names, page by page.
    async fn resources(&self, now: i64) -> Result<(), StoreError> {
        let (slots, old) = (now - micros(SLOTS_KEPT), now - micros(KEPT));
        let mut after = Vec::new();
        while let Some(page) = self.page(after, now, slots, old).await? {
            for ended in page.ended.chunks(AT_ONCE) {
                if let Err(error) = self.settle(ended).await {
                    // Such as a row that somebody changed. The others are swept all the same.
                    tracing::debug!(%error, "names in which everything has ended were not settled");
                }
            }
            if !page.free.is_empty() {
                self.remove(page.free, old).await?;
            }
            if !page.is_full {
                break;
            }
            after = page.last;
            tokio::time::sleep(PAUSE).await;
        }
        Ok(())
    }

    /// The next page of names; `None` at the end.
    async fn page(
        &self,
        after: Vec<u8>,
        now: i64,
        slots: i64,
        old: i64,
    ) -> Result<Option<PageOfNames>, StoreError> {
        let work = move |session: Arc<Session>, _| -> Working<_> {
            Box::pin(async move {
                let parameters: [Parameter<'_>; 4] = [&after, &now, &slots, &old];
                session.query(Statement::SweepPage, &parameters).await.map_err(unread)
            })
        };
        let rows = self.waits.run(work).await?;
        let mut page = PageOfNames { last: Vec::new(), is_full: false, ended: Vec::new(), free: Vec::new() };
        for row in &rows {
            let (name, what): (&[u8], i32) = (get(row, 0)?, get(row, 1)?);
            match what {
                // A name that is no text belongs to nobody.
                1 => page.ended.extend(name_from_bytes(name)),
                2 => page.free.push(name.to_vec()),
                _ => {}
            }
            (page.last, page.is_full) = (name.to_vec(), get(row, 2)?);
        }
        Ok((!rows.is_empty()).then_some(page))
    }

    /// Settles names in which everything has ended. A leave of nobody does so.
    async fn settle(&self, names: &[Name]) -> Result<(), StoreError> {
        let nobody = ContenderId { keeper: self.own.keeper, seq: 0 };
        let leave = |name: &Name| {
            Request::Leave(Leave {
                name: name.clone(),
                contender: nobody,
                tombstone_until: None,
                hold_at_least: Duration::ZERO,
            })
        };
        let (own, group): (_, Arc<[Request]>) = (self.own.clone(), names.iter().map(leave).collect());
        let wait = LockWait::Brief;
        let work = move |session, progress| -> Working<_> {
            Box::pin(Group { session, progress, own, wait }.apply(group))
        };
        self.waits.run(work).await.map(drop)
    }

    /// Locks free names that nobody has locked, and removes those that are still free.
    async fn remove(&self, names: Vec<Vec<u8>>, old: i64) -> Result<(), StoreError> {
        let work = move |session: Arc<Session>, progress: Arc<Progress>| -> Working<()> {
            Box::pin(async move {
                let (no_names, nobody) = (Vec::<Vec<u8>>::new(), Vec::<String>::new());
                let lock = Call { statement: Statement::LockFree, parameters: &[&names] };
                let read = Call { statement: Statement::Read, parameters: &[&no_names, &nobody] };
                let sweep = Statement::SweepResources;
                let flight = flights::first(&session, LockWait::Brief, lock, read, &[sweep]).await?;
                match ReadRows::new(&flight.read, &session.origin) {
                    Ok(read) => progress.works_in(&read.header),
                    Err(error) => return Err(flights::give_up(&session, error).await),
                }
                let locked: Vec<&[u8]> = flight.locked.iter().filter_map(|row| get(row, 0).ok()).collect();
                if locked.is_empty() {
                    return flights::roll_back(&session).await;
                }
                let write = Call { statement: sweep, parameters: &[&locked, &old] };
                flights::second(&session, &progress, write, None).await
            })
        };
        self.waits.run(work).await
    }

    /// Removes some latches that are gone; returns the last of them, or `None` if there were none.
    async fn latches(&self, after: Vec<u8>, old: i64) -> Result<Option<Vec<u8>>, StoreError> {
        let work = move |session: Arc<Session>, progress: Arc<Progress>| -> Working<Option<Vec<u8>>> {
            Box::pin(async move {
                let (no_names, nobody) = (Vec::<Vec<u8>>::new(), Vec::<String>::new());
                let lock = Call { statement: Statement::LockFreedLatches, parameters: &[&after, &old] };
                let read = Call { statement: Statement::Read, parameters: &[&no_names, &nobody] };
                let sweep = Statement::SweepLatches;
                let flight = flights::first(&session, LockWait::Brief, lock, read, &[sweep]).await?;
                match ReadRows::new(&flight.read, &session.origin) {
                    Ok(read) => progress.works_in(&read.header),
                    Err(error) => return Err(flights::give_up(&session, error).await),
                }
                let locked: Vec<&[u8]> = flight.locked.iter().filter_map(|row| get(row, 0).ok()).collect();
                let Some(last) = locked.last() else {
                    flights::roll_back(&session).await?;
                    return Ok(None);
                };
                let write = Call { statement: sweep, parameters: &[&locked] };
                flights::second(&session, &progress, write, None).await?;
                Ok(Some(last.to_vec()))
            })
        };
        self.waits.run(work).await
    }

    /// Removes some tombstones, answers and watchers whose time is over; returns how many.
    async fn forgotten(&self, now: i64) -> Result<i64, StoreError> {
        let work = move |session: Arc<Session>, _| -> Working<_> {
            Box::pin(async move { session.query(Statement::SweepOld, &[&now]).await.map_err(unread) })
        };
        let rows = self.waits.run(work).await?;
        rows.first().map_or(Ok(0), |row| get(row, 0))
    }
}

fn micros(length: Duration) -> i64 {
    i64::try_from(length.as_micros()).unwrap_or(i64::MAX)
}
