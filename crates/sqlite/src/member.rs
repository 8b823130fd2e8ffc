//! The file as a member of a quorum: its record, and its incarnation.
//!
//! The record is in a table of its own, which is made when the first record is written. The incarnation is the boot and
//! the file: a new boot frees everything that was held, and a copy of the file may be older.

use lockkeeper_core::{
    GrantNumber, StoreError,
    store::{
        Answer, Answers, Enrolment, Member, MemberAnswers, MemberState, Membership, Renew, Renewed, Reply,
        Request,
    },
};
use rusqlite::{OptionalExtension, Result, Transaction};

use crate::{database::Database, layout, store::SqliteStore, ticket::Urgency};

/// The record; `None` if there is none.
fn record(transaction: &Transaction<'_>) -> Result<Option<String>> {
    let is_there = "SELECT count(*) > 0 FROM sqlite_schema WHERE type = 'table' AND name = 'member'";
    if !transaction.prepare_cached(is_there)?.query_row([], |row| row.get::<_, bool>(0))? {
        return Ok(None);
    }
    transaction.prepare_cached("SELECT record FROM member")?.query_row([], |row| row.get(0)).optional()
}

fn high_water(transaction: &Transaction<'_>) -> Result<GrantNumber> {
    let read = |row: &rusqlite::Row<'_>| row.get::<_, i64>(0).map(i64::unsigned_abs);
    transaction.prepare_cached("SELECT mark FROM store")?.query_row([], read)
}

/// Returns the membership after a change.
fn membership_after(database: &mut Database) -> Result<Membership, StoreError> {
    let record = database.read(|transaction, _| record(transaction)).map_err(StoreError::perhaps_applied)?;
    Ok(membership(database, record))
}

fn membership(database: &Database, record: Option<String>) -> Membership {
    Membership { record: record.map(Into::into), incarnation: database.incarnation().into() }
}

impl Member for SqliteStore {
    fn apply<'a>(&'a self, group: &'a [Request]) -> Reply<'a, MemberAnswers<Answer>> {
        let group = group.to_vec();
        Box::pin(self.writer.ask(Urgency::Usual, move |database, ticket| {
            let answers = match &*group {
                [] => Answers { now: database.check(ticket)?.lease, each: Vec::new() },
                group => database.apply(ticket, group)?,
            };
            Ok(MemberAnswers { membership: membership_after(database)?, answers })
        }))
    }

    fn renew<'a>(&'a self, leases: &'a [Renew]) -> Reply<'a, MemberAnswers<Renewed>> {
        let leases = leases.to_vec();
        Box::pin(self.writer.ask(Urgency::First, move |database, ticket| {
            let (each, now) = database.write(ticket, Urgency::First, |work| {
                leases.iter().map(|renew| work.renew(renew)).collect()
            })?;
            let answers = Answers { now, each };
            Ok(MemberAnswers { membership: membership_after(database)?, answers })
        }))
    }

    fn state(&self) -> Reply<'_, MemberState> {
        Box::pin(self.writer.ask(Urgency::Usual, move |database, ticket| {
            let wall = database.check(ticket)?.wall;
            let read =
                |transaction: &Transaction<'_>, _| Ok((record(transaction)?, high_water(transaction)?));
            let (record, high_water) = database.read(read)?;
            let server = database.file_id().into();
            Ok(MemberState { membership: membership(database, record), wall, high_water, server })
        }))
    }

    fn enrol<'a>(&'a self, enrolment: &'a Enrolment) -> Reply<'a, bool> {
        let Enrolment { expected, record: new, high_water: least } = enrolment.clone();
        Box::pin(self.writer.ask(Urgency::Usual, move |database, ticket| {
            if *database.incarnation() != *expected.incarnation {
                return Ok(false);
            }
            let enrol = |transaction: &Transaction<'_>| {
                let is_expected = record(transaction)?.as_deref() == expected.record.as_deref();
                if !is_expected || high_water(transaction)? > least {
                    return Ok(false);
                }
                transaction.execute_batch(layout::MEMBER)?;
                transaction.execute("INSERT OR REPLACE INTO member VALUES (1, ?)", [&*new])?;
                layout::write_high_water(transaction, least)?;
                Ok(true)
            };
            Ok(database.write(ticket, Urgency::Usual, |work| enrol(work.transaction))?.0)
        }))
    }
}
