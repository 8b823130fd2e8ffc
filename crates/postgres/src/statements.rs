//! The statements that requests send, sorted by their purpose. `{s}` is the schema, in quotes.
//!
//! Rows are locked in order of name, and the values that decide are read in a later statement than the one that locks:
//! at READ COMMITTED each statement sees all that was committed before it began. All writes of a transaction are one
//! statement, so that no part of them can be written without the rest, and it fails if it did not find the locked rows.

use lockkeeper_core::Token;
use tokio_postgres::types::Type;

/// One of the statements.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Statement {
    Lock,
    LockFree,
    Read,
    Make,
    WriteRows,
    WriteAll,
    Touch,
    Notify,
    LockLatch,
    ReadLatch,
    MakeLatch,
    WriteLatch,
    TouchLatch,
    LockFence,
    ReadFence,
    MakeFence,
    WriteFence,
    Watch,
    WatchLatch,
    Unwatch,
    Names,
    Latches,
    StartSweep,
    SweepPage,
    SweepResources,
    LockFreedLatches,
    SweepLatches,
    SweepOld,
}

/// How many statements there are.
pub(crate) const COUNT: usize = Statement::SweepOld as usize + 1;

/// Locks names, and waits for those that others have locked.
const LOCK: &str = "SELECT name FROM {s}.resource WHERE name = ANY ($1) ORDER BY name FOR UPDATE";

/// Locks those of the names that nobody has locked.
const LOCK_FREE: &str =
    "SELECT name FROM {s}.resource WHERE name = ANY ($1) ORDER BY name FOR UPDATE SKIP LOCKED";

/// Stands for the header that `Origin::header` reads: the transaction, whether commits wait for replicas, the store id.
const HEADER: &str = "{header}";
const HEADER_SQL: &str = "coalesce(pg_current_xact_id_if_assigned()::text, '-')
    || CASE current_setting('synchronous_standby_names') WHEN '' THEN ' alone ' ELSE ' replicated ' END || id";

/// Stands for the server process that answers; 0 if it is a replica.
const BACKEND: &str = "{backend}";
const BACKEND_SQL: &str = "CASE WHEN pg_is_in_recovery() THEN 0 ELSE pg_backend_pid() END";

/// Everything that a step needs, at one moment. The parts: 0 the clock, the floor, and the server process that answers;
/// 1 rows of resources; 2 their entries, empty slots included; 3 tombstones; 4 keepers that watch.
const READ: &str = "
SELECT 0 AS part, NULL::bytea AS name, {backend} AS slot, floor AS high_water,
    (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS number, {header} AS entry FROM {s}.store
UNION ALL SELECT 1, name, 0, high_water, capacity, holder FROM {s}.resource WHERE name = ANY ($1)
UNION ALL SELECT 2, name, slot, 0, 0, entry FROM {s}.entry WHERE name = ANY ($1)
UNION ALL SELECT 3, NULL, 0, 0, until, contender FROM {s}.tombstone WHERE contender = ANY ($2)
UNION ALL SELECT 4, name, 0, 0, 0, keeper FROM {s}.watcher WHERE name = ANY ($1) AND topic = 'holders'";

/// Makes rows that can be locked. It is a transaction of its own, which a crash may undo.
const MAKE: &str = "
WITH limits AS MATERIALIZED (
    SELECT set_config('synchronous_commit', 'off', true), set_config('lock_timeout', '60ms', true)
)
INSERT INTO {s}.resource (name) SELECT name FROM limits, unnest($1::bytea[]) AS n(name)
ON CONFLICT DO NOTHING";

/// Writes rows of resources. Dividing by zero undoes the transaction if it did not find them all.
const WRITE_ROWS: &str = "
WITH r AS (
    UPDATE {s}.resource AS t SET high_water = n.high_water, capacity = n.capacity, used = $6, ends = n.ends,
        holder = n.holder
    FROM unnest($1::bytea[], $2::bigint[], $3::bigint[], $4::bigint[], $5::text[])
        AS n(name, high_water, capacity, ends, holder)
    WHERE t.name = n.name RETURNING 1
)
SELECT 1 / (count(*) = cardinality($1::bytea[]))::integer,
    CASE WHEN $7 THEN set_config('synchronous_commit', 'off', true) END FROM r";

/// Writes rows of resources, entries and tombstones.
const WRITE_ALL: &str = "
WITH r AS (
    UPDATE {s}.resource AS t SET high_water = n.high_water, capacity = n.capacity, used = $6, ends = n.ends,
        holder = n.holder
    FROM unnest($1::bytea[], $2::bigint[], $3::bigint[], $4::bigint[], $5::text[])
        AS n(name, high_water, capacity, ends, holder)
    WHERE t.name = n.name RETURNING 1
), e AS (
    INSERT INTO {s}.entry (name, slot, ends, entry)
    SELECT * FROM unnest($8::bytea[], $9::integer[], $10::bigint[], $11::text[])
    ON CONFLICT (name, slot) DO UPDATE SET ends = excluded.ends, entry = excluded.entry RETURNING 1
), g AS (
    INSERT INTO {s}.tombstone AS t (contender, until) SELECT * FROM unnest($12::text[], $13::bigint[])
    ON CONFLICT (contender) DO UPDATE SET until = greatest(t.until, excluded.until) RETURNING 1
)
SELECT 1 / ((SELECT count(*) FROM r) = cardinality($1::bytea[])
        AND (SELECT count(*) FROM e) = cardinality($8::bytea[])
        AND (SELECT count(*) FROM g) = cardinality($12::text[]))::integer,
    CASE WHEN $7 THEN set_config('synchronous_commit', 'off', true) END";

/// Writes what is there already, to have a commit that waits for replicas: an earlier one, whose wait was cancelled, is
/// visible before they have it.
const TOUCH: &str = "
WITH r AS (UPDATE {s}.resource SET used = $2 WHERE name = ANY ($1) RETURNING 1)
SELECT 1 / (count(*) = cardinality($1::bytea[]))::integer FROM r";
const TOUCH_LATCH: &str = "
WITH r AS (UPDATE {s}.latch SET used = $2 WHERE name = $1 RETURNING 1) SELECT 1 / (count(*) = 1)::integer FROM r";

/// Tells keepers of a transaction, if it was committed. It is a transaction of its own, whose warnings nobody wants:
/// one that comes in the flight of a commit would seem to be about that. If commits wait for replicas, the server says
/// "committed" also of a transaction whose wait was cancelled. Then the messages are sent only once the commit was
/// answered without a warning, which the fourth parameter says.
const NOTIFY: &str = "
SELECT set_config('synchronous_commit', 'off', true), set_config('client_min_messages', 'error', true),
    pg_notify(n.channel, n.message)
FROM unnest($1::text[], $2::text[]) AS n(channel, message)
WHERE pg_xact_status($3::text::xid8) = 'committed' AND ($4 OR current_setting('synchronous_standby_names') = '')";

const LOCK_LATCH: &str = "SELECT name FROM {s}.latch WHERE name = $1 FOR UPDATE";

/// The parts: 0 the clock, the floor, when the server started, and the server process that answers; 1 the row; 2 the
/// remembered answer; 4 keepers that watch.
const READ_LATCH: &str = "
SELECT 0 AS part, floor AS high_water, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS number,
    (extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint AS remaining, 0::bigint AS initial,
    0::bigint AS opened, ({backend})::bigint AS born,
    {header} AS word FROM {s}.store
UNION ALL SELECT 1, high_water, 0, remaining, initial, opened, born, NULL FROM {s}.latch WHERE name = $1
UNION ALL SELECT 2, answer, until, remaining, initial, opened, born, NULL FROM {s}.counted WHERE op = $2
UNION ALL SELECT 4, 0, 0, 0, 0, 0, 0, keeper FROM {s}.watcher WHERE name = $1 AND topic = 'latch'";

const MAKE_LATCH: &str = "
WITH limits AS MATERIALIZED (
    SELECT set_config('synchronous_commit', 'off', true), set_config('lock_timeout', '500ms', true)
)
INSERT INTO {s}.latch (name) SELECT $1 FROM limits ON CONFLICT DO NOTHING";

const WRITE_LATCH: &str = "
WITH r AS (
    UPDATE {s}.latch SET high_water = $2, used = $3, remaining = $4, initial = $5, opened = $6, born = $7
    WHERE name = $1 RETURNING 1
), c AS (
    INSERT INTO {s}.counted VALUES ($8, $9, $10, $11, $12, $13, $14)
    ON CONFLICT (op) DO UPDATE SET until = excluded.until, answer = excluded.answer,
        remaining = excluded.remaining, initial = excluded.initial, opened = excluded.opened, born = excluded.born
    RETURNING 1
)
SELECT 1 / ((SELECT count(*) FROM r) = 1 AND (SELECT count(*) FROM c) = 1)::integer";

const LOCK_FENCE: &str = "SELECT name FROM {s}.fence WHERE name = $1 FOR UPDATE";
const READ_FENCE: &str = "SELECT highest, {backend}, {header} FROM {s}.store, {s}.fence WHERE name = $1";
const MAKE_FENCE: &str = "
WITH limits AS MATERIALIZED (
    SELECT set_config('synchronous_commit', 'off', true), set_config('lock_timeout', '500ms', true)
)
INSERT INTO {s}.fence (name) SELECT $1 FROM limits ON CONFLICT DO NOTHING";
const WRITE_FENCE: &str = "
WITH r AS (UPDATE {s}.fence SET highest = $2 WHERE name = $1 RETURNING 1)
SELECT 1 / (count(*) = 1)::integer FROM r";

/// Adds a watcher in a transaction that has locked the resource: a change is told to it, or was committed before.
const WATCH: &str = "
WITH w AS (
    INSERT INTO {s}.watcher (name, topic, keeper, until)
    SELECT name, 'holders', $2, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint + $3
    FROM {s}.resource WHERE name = $1
    ON CONFLICT (name, topic, keeper) DO UPDATE SET until = excluded.until RETURNING 1
)
SELECT 1 / (count(*) = 1)::integer, set_config('synchronous_commit', 'off', true) FROM w";
const WATCH_LATCH: &str = "
WITH w AS (
    INSERT INTO {s}.watcher (name, topic, keeper, until)
    SELECT name, 'latch', $2, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint + $3
    FROM {s}.latch WHERE name = $1
    ON CONFLICT (name, topic, keeper) DO UPDATE SET until = excluded.until RETURNING 1
)
SELECT 1 / (count(*) = 1)::integer, set_config('synchronous_commit', 'off', true) FROM w";
const UNWATCH: &str = "
WITH w AS (DELETE FROM {s}.watcher WHERE name = $1 AND topic = $2 AND keeper = $3 RETURNING 1)
SELECT count(*), set_config('synchronous_commit', 'off', true) FROM w";

/// Names that are held or waited for, from a name on, in order.
const NAMES: &str = "
SELECT name FROM {s}.resource AS r WHERE name >= $1 AND name > $2 AND (holder IS NOT NULL
    OR EXISTS (SELECT FROM {s}.entry AS e WHERE e.name = r.name AND e.entry IS NOT NULL))
ORDER BY name LIMIT $3";

const LATCHES: &str = "
SELECT name, remaining, initial, opened, born FROM {s}.latch
WHERE name >= $1 AND name > $2 AND remaining IS NOT NULL ORDER BY name LIMIT $3";

/// Claims the next sweep: one keeper of all makes it. A clock that was set back does not stop sweeps. It also says
/// whether there are latches to remove, which were not used for the second time span, and tombstones, answers or
/// watchers whose time is over.
const START_SWEEP: &str = "
WITH c AS MATERIALIZED (SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS now)
UPDATE {s}.store SET swept = c.now FROM c WHERE swept NOT BETWEEN c.now - $1 AND c.now
RETURNING swept, EXISTS (SELECT FROM {s}.latch WHERE used < c.now - $2 AND remaining IS NULL),
    EXISTS (SELECT FROM {s}.tombstone WHERE until < c.now) OR EXISTS (SELECT FROM {s}.counted WHERE until < c.now)
        OR EXISTS (SELECT FROM {s}.watcher WHERE until < c.now)";

/// The next thousand names, in order, and no more, however many there are. The kinds: 1 names in which everything has
/// ended; 2 names that are free and were not used since the fourth time, or since the third and have empty slots; 0 the
/// last name if it is neither. Their kind is checked again when they are locked. Each row also says whether there may
/// be more names than these.
const SWEEP_PAGE: &str = "
WITH page AS MATERIALIZED (
    SELECT name, holder IS NOT NULL AS is_held, used, ends FROM {s}.resource WHERE name > $1 ORDER BY name LIMIT 1000
), found AS (
    SELECT p.name, CASE
        WHEN (is_held OR e.taken > 0) AND p.ends < $2 AND coalesce(e.last_ends < $2, true) THEN 1
        WHEN NOT is_held AND e.taken = 0 AND (used < $4 OR used < $3 AND e.empty > 0) THEN 2
        ELSE 0 END AS what
    FROM page AS p, LATERAL (
        SELECT count(*) FILTER (WHERE entry IS NOT NULL) AS taken, count(*) FILTER (WHERE entry IS NULL) AS empty,
            max(ends) FILTER (WHERE entry IS NOT NULL) AS last_ends
        FROM {s}.entry AS e WHERE e.name = p.name
    ) AS e
)
SELECT name, what, (SELECT count(*) = 1000 FROM page) FROM found WHERE what > 0 OR name = (SELECT name FROM page ORDER BY name DESC LIMIT 1)
ORDER BY name";

/// Removes empty slots of the names, and rows of those that are free and were not used since the second time. The floor
/// is raised to their highest number before anybody can make them anew. Numbers that were never granted raise nothing.
const SWEEP_RESOURCES: &str = "
WITH s AS (
    DELETE FROM {s}.entry WHERE name = ANY ($1) AND entry IS NULL RETURNING 1
), d AS (
    DELETE FROM {s}.resource AS r WHERE name = ANY ($1) AND holder IS NULL AND used < $2
        AND high_water BETWEEN 0 AND {highest}
        AND NOT EXISTS (SELECT FROM {s}.entry AS e WHERE e.name = r.name AND e.entry IS NOT NULL)
        AND NOT EXISTS (SELECT FROM {s}.watcher AS w WHERE w.name = r.name)
    RETURNING high_water
)
UPDATE {s}.store SET floor = greatest(floor, (SELECT max(high_water) FROM d))
WHERE (SELECT count(*) FROM d) > 0 AND (SELECT count(*) FROM s) >= 0";

/// Locks the next five hundred latches that are gone and were not used since the second time.
const LOCK_FREED_LATCHES: &str = "
SELECT name FROM {s}.latch WHERE name > $1 AND used < $2 AND remaining IS NULL
ORDER BY name LIMIT 500 FOR UPDATE SKIP LOCKED";
const SWEEP_LATCHES: &str = "
WITH d AS (
    DELETE FROM {s}.latch AS l WHERE name = ANY ($1) AND remaining IS NULL AND high_water BETWEEN 0 AND {highest}
        AND NOT EXISTS (SELECT FROM {s}.watcher AS w WHERE w.name = l.name)
    RETURNING high_water
)
UPDATE {s}.store SET floor = greatest(floor, (SELECT max(high_water) FROM d)) WHERE (SELECT count(*) FROM d) > 0";

/// Removes some tombstones, answers and watchers whose time is over, and says how many.
const SWEEP_OLD: &str = "
WITH limits AS MATERIALIZED (SELECT set_config('synchronous_commit', 'off', true)), g AS (
    DELETE FROM {s}.tombstone WHERE contender IN (SELECT contender FROM {s}.tombstone WHERE until < $1 LIMIT 5000)
        AND until < $1 RETURNING 1
), c AS (
    DELETE FROM {s}.counted WHERE op IN (SELECT op FROM {s}.counted WHERE until < $1 LIMIT 5000)
        AND until < $1 RETURNING 1
), w AS (DELETE FROM {s}.watcher WHERE until < $1 RETURNING 1)
SELECT (SELECT count(*) FROM g) + (SELECT count(*) FROM c) + (SELECT count(*) FROM w) FROM limits";

impl Statement {
    /// All of them, in the order of their numbers.
    pub(crate) const ALL: [Self; COUNT] = [
        Self::Lock,
        Self::LockFree,
        Self::Read,
        Self::Make,
        Self::WriteRows,
        Self::WriteAll,
        Self::Touch,
        Self::Notify,
        Self::LockLatch,
        Self::ReadLatch,
        Self::MakeLatch,
        Self::WriteLatch,
        Self::TouchLatch,
        Self::LockFence,
        Self::ReadFence,
        Self::MakeFence,
        Self::WriteFence,
        Self::Watch,
        Self::WatchLatch,
        Self::Unwatch,
        Self::Names,
        Self::Latches,
        Self::StartSweep,
        Self::SweepPage,
        Self::SweepResources,
        Self::LockFreedLatches,
        Self::SweepLatches,
        Self::SweepOld,
    ];

    /// Its text, for tables in this schema.
    pub(crate) fn text(self, schema: &str) -> String {
        let text = self.parts().0.replace(HEADER, HEADER_SQL).replace(BACKEND, BACKEND_SQL);
        let text = text.replace("{highest}", &(Token::NUMBER_LIMIT - 1).to_string());
        text.replace("{s}", &format!("\"{schema}\""))
    }

    /// Whether it waits for a row that others have locked.
    pub(crate) fn waits(self) -> bool {
        matches!(self, Self::Lock | Self::LockLatch | Self::LockFence)
    }

    /// Its text, with `{s}` for the schema, and the types of its parameters.
    pub(crate) fn parts(self) -> (&'static str, &'static [Type]) {
        const NAMES_OF: &[Type] = &[Type::BYTEA_ARRAY];
        const NAME: &[Type] = &[Type::BYTEA];
        const TIME: &[Type] = &[Type::INT8];
        const PAGE: &[Type] = &[Type::BYTEA, Type::BYTEA, Type::INT8];
        match self {
            Self::Lock => (LOCK, NAMES_OF),
            Self::LockFree => (LOCK_FREE, NAMES_OF),
            Self::Read => (READ, &[Type::BYTEA_ARRAY, Type::TEXT_ARRAY]),
            Self::Make => (MAKE, NAMES_OF),
            Self::WriteRows => (WRITE_ROWS, ROWS),
            Self::WriteAll => (WRITE_ALL, EVERYTHING),
            Self::Touch => (TOUCH, &[Type::BYTEA_ARRAY, Type::INT8]),
            Self::Notify => (NOTIFY, &[Type::TEXT_ARRAY, Type::TEXT_ARRAY, Type::TEXT, Type::BOOL]),
            Self::LockLatch => (LOCK_LATCH, NAME),
            Self::ReadLatch => (READ_LATCH, &[Type::BYTEA, Type::TEXT]),
            Self::MakeLatch => (MAKE_LATCH, NAME),
            Self::WriteLatch => (WRITE_LATCH, LATCH),
            Self::TouchLatch => (TOUCH_LATCH, &[Type::BYTEA, Type::INT8]),
            Self::LockFence => (LOCK_FENCE, NAME),
            Self::ReadFence => (READ_FENCE, NAME),
            Self::MakeFence => (MAKE_FENCE, NAME),
            Self::WriteFence => (WRITE_FENCE, &[Type::BYTEA, Type::INT8]),
            Self::Watch => (WATCH, &[Type::BYTEA, Type::TEXT, Type::INT8]),
            Self::WatchLatch => (WATCH_LATCH, &[Type::BYTEA, Type::TEXT, Type::INT8]),
            Self::Unwatch => (UNWATCH, &[Type::BYTEA, Type::TEXT, Type::TEXT]),
            Self::Names => (NAMES, PAGE),
            Self::Latches => (LATCHES, PAGE),
            Self::StartSweep => (START_SWEEP, &[Type::INT8, Type::INT8]),
            Self::SweepPage => (SWEEP_PAGE, &[Type::BYTEA, Type::INT8, Type::INT8, Type::INT8]),
            Self::SweepResources => (SWEEP_RESOURCES, &[Type::BYTEA_ARRAY, Type::INT8]),
            Self::LockFreedLatches => (LOCK_FREED_LATCHES, &[Type::BYTEA, Type::INT8]),
            Self::SweepLatches => (SWEEP_LATCHES, NAMES_OF),
            Self::SweepOld => (SWEEP_OLD, TIME),
        }
    }
}

const ROWS: &[Type] = &[
    Type::BYTEA_ARRAY,
    Type::INT8_ARRAY,
    Type::INT8_ARRAY,
    Type::INT8_ARRAY,
    Type::TEXT_ARRAY,
    Type::INT8,
    Type::BOOL,
];

const EVERYTHING: &[Type] = &[
    Type::BYTEA_ARRAY,
    Type::INT8_ARRAY,
    Type::INT8_ARRAY,
    Type::INT8_ARRAY,
    Type::TEXT_ARRAY,
    Type::INT8,
    Type::BOOL,
    Type::BYTEA_ARRAY,
    Type::INT4_ARRAY,
    Type::INT8_ARRAY,
    Type::TEXT_ARRAY,
    Type::TEXT_ARRAY,
    Type::INT8_ARRAY,
];

const LATCH: &[Type] = &[
    Type::BYTEA,
    Type::INT8,
    Type::INT8,
    Type::INT8,
    Type::INT8,
    Type::INT8,
    Type::INT8,
    Type::TEXT,
    Type::INT8,
    Type::INT8,
    Type::INT8,
    Type::INT8,
    Type::INT8,
    Type::INT8,
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_statement_has_its_number_and_the_types_of_its_parameters() {
        for (number, statement) in Statement::ALL.into_iter().enumerate() {
            assert_eq!(statement as usize, number);
            let (text, types) = statement.parts();
            let has = |parameter: usize| text.contains(&format!("${parameter}"));
            assert!((1..=types.len()).all(has) && !has(types.len() + 1), "{statement:?}");
        }
    }
}
