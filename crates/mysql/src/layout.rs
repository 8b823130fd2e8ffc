//! The tables and their version, and the way in which many processes make them at once.
//!
//! The SQL of the layout must always make the same tables: databases have them.

use lockkeeper_core::{KeeperId, StoreError, StoreErrorKind};

use crate::{
    codec::{number, text},
    session::Session,
    settings::Settings,
    trouble::{self, corrupt, explain},
};

/// The version of the layout.
const VERSION: i64 = 1;

/// `{p}` is the prefix. Names are bytes: they are compared byte for byte in any collation. Times are microseconds
/// since 1970 on the server's clock. A keeper is 16 bytes.
///
/// `resource` has the rows that transactions lock. The row of a name stays when the name is free, so a lock that nobody
/// waits for is one row that is updated. `high_water` is its highest grant number, `used` the time of the last write,
/// `moved` when its holders last changed, `ends` when the holder in this row will have ended, and `fresh` the keeper of
/// that holder until it has confirmed the grant. Other holders and all waiters are in `entry`, in slots that are used
/// again; `turn` is the order of a waiter, and 0 for holders and empty slots. `latch` and `fence` are locked in the
/// same way.
///
/// `floor` is raised whenever rows of free names are removed: numbers are given above it. The row of `store` is made
/// last.
const TABLES: &[&str] = &[
    "CREATE TABLE IF NOT EXISTS {p}store (
    only_one TINYINT NOT NULL PRIMARY KEY,
    id VARBINARY(32) NOT NULL,
    layout INT NOT NULL,
    floor BIGINT NOT NULL,
    swept BIGINT NOT NULL
) ENGINE = InnoDB",
    "CREATE TABLE IF NOT EXISTS {p}resource (
    name VARBINARY(512) NOT NULL PRIMARY KEY,
    high_water BIGINT NOT NULL DEFAULT 0,
    capacity BIGINT NOT NULL DEFAULT 0,
    used BIGINT NOT NULL DEFAULT 0,
    moved BIGINT NOT NULL DEFAULT 0,
    ends BIGINT NOT NULL DEFAULT 0,
    fresh BINARY(16),
    holder MEDIUMBLOB
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC",
    "CREATE TABLE IF NOT EXISTS {p}entry (
    name VARBINARY(512) NOT NULL,
    slot INT NOT NULL,
    turn BIGINT NOT NULL,
    keeper BINARY(16),
    ends BIGINT NOT NULL,
    fresh BINARY(16),
    entry MEDIUMBLOB,
    PRIMARY KEY (name, slot)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC",
    "CREATE TABLE IF NOT EXISTS {p}tombstone (
    contender VARBINARY(64) NOT NULL PRIMARY KEY,
    until BIGINT NOT NULL,
    KEY until (until)
) ENGINE = InnoDB",
    "CREATE TABLE IF NOT EXISTS {p}latch (
    name VARBINARY(512) NOT NULL PRIMARY KEY,
    high_water BIGINT NOT NULL DEFAULT 0,
    used BIGINT NOT NULL DEFAULT 0,
    remaining BIGINT,
    initial BIGINT,
    opened BIGINT,
    born BIGINT
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC",
    "CREATE TABLE IF NOT EXISTS {p}counted (
    op VARBINARY(64) NOT NULL PRIMARY KEY,
    until BIGINT NOT NULL,
    answer BIGINT NOT NULL,
    remaining BIGINT NOT NULL,
    initial BIGINT NOT NULL,
    opened BIGINT NOT NULL,
    born BIGINT NOT NULL,
    KEY until (until)
) ENGINE = InnoDB",
    "CREATE TABLE IF NOT EXISTS {p}fence (
    name VARBINARY(512) NOT NULL PRIMARY KEY,
    highest BIGINT NOT NULL DEFAULT 0,
    used BIGINT NOT NULL DEFAULT 0
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC",
];

/// The names of the tables, without their prefix.
const NAMES: [&str; 7] = ["store", "resource", "entry", "tombstone", "latch", "counted", "fence"];

/// The account that gets the rights: a user, and the host from which it connects.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Account {
    pub(crate) user: String,
    pub(crate) host: String,
}

/// The table for the record of a member of a quorum. It is made when the store is first asked to be one.
pub(crate) const MEMBER: &str = "CREATE TABLE IF NOT EXISTS {p}member (
    only_one TINYINT NOT NULL PRIMARY KEY,
    record MEDIUMBLOB NOT NULL
) ENGINE = InnoDB";

/// The SQL that makes the store in a database, if it is not there, and lets a user use it. Somebody with the rights
/// runs it.
pub(crate) fn sql(settings: &Settings, account: &Account) -> String {
    let quoted = |name: &str| format!("`{}`", name.replace('`', "``"));
    let database = quoted(&settings.database);
    let mut text = format!("CREATE DATABASE IF NOT EXISTS {database};\nUSE {database};\n");
    for table in TABLES.iter().chain([&MEMBER]) {
        text += &format!("{table};\n");
    }
    text += &format!("{};\n", insert(&KeeperId::random().to_string()));
    let account = format!("{}@{}", quoted(&account.user), quoted(&account.host));
    for name in NAMES.iter().chain([&"member"]) {
        text += &format!("GRANT SELECT, INSERT, UPDATE, DELETE ON {database}.{{p}}{name} TO {account};\n");
    }
    text.replace("{p}", &settings.prefix)
}

fn insert(id: &str) -> String {
    format!("INSERT IGNORE INTO {{p}}store VALUES (1, '{id}', {VERSION}, 0, 0)")
}

/// Makes the tables if they are not there; returns the store's own id.
pub(crate) async fn settle(session: &Session, settings: &Settings) -> Result<String, StoreError> {
    if let Some(id) = found(session, settings).await? {
        return Ok(id);
    }
    // Each statement is a transaction of its own, and finds the tables that others have made meanwhile.
    let mut packet = String::from("SET lock_wait_timeout = 10");
    for table in TABLES {
        packet += &format!("; {table}");
    }
    packet += &format!("; {}; SET lock_wait_timeout = 2", insert(&KeeperId::random().to_string()));
    if let Err(failed) = session.run(&session.statements.in_tables(&packet)).await {
        return Err(denied(failed.error, session, settings).await);
    }
    found(session, settings).await?.ok_or_else(|| corrupt(no_row(settings)))
}

/// Tells a user without the right to make the tables, or to use them, which SQL to run.
async fn denied(error: mysql_async::Error, session: &Session, settings: &Settings) -> StoreError {
    if !matches!(trouble::code(&error), Some(1044 | 1142 | 1143 | 1227)) {
        return explain(error).not_applied();
    }
    let message = format!(
        "this user may not make or use the tables of the store; run this SQL, which `lockkeeper schema --store URL` \
         prints, as somebody who may, or name another user or prefix= in the URL:\n{}",
        sql(settings, &account(session, settings).await)
    );
    StoreError::new(StoreErrorKind::Denied, message).not_applied().with_source(error)
}

/// Returns the account of this session, which the server knows by its name and host.
async fn account(session: &Session, settings: &Settings) -> Account {
    let sets = session.run("SELECT CURRENT_USER()").await.unwrap_or_default();
    let said = sets.first().and_then(|rows| rows.first()).and_then(|row| text(row, 0).ok().flatten());
    let (user, host) = said.and_then(|said| said.rsplit_once('@')).unwrap_or_default();
    if user.is_empty() {
        return Account::from_anywhere(settings.user.as_deref().unwrap_or_default());
    }
    Account { user: user.to_owned(), host: host.to_owned() }
}

impl Account {
    /// The account of a user that may connect from everywhere.
    pub(crate) fn from_anywhere(user: &str) -> Self {
        Self { user: user.to_owned(), host: "%".to_owned() }
    }
}

fn no_row(settings: &Settings) -> String {
    format!("the table {}store has no row; drop the tables, or restore them", settings.prefix)
}

/// The id of the store; `None` if there is none yet.
async fn found(session: &Session, settings: &Settings) -> Result<Option<String>, StoreError> {
    let read = session.statements.in_tables("SELECT id, layout FROM {p}store");
    let sets = match session.run(&read).await {
        Ok(sets) => sets,
        // There is no such table.
        Err(failed) if trouble::code(&failed.error) == Some(1146) => return Ok(None),
        Err(failed) => return Err(denied(failed.error, session, settings).await),
    };
    let Some(row) = sets.first().and_then(|rows| rows.first()) else { return Ok(None) };
    let (id, layout) = (text(row, 0)?.unwrap_or_default(), number(row, 1)?);
    if layout != VERSION {
        return Err(corrupt(format!(
            "the tables have layout {layout}, and this program knows layout {VERSION}; use a newer version"
        )));
    }
    check_engine(session, settings).await?;
    Ok(Some(id.to_owned()))
}

/// Refuses tables of another engine: without row locks and transactions, no lock is exclusive.
async fn check_engine(session: &Session, settings: &Settings) -> Result<(), StoreError> {
    let names: Vec<String> = NAMES.iter().map(|name| format!("'{{p}}{name}'")).collect();
    let read = format!(
        "SELECT COUNT(*) FROM information_schema.tables WHERE table_schema = DATABASE() AND engine <> 'InnoDB' \
         AND table_name IN ({})",
        names.join(", ")
    );
    let sets = session.run(&session.statements.in_tables(&read)).await;
    let sets = sets.map_err(|failed| explain(failed.error).not_applied())?;
    let others = sets.first().and_then(|rows| rows.first()).map_or(Ok(0), |row| number(row, 0))?;
    if others == 0 {
        return Ok(());
    }
    Err(corrupt(format!(
        "{others} of the tables {}* are not of the engine InnoDB, so that no row could be locked; convert them with \
         ALTER TABLE … ENGINE = InnoDB",
        settings.prefix
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sql_for_somebody_else_names_everything_as_it_is() {
        let settings = Settings::parse("mysql://a%60b@host/my%20shop?prefix=app_").expect("a good URL");
        let sql = sql(&settings, &Account::from_anywhere("a`b"));
        assert!(sql.starts_with("CREATE DATABASE IF NOT EXISTS `my shop`;\nUSE `my shop`;\n"), "{sql}");
        assert!(
            sql.contains("GRANT SELECT, INSERT, UPDATE, DELETE ON `my shop`.app_fence TO `a``b`@`%`;"),
            "{sql}"
        );
        assert_eq!((TABLES.len(), sql.contains('{')), (NAMES.len(), false));
        for (table, name) in TABLES.iter().zip(NAMES) {
            assert!(table.starts_with(&format!("CREATE TABLE IF NOT EXISTS {{p}}{name} (")), "{table}");
        }
    }
}
