//! The open file, as the writer's thread has it: transactions from begin to commit, and what
//! follows a commit.

use std::{
    cell::Cell,
    os::{fd::OwnedFd, unix::net::UnixDatagram},
    path::{Path, PathBuf},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use lockkeeper_core::{
    KeeperId, Name, StoreError, StoreErrorKind,
    clock::Clock,
    model::{HighWater, Now},
    store::{Answer, Count, Counted, ListQuery, Page, Request, ResourceView, StoreTime, WakeSink},
};
use rusqlite::{Connection, OpenFlags, Transaction, TransactionBehavior, config::DbConfig};
use tokio::runtime::Handle;

use crate::{
    boot::Boot,
    codec::Loaded,
    crashes::{CrashMonitor, OnCrash},
    file::DatabaseFile,
    layout,
    liveness::{self, LifeFile, Liveness},
    poll,
    ticket::{Ticket, Urgency},
    trouble::{busy, explain, file_trouble, is_busy},
    wakes::Channel,
    work::{AfterCommit, Work, has_rows, valid_names},
    write_order::WriteOrder,
};

/// How often each keeper clears away what has ended and nobody asks for.
const SWEEP: Duration = Duration::from_secs(60);

/// What a keeper brings along.
pub(crate) struct OpenOptions {
    pub(crate) path: PathBuf,
    pub(crate) keeper: KeeperId,
    pub(crate) clock: Clock,
    pub(crate) sink: WakeSink,
    pub(crate) limit: Duration,
    pub(crate) background: Handle,
    pub(crate) on_crash: OnCrash,
}

/// What a transaction may be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Durability {
    /// Anything: synced.
    Synced,
    /// Only what may be lost in a power cut: not synced.
    Unsynced,
}

impl Durability {
    fn synchronous(self) -> &'static str {
        match self {
            // What was answered is on disk: see the crate's documentation.
            Self::Synced => "FULL",
            Self::Unsynced => "NORMAL",
        }
    }
}

/// What a keeper gets beside the open file.
pub(crate) struct OpenedParts {
    pub(crate) id: String,
    pub(crate) inbox: Option<UnixDatagram>,
    pub(crate) life_line: OwnedFd,
}

/// The open file.
pub(crate) struct Database {
    connection: Connection,
    /// What the connection is set to.
    durability: Durability,
    write_order: Arc<WriteOrder>,
    file: DatabaseFile,
    boot: Boot,
    own: KeeperId,
    clock: Clock,
    limit: Duration,
    swept: StoreTime,
    channel: Channel,
    crashes: Arc<CrashMonitor>,
    _life_file: LifeFile,
}

impl Database {
    /// Opens the file, making it if need be, and shows that the keeper lives.
    pub(crate) fn open(opening: OpenOptions) -> Result<(Self, OpenedParts), StoreError> {
        let boot = Boot::find()?;
        let mut file = DatabaseFile::find(&opening.path)?;
        let (connection, id) = open_for(&file, &boot, opening.limit)?;
        let write_order = WriteOrder::of(file.remember()?);
        let life_file = LifeFile::begin(&file, opening.keeper)?;
        let life_line = life_file.life_line().map_err(|error| file_trouble("share", &file.keepers, error))?;
        let (channel, inbox) = Channel::open(&file, opening.keeper, opening.sink);
        let mut database = Self {
            crashes: CrashMonitor::new(&file.keepers, opening.background, opening.on_crash),
            connection,
            durability: Durability::Synced,
            write_order,
            file,
            boot,
            own: opening.keeper,
            clock: opening.clock,
            limit: opening.limit,
            swept: StoreTime(0),
            channel,
            _life_file: life_file,
        };
        for dead in liveness::crashed(&database.file.keepers) {
            match database.expire_if_crashed(dead) {
                // Many that start at once all try this. Whoever finds the dead in the way does it, too.
                Err(error) if error.is_passing() => break,
                buried => buried?,
            }
        }
        Ok((database, OpenedParts { id, inbox, life_line }))
    }

    fn now(&self) -> Now {
        self.boot.now(&self.clock)
    }

    /// Whether the file is still the one that was opened, and what time it is.
    pub(crate) fn look(&self, ticket: &Ticket) -> Result<Now, StoreError> {
        ticket.begin();
        self.file.check()?;
        Ok(self.now())
    }

    /// Claims and leaves. What gives nobody anything costs no sync: that is what lets many
    /// processes wait at next to no cost, and a lock pass from one to the next with a single sync.
    pub(crate) fn apply(
        &mut self,
        ticket: &Ticket,
        group: &[Request],
    ) -> Result<(Vec<Answer>, StoreTime), StoreError> {
        let few = group.len() <= poll::FEW;
        let polls = group.iter().all(poll::is_poll);
        if few
            && polls
            && let Some(done) = self.look_for(ticket, group)?
        {
            return Ok(done);
        }
        let light = match group {
            _ if polls => true,
            // Many at once mostly hold a grant, and share its sync.
            _ if few => self.read(|transaction, _| poll::gives_nothing(transaction, group))?,
            _ => group.iter().all(|request| matches!(request, Request::Leave(_))),
        };
        let act = |work: &mut Work<'_>| group.iter().map(|request| work.apply(request, few)).collect();
        if light { self.write_unsynced(ticket, act) } else { self.write(ticket, Urgency::Usual, act) }
    }

    /// The answers to a few polls, if nothing has to be written for them. Waits for no writer.
    fn look_for(
        &mut self,
        ticket: &Ticket,
        polls: &[Request],
    ) -> Result<Option<(Vec<Answer>, StoreTime)>, StoreError> {
        let ((answers, ahead), now) =
            self.read_work(|work| Ok((work.look(polls)?, std::mem::take(&mut work.done.ahead))))?;
        self.crashes.watch(ahead);
        Ok(answers.filter(|_| ticket.begin()).map(|each| (each, now)))
    }

    /// Does `act` in one transaction: all of it or nothing.
    pub(crate) fn write<T>(
        &mut self,
        ticket: &Ticket,
        urgency: Urgency,
        act: impl FnOnce(&mut Work<'_>) -> rusqlite::Result<T>,
    ) -> Result<(T, StoreTime), StoreError> {
        let done = self.transact(ticket, urgency, Durability::Synced, act)?;
        Ok(done.expect("only a light transaction is given up"))
    }

    /// Does `act`, which may be lost in a power cut, in one transaction that is not synced.
    pub(crate) fn write_unsynced<T>(
        &mut self,
        ticket: &Ticket,
        act: impl Fn(&mut Work<'_>) -> rusqlite::Result<T>,
    ) -> Result<(T, StoreTime), StoreError> {
        match self.transact(ticket, Urgency::Usual, Durability::Unsynced, &act)? {
            Some(done) => Ok(done),
            None => self.write(ticket, Urgency::Usual, act),
        }
    }

    /// A latch as it is. Waits for no writer.
    pub(crate) fn read_count(
        &mut self,
        ticket: &Ticket,
        count: &Count,
    ) -> Result<(Counted, StoreTime), StoreError> {
        ticket.begin();
        self.read_work(|work| work.count(count))
    }

    /// Does work that only reads. It gives no grant number, so it does not matter which was the last.
    fn read_work<T>(
        &mut self,
        act: impl FnOnce(&mut Work<'_>) -> rusqlite::Result<T>,
    ) -> Result<(T, StoreTime), StoreError> {
        let (keepers, own) = (self.file.keepers.clone(), self.own);
        self.read(|transaction, now| {
            let answer = act(&mut Work::new(transaction, &keepers, own, now, HighWater::default()))?;
            Ok((answer, now.lease))
        })
    }

    /// Does `act` in one transaction; `None` if it was to be light and would not have been.
    fn transact<T>(
        &mut self,
        ticket: &Ticket,
        urgency: Urgency,
        durability: Durability,
        act: impl FnOnce(&mut Work<'_>) -> rusqlite::Result<T>,
    ) -> Result<Option<(T, StoreTime)>, StoreError> {
        let file = &self.file.path;
        // Before the commit nothing can have been applied, whatever went wrong.
        let explain_before = |error| explain(file, error).not_applied();
        let too_busy = || StoreError::new(StoreErrorKind::Conflict, busy(&file.display())).not_applied();
        if self.durability != durability {
            self.connection
                .pragma_update(None, "synchronous", durability.synchronous())
                .map_err(explain_before)?;
            self.durability = durability;
        }
        let until = give_up_after(self.limit);
        let _permit = self.write_order.take(urgency, until).ok_or_else(too_busy)?;
        let transaction = self
            .connection
            .transaction_with_behavior(TransactionBehavior::Immediate)
            .map_err(explain_before)?;
        if !ticket.begin() {
            return Err(too_busy());
        }
        self.file.check()?;
        let mark = layout::read_high_water(&transaction, file, &self.boot.id)?;
        // Only now, with the file to ourselves, is the time the time of this transition.
        let now = self.boot.now(&self.clock);
        let mut work = Work::new(&transaction, &self.file.keepers, self.own, now, HighWater(mark));
        if durability == Durability::Synced && now.lease.since(self.swept) >= SWEEP {
            work.sweep().map_err(explain_before)?;
            self.swept = now.lease;
        }
        let answer = act(&mut work).map_err(explain_before)?;
        if durability == Durability::Unsynced && !work.may_be_lost() {
            return Ok(None);
        }
        let done = work.finish().map_err(explain_before)?;
        transaction.commit().map_err(|error| explain(file, error))?;
        self.after_commit(done);
        Ok(Some((answer, now.lease)))
    }

    fn after_commit(&self, done: AfterCommit) {
        self.channel.tell(done.wakes);
        for dead in done.crashed {
            tracing::info!(keeper = %dead, "freed what a dead process held or waited for");
            liveness::remove_files(&self.file.keepers, dead);
        }
        self.crashes.watch(done.ahead);
    }

    /// Does `act` without changing anything.
    fn read<T>(
        &mut self,
        act: impl FnOnce(&Transaction<'_>, Now) -> rusqlite::Result<T>,
    ) -> Result<T, StoreError> {
        give_up_after(self.limit);
        self.file.check()?;
        let now = self.now();
        let explain = |error| explain(&self.file.path, error).not_applied();
        let transaction = self.connection.transaction().map_err(explain)?;
        act(&transaction, now).map_err(explain)
    }

    /// Frees what `keeper` has if its process has ended.
    pub(crate) fn expire_if_crashed(&mut self, keeper: KeeperId) -> Result<(), StoreError> {
        if liveness::of(&self.file.keepers, keeper) != Liveness::Crashed {
            return Ok(());
        }
        if !self.read(|transaction, _| has_rows(transaction, keeper))? {
            liveness::remove_files(&self.file.keepers, keeper);
            return Ok(());
        }
        self.write(&Ticket::new(), Urgency::Usual, |work| work.expire(keeper))?;
        Ok(())
    }

    /// Who holds and who waits. What the dead had is freed before it is shown.
    pub(crate) fn inspect(
        &mut self,
        ticket: &Ticket,
        name: &Name,
    ) -> Result<Option<ResourceView>, StoreError> {
        ticket.begin();
        let load = |transaction: &Transaction<'_>, now: Now| {
            let loaded = Loaded::load(transaction, name)?;
            Ok(loaded.and_then(|loaded| loaded.resource.view(name, now)))
        };
        let view = self.read(load)?;
        if self.expire_crashed_of(view.iter())? { self.read(load) } else { Ok(view) }
    }

    /// A part of all names that are held or waited for.
    pub(crate) fn list(&mut self, ticket: &Ticket, query: &ListQuery) -> Result<Page, StoreError> {
        ticket.begin();
        let page = self.read(|transaction, now| page_of(transaction, now, query))?;
        if self.expire_crashed_of(page.resources.iter())? {
            return self.read(|transaction, now| page_of(transaction, now, query));
        }
        Ok(page)
    }

    fn expire_crashed_of<'a>(
        &mut self,
        views: impl Iterator<Item = &'a ResourceView>,
    ) -> Result<bool, StoreError> {
        let mut keepers: Vec<KeeperId> = Vec::new();
        for view in views {
            keepers.extend(view.holders.iter().filter(|holder| !holder.detached).map(|h| h.contender.keeper));
            keepers.extend(view.waiters.iter().map(|waiter| waiter.contender.keeper));
        }
        keepers.sort_unstable();
        keepers.dedup();
        keepers.retain(|keeper| liveness::of(&self.file.keepers, *keeper) == Liveness::Crashed);
        for keeper in &keepers {
            self.expire_if_crashed(*keeper)?;
        }
        Ok(!keepers.is_empty())
    }
}

impl Drop for Database {
    /// The keeper has left everything, or will never ask for it again.
    fn drop(&mut self) {
        if thread::panicking() {
            // The process lives, and so do its guards: their leases end them.
            return;
        }
        let own = self.own;
        let clean = self.read(|transaction, _| Ok(!has_rows(transaction, own)?)).unwrap_or(false)
            || self.write(&Ticket::new(), Urgency::Usual, |work| work.expire(own)).is_ok();
        // With rows left, the file without its lock says that they are a dead keeper's.
        if clean {
            liveness::remove_files(&self.file.keepers, own);
        }
    }
}

/// Opens the file for a keeper; gives the store's own id beside it.
fn open_for(file: &DatabaseFile, boot: &Boot, limit: Duration) -> Result<(Connection, String), StoreError> {
    let mut connection = connect(&file.path, limit)?;
    file.make_room()?;
    let any_alive = || liveness::any_alive(&file.keepers);
    let id = patiently(|| layout::settle(&mut connection, &file.path, &boot.id, any_alive))?;
    // Not before: where many open the file at once, each looks again whether another has done what is to be done.
    connection.busy_handler(Some(wait_for_others)).map_err(|error| explain(&file.path, error))?;
    Ok((connection, id))
}

fn connect(file: &Path, limit: Duration) -> Result<Connection, StoreError> {
    give_up_after(limit);
    let explain = |error| explain(file, error).not_applied();
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(file, flags).map_err(explain)?;
    // Else each step below would wait for seconds, whatever the limit is.
    connection.busy_timeout(Duration::ZERO).map_err(explain)?;
    // Nothing is written, not even on closing, until it is known whose it is.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true).map_err(explain)?;
    patiently(|| layout::refuse(&connection, file))?;
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, false).map_err(explain)?;
    patiently(|| connection.pragma_update_and_check(None, "journal_mode", "WAL", is_wal).map_err(explain))?;
    connection.pragma_update(None, "synchronous", Durability::Synced.synchronous()).map_err(explain)?;
    connection.set_prepared_statement_cache_capacity(64);
    // Else a statement is compiled anew whenever another name is bound to it.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true).map_err(explain)?;
    Ok(connection)
}

/// Takes a step towards an open file, again and again while another process is in its way.
fn patiently<T>(mut step: impl FnMut() -> Result<T, StoreError>) -> Result<T, StoreError> {
    loop {
        match step() {
            Err(error) if is_busy(&error) && wait_for_others(MANY) => {}
            taken => return taken,
        }
    }
}

fn is_wal(row: &rusqlite::Row<'_>) -> rusqlite::Result<()> {
    if row.get_ref(0)?.as_str()? == "wal" { Ok(()) } else { Err(rusqlite::Error::InvalidQuery) }
}

thread_local! {
    /// When the current request stops waiting for others. SQLite's handler has no state of its own.
    static GIVE_UP: Cell<Option<Instant>> = const { Cell::new(None) };
}

fn give_up_after(limit: Duration) -> Instant {
    let now = Instant::now();
    // A limit beyond all clocks is no limit.
    let until = now.checked_add(limit).unwrap_or(now + Duration::from_secs(1 << 30));
    GIVE_UP.set(Some(until));
    until
}

/// After so many tries somebody must be stuck.
const MANY: i32 = 1000;

/// Waits a little while another process has the file; false when that has taken too long. Always
/// equally long, so that nobody is overtaken for having waited; only who waits for so long that
/// somebody must be stuck looks less often. SQLite's own handler sleeps ever longer, up to 100 ms.
fn wait_for_others(tries: i32) -> bool {
    if GIVE_UP.get().is_some_and(|limit| Instant::now() >= limit) {
        return false;
    }
    thread::sleep(Duration::from_micros(if tries < MANY { 100 } else { 2000 }));
    true
}

fn page_of(transaction: &Transaction<'_>, now: Now, query: &ListQuery) -> rusqlite::Result<Page> {
    let after = query.after.as_ref().map_or("", |name| name.as_str());
    let mut find = transaction
        .prepare_cached("SELECT DISTINCT name FROM entry WHERE name >= ?1 AND name > ?2 ORDER BY name")?;
    let names = find.query_map([query.prefix.as_str(), after], |row| row.get(0))?;
    let mut resources = Vec::new();
    let limit = query.limit.max(1);
    for name in names {
        let name = valid_names(std::iter::once(name))?.remove(0);
        if !name.as_str().starts_with(&query.prefix) {
            break;
        }
        let view = Loaded::load(transaction, &name)?.and_then(|loaded| loaded.resource.view(&name, now));
        let Some(view) = view else { continue };
        if resources.len() == limit {
            let next = resources.last().map(|last: &ResourceView| last.name.clone());
            return Ok(Page { resources, next });
        }
        resources.push(view);
    }
    Ok(Page { resources, next: None })
}

#[cfg(test)]
mod tests;
