//! The tables and their version, and the way in which many processes make them at once.
//!
//! The SQL of a layout step must go on making the same tables for ever: databases have them.

use lockkeeper_core::{KeeperId, StoreError, StoreErrorKind};
use tokio_postgres::error::SqlState;

use crate::{
    session::Session,
    trouble::{self, corrupt},
};

/// The steps from an empty schema to the layout of this version. The number of steps done is the version of a schema.
/// Steps are only ever added, and each works on the result of the one before.
const STEPS: &[&str] = &[LAYOUT_1];

/// `{s}` is the schema, in quotes. Names are bytes: they are compared byte for byte whatever the collation. Times are
/// microseconds since 1970 on the server's clock. A keeper is 32 hexadecimal digits.
///
/// `resource` has the rows that transactions lock. A row stays when the name is free, so a lock that nobody waits for
/// is one row that is updated in place. `high_water` is its highest grant number, `used` the time of the last write,
/// and `ends` the time at which the holder in this row will have ended. Other holders and all waiters are in `entry`,
/// in slots that are reused: rows that come and go would leave dead index entries behind. `latch` and `fence` are
/// locked in the same way.
///
/// `floor` is raised whenever rows of free names are removed: numbers are given above it.
const LAYOUT_1: &str = "
CREATE TABLE {s}.store (
    only_one boolean PRIMARY KEY CHECK (only_one),
    id text NOT NULL,
    layout integer NOT NULL,
    floor bigint NOT NULL,
    swept bigint NOT NULL
);

CREATE TABLE {s}.resource (
    name bytea PRIMARY KEY,
    high_water bigint NOT NULL DEFAULT 0,
    capacity bigint NOT NULL DEFAULT 0,
    used bigint NOT NULL DEFAULT 0,
    ends bigint NOT NULL DEFAULT 0,
    holder text
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

CREATE TABLE {s}.entry (
    name bytea NOT NULL,
    slot integer NOT NULL,
    ends bigint NOT NULL,
    entry text,
    PRIMARY KEY (name, slot)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

CREATE TABLE {s}.tombstone (
    contender text PRIMARY KEY,
    until bigint NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

CREATE TABLE {s}.latch (
    name bytea PRIMARY KEY,
    high_water bigint NOT NULL DEFAULT 0,
    used bigint NOT NULL DEFAULT 0,
    remaining bigint,
    initial bigint,
    opened bigint,
    born bigint
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

CREATE TABLE {s}.counted (
    op text PRIMARY KEY,
    until bigint NOT NULL,
    answer bigint NOT NULL,
    remaining bigint NOT NULL,
    initial bigint NOT NULL,
    opened bigint NOT NULL,
    born bigint NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

CREATE TABLE {s}.fence (
    name bytea PRIMARY KEY,
    highest bigint NOT NULL DEFAULT 0
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

CREATE TABLE {s}.watcher (
    name bytea NOT NULL,
    topic text NOT NULL,
    keeper text NOT NULL,
    until bigint NOT NULL,
    PRIMARY KEY (name, topic, keeper)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
";

/// All tables of a store.
const NAMES: [&str; 8] = ["store", "resource", "entry", "tombstone", "latch", "counted", "fence", "watcher"];

/// A number that is ours among the advisory locks of a database: "LKKR". The second number of the lock is the schema's.
const MAKING: i32 = 0x4c4b_4b52;

/// Begins to make tables, and bounds for how long others wait for a process that stops half-way.
const BEGIN: &str = "\
BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE;
SET LOCAL idle_in_transaction_session_timeout = '1s';
SET LOCAL lock_timeout = '3s';
SET LOCAL statement_timeout = '3s';
SET LOCAL tcp_user_timeout = '2s'";

/// Whether the tables are there, and whether this user has all rights on them. Not `to_regclass`, which inside of a
/// transaction may not see what another one has made meanwhile.
const TABLES: &str = "
SELECT count(*) FILTER (WHERE c.relname = 'store') > 0, coalesce(bool_and(has_schema_privilege(n.oid, 'USAGE')
    AND has_table_privilege(c.oid, 'SELECT') AND has_table_privilege(c.oid, 'INSERT')
    AND has_table_privilege(c.oid, 'UPDATE') AND has_table_privilege(c.oid, 'DELETE')), true)
FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE n.nspname = '{schema}' AND c.relkind = 'r' AND c.relname IN ({names})";

/// Makes the store unless it is there. It waits for processes that do the same.
const UNLESS_THERE: &str = "\
DO $lockkeeper$
BEGIN
PERFORM pg_advisory_xact_lock({making}, hashtext('{schema}'));
IF to_regclass('{s}.store') IS NULL THEN

CREATE SCHEMA IF NOT EXISTS {s};
{steps}
{insert};

END IF;
END
$lockkeeper$;
";

/// The table for the record of a member of a quorum. It is made when the store is first asked to be one.
pub(crate) const MEMBER: &str = "
CREATE TABLE IF NOT EXISTS {s}.member (only_one boolean PRIMARY KEY CHECK (only_one), record text NOT NULL)";

/// The SQL that makes the store, if it is not there, and lets a user use it. An administrator runs it.
pub(crate) fn sql(schema: &str, user: &str) -> String {
    let made = UNLESS_THERE.replace("{steps}", &STEPS.concat());
    let made = made.replace("{insert}", &insert(&KeeperId::random().to_string()));
    let made = made.replace("{making}", &MAKING.to_string()).replace("{schema}", schema);
    let member =
        format!("{MEMBER};\nGRANT SELECT, INSERT, UPDATE, DELETE ON {{s}}.member TO {};\n", quoted(user));
    in_schema(&made, schema) + &rights(schema, user) + in_schema(member.trim_start(), schema).as_str()
}

fn quoted(user: &str) -> String {
    format!("\"{}\"", user.replace('"', "\"\""))
}

/// The SQL that gives a user all rights that it needs.
fn rights(schema: &str, user: &str) -> String {
    let user = quoted(user);
    let tables = NAMES.map(|name| format!("{{s}}.{name}")).join(", ");
    let rights = format!(
        "GRANT USAGE ON SCHEMA {{s}} TO {user};\nGRANT SELECT, INSERT, UPDATE, DELETE ON {tables} TO {user};\n"
    );
    in_schema(&rights, schema)
}

fn insert(id: &str) -> String {
    format!("INSERT INTO {{s}}.store VALUES (true, '{id}', {}, 0, 0)", STEPS.len())
}

fn in_schema(text: &str, schema: &str) -> String {
    text.replace("{s}", &format!("\"{schema}\""))
}

/// Brings the schema to this program's layout; returns the store's own id.
pub(crate) async fn settle(session: &Session, schema: &str, user: &str) -> Result<String, StoreError> {
    if let Some(found) = found(session, schema, user).await?
        && found.layout == STEPS.len()
    {
        return Ok(found.id);
    }
    let made = make(session, schema, user).await;
    if made.is_err() {
        // The transaction may be open.
        session.batch("ROLLBACK").await.map_err(trouble::explain)?;
    }
    match made {
        Err(Making::Sql(error)) if error.code() == Some(&SqlState::INSUFFICIENT_PRIVILEGE) => {
            let message = format!(
                "the tables of the store are not there, and this user may not make them; run this SQL, which `lockkeeper \
                 schema --store URL` prints, as the owner of the database, or name another schema= in the URL:\n{}",
                sql(schema, user)
            );
            Err(StoreError::new(StoreErrorKind::Denied, message).not_applied().with_source(error))
        }
        Err(Making::Sql(error)) if error.code() == Some(&SqlState::LOCK_NOT_AVAILABLE) => {
            let message =
                "another process is making the tables of the store, and does not come to an end; try again";
            Err(StoreError::new(StoreErrorKind::Conflict, message).not_applied().with_source(error))
        }
        Err(Making::Sql(error)) => Err(trouble::explain(error).not_applied()),
        Err(Making::Layout(error)) => Err(error),
        Ok(id) => Ok(id),
    }
}

struct Found {
    id: String,
    layout: usize,
}

/// The reason why the tables could not be made.
enum Making {
    Sql(tokio_postgres::Error),
    Layout(StoreError),
}

impl From<tokio_postgres::Error> for Making {
    fn from(error: tokio_postgres::Error) -> Self {
        Self::Sql(error)
    }
}

/// Reads the state of the schema; `None` if it has no tables.
async fn found(session: &Session, schema: &str, user: &str) -> Result<Option<Found>, StoreError> {
    let explain = |error| trouble::explain(error).not_applied();
    let table = in_schema("{s}.store", schema);
    let names = NAMES.map(|name| format!("'{name}'")).join(", ");
    let tables = TABLES.replace("{schema}", schema).replace("{names}", &names);
    let tables = session.rows(&tables).await.map_err(explain)?;
    let tables = tables.first().ok_or_else(|| corrupt("the server does not say which tables it has"))?;
    if !tables.try_get::<_, bool>(0).map_err(explain)? {
        return Ok(None);
    }
    if !tables.try_get::<_, bool>(1).map_err(explain)? {
        let message = format!(
            "the tables of the store are there, and this user lacks rights on them; run this SQL as their owner (`lockkeeper \
             schema --store URL` prints it, too), or name another user in the URL:\n{}",
            rights(schema, user)
        );
        return Err(StoreError::new(StoreErrorKind::Denied, message).not_applied());
    }
    let rows = session.rows(&format!("SELECT id, layout FROM {table}")).await.map_err(explain)?;
    let row =
        rows.first().ok_or_else(|| corrupt(format!("{table} has no row; drop the schema, or restore it")))?;
    let layout: i32 = row.try_get(1).map_err(explain)?;
    let layout = usize::try_from(layout).unwrap_or(usize::MAX);
    if layout > STEPS.len() {
        return Err(corrupt(format!(
            "the tables have layout {layout}, and this program knows layouts up to {}; use a newer version",
            STEPS.len()
        )));
    }
    Ok(Some(Found { id: row.try_get(0).map_err(explain)?, layout }))
}

/// Does the steps that are missing, while others that do the same wait.
async fn make(session: &Session, schema: &str, user: &str) -> Result<String, Making> {
    session.batch(BEGIN).await?;
    session.batch(&format!("SELECT pg_advisory_xact_lock({MAKING}, hashtext('{schema}'))")).await?;
    let found = found(session, schema, user).await.map_err(Making::Layout)?;
    let done = found.as_ref().map_or(0, |found| found.layout);
    // The right to make a schema is asked for even if there is one.
    let is_there = format!("SELECT count(*) > 0 FROM pg_namespace WHERE nspname = '{schema}'");
    if !session.one::<bool>(&is_there).await? {
        session.batch(&in_schema("CREATE SCHEMA {s}", schema)).await?;
    }
    for step in &STEPS[done..] {
        session.batch(&in_schema(step, schema)).await?;
    }
    let id = match found {
        Some(found) => {
            let update = format!("UPDATE {{s}}.store SET layout = {}", STEPS.len());
            session.batch(&in_schema(&update, schema)).await?;
            found.id
        }
        None => {
            let id = KeeperId::random().to_string();
            session.batch(&in_schema(&insert(&id), schema)).await?;
            id
        }
    };
    session.batch("COMMIT").await?;
    Ok(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sql_for_somebody_else_names_everything_as_it_is() {
        let sql = sql("locks", "a\"b");
        assert!(sql.contains("CREATE SCHEMA IF NOT EXISTS \"locks\";"), "{sql}");
        assert!(sql.contains("GRANT USAGE ON SCHEMA \"locks\" TO \"a\"\"b\";"), "{sql}");
        assert!(sql.contains("\"locks\".watcher TO \"a\"\"b\";") && !sql.contains('{'), "{sql}");
        for name in NAMES {
            assert!(STEPS.concat().contains(&format!("CREATE TABLE {{s}}.{name} (")), "{name}");
        }
        assert_eq!(STEPS.concat().matches("CREATE TABLE").count(), NAMES.len());
    }
}
