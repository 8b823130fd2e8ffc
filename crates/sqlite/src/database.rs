//! The open database, as the writer's thread has it: transactions from begin to commit, and the work after a commit.
//!
//! It runs on the writer's thread only. Every call may block on the disk or on another process.

use std::{
    os::{fd::OwnedFd, unix::net::UnixDatagram},
    path::PathBuf,
    sync::Arc,
    thread,
    time::Duration,
};

use lockkeeper_core::{
    KeeperId, StoreError, StoreErrorKind,
    clock::Clock,
    model::{HighWater, Now},
    store::{Answer, Answers, Count, Counted, Request, StoreTime, WakeSink},
};
use rusqlite::{Connection, Transaction, TransactionBehavior};
use tokio::runtime::Handle;

use crate::{
    boot::Boot,
    checkpoint::{self, Checkpoints},
    crashes::{CrashMonitor, OnCrash},
    durability::Durability,
    expiry::has_rows,
    file::{DatabaseFile, FileId},
    layout,
    liveness::{self, LifeFile, Liveness},
    open::{self, OpenConnection},
    patience::{be_punctual, give_up_after},
    poll,
    ticket::{Ticket, Urgency},
    trouble::{busy, explain, file_trouble},
    wakes::WakeSender,
    work::{AfterCommit, Work},
    write_order::WriteOrder,
};

/// How often each keeper sweeps.
const SWEEP: Duration = Duration::from_secs(60);

/// The options that a keeper opens a database with.
pub(crate) struct OpenOptions {
    pub(crate) path: PathBuf,
    pub(crate) keeper: KeeperId,
    pub(crate) clock: Clock,
    pub(crate) sink: WakeSink,
    pub(crate) limit: Duration,
    pub(crate) background: Handle,
    pub(crate) on_crash: OnCrash,
}

/// The parts that a keeper gets beside the open database.
pub(crate) struct OpenedParts {
    pub(crate) store_id: String,
    pub(crate) inbox: Option<UnixDatagram>,
    pub(crate) life_line: OwnedFd,
}

/// The open database.
pub(crate) struct Database {
    connection: Connection,
    /// The durability that the connection is set to.
    durability: Durability,
    /// The schedule of checkpoints, if SQLite must not run them by itself.
    checkpoints: Option<Checkpoints>,
    write_order: Arc<WriteOrder>,
    file: DatabaseFile,
    boot: Boot,
    own: KeeperId,
    clock: Clock,
    limit: Duration,
    swept: StoreTime,
    wakes: WakeSender,
    crashes: Arc<CrashMonitor>,
    _life_file: LifeFile,
}

impl Database {
    /// Opens the database, makes it if it is not there, and shows that the keeper is alive.
    pub(crate) fn open(options: OpenOptions) -> Result<(Self, OpenedParts), StoreError> {
        be_punctual();
        let boot = Boot::find()?;
        let mut file = DatabaseFile::find(&options.path)?;
        let OpenConnection { connection, store_id } = open::open(&file, &boot, options.limit)?;
        let write_order = WriteOrder::of(file.remember()?);
        let life_file = LifeFile::begin(&file, options.keeper)?;
        let life_line = life_file.life_line().map_err(|error| file_trouble("share", &file.keepers, error))?;
        let (wakes, inbox) = WakeSender::open(&file, options.keeper, options.sink);
        let mut database = Self {
            crashes: CrashMonitor::new(&file.keepers, options.background, options.on_crash),
            connection,
            durability: Durability::Synced,
            checkpoints: checkpoint::are_ours().then(Checkpoints::default),
            write_order,
            file,
            boot,
            own: options.keeper,
            clock: options.clock,
            limit: options.limit,
            swept: StoreTime(0),
            wakes,
            _life_file: life_file,
        };
        for crashed in liveness::crashed(&database.file.keepers) {
            match database.expire_if_crashed(crashed) {
                // Many keepers that start at once all try this. Later claims expire the crashed keepers in their way.
                Err(error) if error.is_passing() => break,
                expired => expired?,
            }
        }
        Ok((database, OpenedParts { store_id, inbox, life_line }))
    }

    fn now(&self) -> Now {
        self.boot.now(&self.clock)
    }

    /// Returns the incarnation of the file. It is another one after each event that may have lost data or freed holds:
    /// another boot, or another file.
    pub(crate) fn incarnation(&self) -> String {
        format!("{} {}", self.boot.id, self.file_id())
    }

    /// Returns the device and the inode of the file.
    pub(crate) fn file_id(&self) -> String {
        let FileId { device, inode } = self.file.id();
        format!("{device} {inode}")
    }

    /// Checks that the file is still the one that was opened, and tells the time.
    pub(crate) fn check(&self, ticket: &Ticket) -> Result<Now, StoreError> {
        ticket.begin();
        self.file.check()?;
        Ok(self.now())
    }

    /// Applies claims and leaves. A group that gives nobody anything costs no sync, so many processes wait at next to
    /// no cost, and a lock passes from one to the next with a single sync.
    pub(crate) fn apply(
        &mut self,
        ticket: &Ticket,
        group: &[Request],
    ) -> Result<Answers<Answer>, StoreError> {
        if group.len() <= poll::FEW
            && group.iter().all(poll::is_poll)
            && let Some(answers) = self.answer_polls(ticket, group)?
        {
            return Ok(answers);
        }
        let durability = match Durability::guess(group) {
            Some(durability) => durability,
            None => self.guess_by_rows(group)?,
        };
        let act = |work: &mut Work<'_>| work.apply(group);
        let (each, now) = match durability {
            Durability::Unsynced => self.write_unsynced(ticket, act)?,
            Durability::Synced => self.write(ticket, Urgency::Usual, act)?,
        };
        Ok(Answers { now, each })
    }

    /// Guesses the durability that a group needs, from the rows. A guess needs no transaction of its own, nor a look at
    /// the files: the transaction that follows finds out whether it was right.
    fn guess_by_rows(&self, group: &[Request]) -> Result<Durability, StoreError> {
        give_up_after(self.limit);
        Durability::guess_by_rows(&self.connection, group)
            .map_err(|error| explain(&self.file.path, error).not_applied())
    }

    /// Returns the answers to a few polls, if nothing has to be written for them. Waits for no writer.
    fn answer_polls(
        &mut self,
        ticket: &Ticket,
        polls: &[Request],
    ) -> Result<Option<Answers<Answer>>, StoreError> {
        let ((answers, blockers), now) = self.read_work(|work| {
            let answers = work.answer_polls(polls)?;
            Ok((answers, std::mem::take(&mut work.after_commit.blockers)))
        })?;
        self.crashes.monitor(blockers);
        Ok(answers.filter(|_| ticket.begin()).map(|each| Answers { now, each }))
    }

    /// Reads a latch. Waits for no writer.
    pub(crate) fn read_count(
        &mut self,
        ticket: &Ticket,
        count: &Count,
    ) -> Result<(Counted, StoreTime), StoreError> {
        ticket.begin();
        self.read_work(|work| work.count(count))
    }

    /// Does `act` in one synced transaction: all of it or nothing.
    pub(crate) fn write<T>(
        &mut self,
        ticket: &Ticket,
        urgency: Urgency,
        act: impl FnOnce(&mut Work<'_>) -> rusqlite::Result<T>,
    ) -> Result<(T, StoreTime), StoreError> {
        let done = self.transact(ticket, urgency, Durability::Synced, act)?;
        Ok(done.expect("only an unsynced transaction is given up"))
    }

    /// Does `act` in one transaction that is not synced. If a power cut must not undo it, it is done again in a synced
    /// one.
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

    /// Does `act` in one transaction; `None` if `durability` is not enough for it.
    fn transact<T>(
        &mut self,
        ticket: &Ticket,
        urgency: Urgency,
        durability: Durability,
        act: impl FnOnce(&mut Work<'_>) -> rusqlite::Result<T>,
    ) -> Result<Option<(T, StoreTime)>, StoreError> {
        let path = &self.file.path;
        // No error before the commit can have applied anything.
        let explain_before = |error| explain(path, error).not_applied();
        let too_busy = || StoreError::new(StoreErrorKind::Conflict, busy(&path.display())).not_applied();
        if self.durability != durability {
            let synchronous = durability.synchronous();
            self.connection.pragma_update(None, "synchronous", synchronous).map_err(explain_before)?;
            self.durability = durability;
        }
        let until = give_up_after(self.limit);
        let _permit = self.write_order.take(urgency, until).ok_or_else(too_busy)?;
        let immediate = TransactionBehavior::Immediate;
        let transaction = self.connection.transaction_with_behavior(immediate).map_err(explain_before)?;
        if !ticket.begin() {
            return Err(too_busy());
        }
        self.file.check()?;
        let high_water = HighWater(layout::read_high_water(&transaction, path, &self.boot.id)?);
        // The time counts from here, because nobody else can write any more.
        let now = self.boot.now(&self.clock);
        let mut work = Work::new(&transaction, &self.file.keepers, self.own, now, high_water);
        if durability == Durability::Synced && now.lease.since(self.swept) >= SWEEP {
            work.sweep().map_err(explain_before)?;
            self.swept = now.lease;
        }
        let answer = act(&mut work).map_err(explain_before)?;
        if durability == Durability::Unsynced && !work.may_be_lost() {
            return Ok(None);
        }
        let after_commit = work.finish().map_err(explain_before)?;
        transaction.commit().map_err(|error| explain(path, error))?;
        self.after_commit(after_commit);
        Ok(Some((answer, now.lease)))
    }

    fn after_commit(&self, after_commit: AfterCommit) {
        self.wakes.send(after_commit.wakes);
        for crashed in after_commit.crashed {
            tracing::info!(keeper = %crashed, "freed what a crashed process held or waited for");
            liveness::remove_files(&self.file.keepers, crashed);
        }
        self.crashes.monitor(after_commit.blockers);
    }

    /// Runs a checkpoint if one is due and SQLite does not do it.
    pub(crate) fn checkpoint_if_due(&mut self) {
        if let Some(checkpoints) = &mut self.checkpoints {
            checkpoints.run_if_due(&self.connection, &self.file.path);
        }
    }

    /// Does work that only reads. It makes no grant, so it needs no high-water mark.
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

    /// Does `act`, which changes nothing.
    pub(crate) fn read<T>(
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

    /// Whether the process of `keeper` has ended.
    pub(crate) fn is_crashed(&self, keeper: KeeperId) -> bool {
        liveness::of(&self.file.keepers, keeper) == Liveness::Crashed
    }

    /// Frees the holds and positions of `keeper` if its process has ended.
    pub(crate) fn expire_if_crashed(&mut self, keeper: KeeperId) -> Result<(), StoreError> {
        if !self.is_crashed(keeper) {
            return Ok(());
        }
        if !self.read(|transaction, _| has_rows(transaction, keeper))? {
            liveness::remove_files(&self.file.keepers, keeper);
            return Ok(());
        }
        self.write(&Ticket::new(), Urgency::Usual, |work| work.expire(keeper))?;
        Ok(())
    }
}

impl Drop for Database {
    /// The keeper has left everything, or will never ask for it again.
    fn drop(&mut self) {
        if thread::panicking() {
            // The process is alive, and so are its guards: their leases end them.
            return;
        }
        let own = self.own;
        let clean = self.read(|transaction, _| Ok(!has_rows(transaction, own)?)).unwrap_or(false)
            || self.write(&Ticket::new(), Urgency::Usual, |work| work.expire(own)).is_ok();
        // If rows are left, the unlocked life file tells that they belong to a crashed keeper.
        if clean {
            liveness::remove_files(&self.file.keepers, own);
        }
    }
}

#[cfg(test)]
mod tests;
