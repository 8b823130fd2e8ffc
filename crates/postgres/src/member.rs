//! The server as a member of a quorum: its record, and its incarnation.
//!
//! The record is in a table of its own, which is made when the store is first asked to be a member. The incarnation is the
//! timeline of the server, which another one continues after a failover with a higher number. A server that does not write
//! to disk has its start in the incarnation, too: only its machine's crash loses commits. Commits that do not wait for the
//! disk are lost by a crash of any server process, which leaves no mark, so such a server is no member.

use std::sync::Arc;

use lockkeeper_core::store::{
    Answer, Enrolment, Member, MemberAnswers, MemberState, Membership, Renew, Renewed, Reply, Request,
};
use tokio_postgres::error::SqlState;

use crate::{
    codec::get,
    connection::{After, Failure, Worked},
    flights::{self, LockWait, unread},
    groups::Group,
    layout, origin,
    store::PostgresStore,
    trouble,
};

/// The store's id, the incarnation, the clock, the high-water mark of all resources, the record, and whether commits wait
/// for the disk. At last the start of the server: no two servers have started in the same microsecond.
const READ: &str = "
SELECT id, left(pg_walfile_name(pg_current_wal_insert_lsn()), 8) || CASE
        WHEN current_setting('fsync') = 'on' THEN ''
        ELSE ' ' || extract(epoch FROM pg_postmaster_start_time())::text END,
    (extract(epoch FROM clock_timestamp()) * 1000000)::bigint,
    greatest(floor, {mark}), (SELECT record FROM {s}.member), current_setting('synchronous_commit'),
    extract(epoch FROM pg_postmaster_start_time())::text FROM {s}.store";

/// Reading it takes time, and only a member that begins to vote needs it.
const MARK: &str = "(SELECT max(high_water) FROM {s}.resource), (SELECT max(high_water) FROM {s}.latch)";

/// Others that change the record wait, and those that read it do not.
const BEGIN: &str = "
BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE;
SET LOCAL idle_in_transaction_session_timeout = '1s';
SET LOCAL lock_timeout = '1s';
LOCK TABLE {s}.member IN EXCLUSIVE MODE";

/// Whether the marks of all resources are read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Marks {
    Read,
    Left,
}

impl Group {
    fn in_schema(&self, text: &str) -> String {
        text.replace("{s}", &self.session.schema)
    }

    async fn member_state(&self, marks: Marks) -> Worked<MemberState> {
        if self.session.is_pooled() {
            let message = "a member of a quorum must be reached without a pooler, which may lead to another server at any \
                           time; name the server itself, without pooler=true";
            return Err(Failure::keeps(trouble::config(message)));
        }
        let mark = if marks == Marks::Read { MARK } else { "0" };
        let rows = self.session.rows(&self.in_schema(&READ.replace("{mark}", mark))).await.map_err(unread)?;
        let row =
            rows.first().ok_or_else(|| Failure::closes(trouble::corrupt("the table store has no row")))?;
        let text = |column| get::<Option<&str>>(row, column).map_err(Failure::closes);
        let number = |column| get::<i64>(row, column).map(i64::cast_unsigned).map_err(Failure::closes);
        if text(0)? != Some(&self.session.origin.store) {
            return Err(Failure::closes(origin::another_store()));
        }
        if text(5)? == Some("off") {
            let message =
                "a member of a quorum must not lose commits in a crash; set synchronous_commit = on";
            return Err(Failure::keeps(trouble::config(message)));
        }
        let incarnation = text(1)?.unwrap_or_default().into();
        let record = text(4)?.map(Arc::from);
        Ok(MemberState {
            membership: Membership { record, incarnation },
            wall: number(2)?,
            high_water: number(3)?,
            server: text(6)?.unwrap_or_default().into(),
        })
    }

    async fn apply_as_member(self, requests: Arc<[Request]>) -> Worked<MemberAnswers<Answer>> {
        let answers = self.clone().apply(requests).await?;
        Ok(MemberAnswers { membership: self.membership_after().await?, answers })
    }

    async fn renew_as_member(self, leases: Arc<[Renew]>) -> Worked<MemberAnswers<Renewed>> {
        let answers = self.clone().renew(leases).await?;
        Ok(MemberAnswers { membership: self.membership_after().await?, answers })
    }

    /// Reads the membership after a change.
    async fn membership_after(&self) -> Worked<Membership> {
        let state = self.member_state(Marks::Left).await;
        let state = state.map_err(|failure| Failure { error: failure.error.perhaps_applied(), ..failure })?;
        Ok(state.membership)
    }

    /// Makes the table if it is not there.
    async fn state(self) -> Worked<MemberState> {
        match self.session.batch(&self.in_schema(layout::MEMBER)).await {
            // Two processes made it at the same moment.
            Err(error) if error.code() == Some(&SqlState::UNIQUE_VIOLATION) => {}
            Err(error) if error.code() == Some(&SqlState::DUPLICATE_TABLE) => {}
            // It may have been made for this user.
            Err(error) if error.code() == Some(&SqlState::INSUFFICIENT_PRIVILEGE) => {}
            made => made.map_err(unread)?,
        }
        self.member_state(Marks::Read).await
    }

    async fn enrol(self, enrolment: Enrolment) -> Worked<bool> {
        let begun = self.session.batch(&self.in_schema(BEGIN)).await.map_err(unread);
        let done = match begun {
            Ok(()) => self.enrol_locked(&enrolment).await,
            Err(failure) => Err(failure),
        };
        match done {
            Ok(true) => {
                self.progress.commits();
                let ended = self.session.batch("COMMIT").await;
                ended.map_err(|error| Failure::closes(trouble::explain(error).perhaps_applied()))?;
                Ok(true)
            }
            Ok(false) => {
                flights::roll_back(&self.session).await?;
                Ok(false)
            }
            Err(Failure { error, session: After::Kept }) => Err(flights::give_up(&self.session, error).await),
            Err(failure) => Err(failure),
        }
    }

    async fn enrol_locked(&self, enrolment: &Enrolment) -> Worked<bool> {
        let Enrolment { expected, record, high_water } = enrolment;
        let found = self.member_state(Marks::Read).await?;
        if found.membership != *expected || found.high_water > *high_water {
            return Ok(false);
        }
        let write = format!(
            "UPDATE {{s}}.store SET floor = {high_water}; \
             INSERT INTO {{s}}.member VALUES (true, convert_from(decode('{}', 'hex'), 'UTF8')) \
             ON CONFLICT (only_one) DO UPDATE SET record = excluded.record",
            hex(record)
        );
        self.session.batch(&self.in_schema(&write)).await.map_err(unread)?;
        Ok(true)
    }
}

fn hex(text: &str) -> String {
    text.bytes().map(|byte| format!("{byte:02x}")).collect()
}

impl Member for PostgresStore {
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
        Box::pin(self.wait(Group::state))
    }

    fn enrol<'a>(&'a self, enrolment: &'a Enrolment) -> Reply<'a, bool> {
        let enrolment = enrolment.clone();
        Box::pin(self.wait(move |group| group.enrol(enrolment)))
    }
}
