//! The server as a member of a quorum: its record, and its incarnation.
//!
//! The record is in a table of its own, which is made when the store is first asked to be a member. The incarnation is
//! the identity of the server: after a failover it is another one. A server that may lose commits in a crash is
//! refused.

use std::sync::Arc;

use lockkeeper_core::{
    StoreError,
    store::{
        Answer, Enrolment, Member, MemberAnswers, MemberState, Membership, Renew, Renewed, Reply, Request,
    },
};
use mysql_async::Row;

use crate::{
    codec::{another_store, number, text},
    connection::{Failure, Worked},
    durability::{Durability, Weakness},
    flights,
    groups::Group,
    layout,
    server::Dialect,
    statements::{CLOCK, Hex, LockWait},
    store::MySqlStore,
    trouble::{self, config, corrupt},
};

/// Whether the marks of all resources are read. That takes time, and only a member that begins to vote needs it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Marks {
    Read,
    Left,
}

/// The store's id, the clock, the high-water mark, the record, and the settings that decide whether commits are on disk.
fn read(marks: Marks) -> String {
    let mark = match marks {
        Marks::Read => {
            "GREATEST(floor, COALESCE((SELECT MAX(high_water) FROM {p}resource), 0), \
             COALESCE((SELECT MAX(high_water) FROM {p}latch), 0))"
        }
        Marks::Left => "floor",
    };
    format!(
        "SELECT id, {CLOCK}, {mark}, (SELECT record FROM {{p}}member), @@global.innodb_flush_log_at_trx_commit, \
         @@global.log_bin, @@global.sync_binlog FROM {{p}}store"
    )
}

/// Refuses a server that may lose commits in a crash.
fn check_durability(row: &Row, dialect: Dialect) -> Result<(), StoreError> {
    let (flush, has_binary_log, sync_binlog) = (number(row, 4)?, number(row, 5)? != 0, number(row, 6)?);
    let why = match (Durability { dialect, flush, has_binary_log, sync_binlog }).weakness() {
        None => return Ok(()),
        Some(Weakness::Flush) => {
            "a member of a quorum must not lose commits in a crash; set innodb_flush_log_at_trx_commit = 1"
        }
        Some(Weakness::BinaryLog) => {
            "a member of a quorum must not lose commits in a crash, after which this server takes back what its binary \
             log lacks; set sync_binlog = 1"
        }
    };
    Err(config(why))
}

impl Group {
    fn in_tables(&self, statement: &str) -> String {
        self.session.statements.in_tables(statement)
    }

    async fn member_state(&self, marks: Marks) -> Worked<MemberState> {
        let rows = flights::rows(&self.session, &self.in_tables(&read(marks))).await?;
        let read = || -> Result<MemberState, StoreError> {
            let row = rows.first().ok_or_else(|| corrupt("the table store has no row"))?;
            if text(row, 0)? != Some(&*self.own.id) {
                return Err(another_store());
            }
            check_durability(row, self.session.facts.dialect)?;
            let incarnation: Arc<str> = self.session.facts.which.as_str().into();
            let server = incarnation.clone();
            let record = text(row, 3)?.map(Arc::from);
            let (wall, high_water) = (number(row, 1)?.cast_unsigned(), number(row, 2)?.cast_unsigned());
            Ok(MemberState { membership: Membership { record, incarnation }, wall, high_water, server })
        };
        read().map_err(Failure::closes)
    }

    async fn apply_as_member(self, requests: Arc<[Request]>) -> Worked<MemberAnswers<Answer>> {
        let answers = self.clone().apply(requests).await?;
        Ok(MemberAnswers { membership: self.membership_after().await?, answers })
    }

    async fn renew_as_member(self, leases: Arc<[Renew]>) -> Worked<MemberAnswers<Renewed>> {
        let answers = self.clone().renew(leases).await?;
        Ok(MemberAnswers { membership: self.membership_after().await?, answers })
    }

    /// Returns the membership after a change.
    async fn membership_after(&self) -> Worked<Membership> {
        let state = self.member_state(Marks::Left).await.map_err(Failure::perhaps_applied)?;
        Ok(state.membership)
    }

    /// Makes the table if it is not there.
    async fn state(self) -> Worked<MemberState> {
        match self.session.run(&self.in_tables(layout::MEMBER)).await {
            // It may have been made for this user.
            Err(failed) if matches!(trouble::code(&failed.error), Some(1044 | 1142)) => {}
            Err(failed) => return Err(Failure::closes(trouble::explain(failed.error).not_applied())),
            Ok(_) => {}
        }
        let state = self.member_state(Marks::Read).await?;
        // Others count the record as written. It may be that of somebody whose commit is still under way.
        self.read_is_on_disk().await?;
        Ok(state)
    }

    async fn enrol(self, enrolment: Enrolment) -> Worked<bool> {
        let lock = self.in_tables("SELECT id AS name FROM {p}store FOR UPDATE");
        flights::first(&self.session, &lock, "SELECT 1").await?;
        let Enrolment { expected, record, high_water } = enrolment;
        let found = self.member_state(Marks::Read).await?;
        if found.membership != expected || found.high_water > high_water {
            flights::roll_back(&self.session).await?;
            return Ok(false);
        }
        let writes = [
            format!("UPDATE {{p}}store SET floor = {high_water}"),
            format!("REPLACE INTO {{p}}member VALUES (1, {})", Hex(record.as_bytes())),
        ];
        let writes = writes.map(|write| self.in_tables(&write));
        flights::second(&self.session, &self.progress, &writes).await?;
        Ok(true)
    }
}

impl Member for MySqlStore {
    fn apply<'a>(&'a self, group: &'a [Request]) -> Reply<'a, MemberAnswers<Answer>> {
        let requests: Arc<[Request]> = group.into();
        Box::pin(self.request(move |group| group.apply_as_member(requests)))
    }

    fn renew<'a>(&'a self, leases: &'a [Renew]) -> Reply<'a, MemberAnswers<Renewed>> {
        let leases: Arc<[Renew]> = leases.into();
        let whole = LockWait::Whole;
        Box::pin(self.work(&self.renewals, whole, move |group| group.renew_as_member(leases)))
    }

    fn state(&self) -> Reply<'_, MemberState> {
        Box::pin(self.work(&self.waits, LockWait::Whole, Group::state))
    }

    fn enrol<'a>(&'a self, enrolment: &'a Enrolment) -> Reply<'a, bool> {
        let enrolment = enrolment.clone();
        Box::pin(self.work(&self.waits, LockWait::Whole, move |group| group.enrol(enrolment)))
    }
}
