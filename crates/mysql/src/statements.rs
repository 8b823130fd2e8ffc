//! The statements that requests send, one function for each use. They are made of numbers and hexadecimal literals
//! only, so nothing in them can be anything else than a value.
//!
//! Rows are locked in order of name, and the rows that decide are read in a later statement than the one that locks: at
//! READ COMMITTED each statement sees what was committed before it began, and has a clock of its own.

use std::{fmt::Write as _, sync::Arc, time::Duration};

use lockkeeper_core::{ContenderId, KeeperId, Name};

use crate::server::Dialect;

/// The server's clock, in microseconds since 1970. It is that of the beginning of a statement.
pub(crate) const CLOCK: &str = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01 00:00:00', UTC_TIMESTAMP(6))";

/// For how long a transaction waits for a row that another one has locked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum LockWait {
    /// For the usual time of a transaction: others wait behind this one.
    Brief,
    /// Long enough to have its turn among many.
    Whole,
}

impl LockWait {
    fn time(self) -> Duration {
        match self {
            Self::Brief => Duration::from_millis(30),
            Self::Whole => Duration::from_millis(250),
        }
    }
}

/// The way to treat rows that others have locked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Busy {
    /// They are left out.
    Skipped,
    /// They are waited for.
    Awaited(LockWait),
}

/// The tables whose rows are locked by name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Table {
    Resource,
    Latch,
    Fence,
}

impl Table {
    fn word(self) -> &'static str {
        match self {
            Self::Resource => "resource",
            Self::Latch => "latch",
            Self::Fence => "fence",
        }
    }
}

/// Makes statements for one server.
#[derive(Clone, Debug)]
pub(crate) struct Statements {
    prefix: Arc<str>,
    dialect: Dialect,
    wait_timeout: u64,
}

/// Bytes as a literal.
pub(crate) struct Hex<'a>(pub(crate) &'a [u8]);

impl std::fmt::Display for Hex<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        f.write_str("x'")?;
        // Most of the text consists of these, and the machinery of formatting costs ten times as much.
        let mut digits = [0; 256];
        for bytes in self.0.chunks(digits.len() / 2) {
            for (pair, byte) in digits.chunks_exact_mut(2).zip(bytes) {
                pair.copy_from_slice(&[DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]]);
            }
            let text = str::from_utf8(&digits[..2 * bytes.len()]).map_err(|_| std::fmt::Error)?;
            f.write_str(text)?;
        }
        f.write_str("'")
    }
}

/// A name as a literal.
pub(crate) fn literal(name: &Name) -> Hex<'_> {
    Hex(name.as_str().as_bytes())
}

/// Literals with commas between.
fn list<T>(items: impl IntoIterator<Item = T>, mut write: impl FnMut(&mut String, T)) -> String {
    let mut text = String::new();
    for item in items {
        if !text.is_empty() {
            text.push_str(", ");
        }
        write(&mut text, item);
    }
    text
}

/// Names with commas between.
pub(crate) fn literals<'a>(names: impl IntoIterator<Item = &'a Name>) -> String {
    // Writing to a string cannot fail.
    list(names, |text, name| _ = write!(text, "{}", literal(name)))
}

/// More contenders than these are looked up as one range.
const A_FEW: usize = 4;

/// Finds the tombstones of contenders, and perhaps others between them: there are few of them at a time, and to read
/// one range costs the server less than to read the text of many ids. Those whose time has passed decide nothing.
fn tombstones_of(contenders: &[ContenderId]) -> String {
    let mut texts: Vec<String> = contenders.iter().map(ContenderId::to_string).collect();
    let literal = |text: &mut String, id: &String| _ = write!(text, "{}", Hex(id.as_bytes()));
    if texts.len() <= A_FEW {
        return format!("contender IN ({})", list(&texts, literal));
    }
    // The server compares them in this order.
    texts.sort_unstable();
    let (first, last) = (&texts[0], &texts[texts.len() - 1]);
    format!("contender BETWEEN {} AND {} AND until >= {CLOCK}", Hex(first.as_bytes()), Hex(last.as_bytes()))
}

/// Rows of resources, as a part of a read.
const RESOURCES: &str =
    "SELECT 1, name, 0, high_water, capacity, moved, holder FROM {p}resource FORCE INDEX (PRIMARY)";

impl Statements {
    pub(crate) fn new(prefix: Arc<str>, dialect: Dialect, wait_timeout: u64) -> Self {
        Self { prefix, dialect, wait_timeout }
    }

    /// `{p}` in a text is the prefix.
    pub(crate) fn in_tables(&self, text: &str) -> String {
        text.replace("{p}", &self.prefix)
    }

    /// The first flight: begins, locks and reads. It begins with a rollback, because the beginning of a transaction
    /// commits one that was left open. The server ends a client that stops before the second flight: MariaDB is told so
    /// once, when the session begins. Each statement has an answer of its own on the wire, so there are as few as can
    /// be.
    pub(crate) fn first_flight(&self, lock: &str, read: &str) -> String {
        let begin = match self.dialect {
            // The chain is a new transaction, whether there was one to roll back or not.
            Dialect::MariaDb => "ROLLBACK AND CHAIN",
            Dialect::MySql => "ROLLBACK; SET wait_timeout = 1; START TRANSACTION READ WRITE",
        };
        format!("{begin}; {lock}; {read}")
    }

    /// The second flight: writes and commits.
    pub(crate) fn second_flight(&self, writes: &[String]) -> String {
        format!("{}; {}", writes.join("; "), self.end("COMMIT"))
    }

    /// Ends the transaction instead of a second flight.
    pub(crate) fn roll_back(&self) -> String {
        self.end("ROLLBACK")
    }

    /// Ends a transaction, and with it the limit of a client that stops.
    fn end(&self, how: &str) -> String {
        match self.dialect {
            Dialect::MariaDb => how.to_owned(),
            Dialect::MySql => format!("{how}; SET wait_timeout = {}", self.wait_timeout),
        }
    }

    /// Locks rows by name. The primary key is forced: a scan would lock the rows of others.
    pub(crate) fn lock<'a>(
        &self,
        table: Table,
        names: impl IntoIterator<Item = &'a Name>,
        busy: Busy,
    ) -> String {
        self.lock_and_read("name", table, names, busy)
    }

    /// Locks rows of resources by name, and reads them: the values that the statement has read of a locked row stay so.
    /// A name without a row, and one that was skipped, are not among them.
    pub(crate) fn lock_resources<'a>(&self, names: impl IntoIterator<Item = &'a Name>, busy: Busy) -> String {
        self.lock_and_read("name, high_water, capacity, moved, holder", Table::Resource, names, busy)
    }

    fn lock_and_read<'a>(
        &self,
        columns: &str,
        table: Table,
        names: impl IntoIterator<Item = &'a Name>,
        busy: Busy,
    ) -> String {
        let (prefix, table, names) = (&self.prefix, table.word(), literals(names));
        let lock = format!(
            "SELECT {columns} FROM {prefix}{table} FORCE INDEX (PRIMARY) WHERE name IN ({names}) ORDER BY name FOR UPDATE"
        );
        match busy {
            Busy::Skipped => format!("{lock} SKIP LOCKED"),
            Busy::Awaited(wait) => self.bounded(&lock, wait),
        }
    }

    /// A statement that does not wait for long.
    fn bounded(&self, statement: &str, wait: LockWait) -> String {
        match self.dialect {
            Dialect::MariaDb => {
                let seconds = wait.time().as_secs_f64();
                format!("SET STATEMENT max_statement_time = {seconds} FOR {statement}")
            }
            // The shortest time that such a server can be told is that of the connection, a second.
            Dialect::MySql => statement.to_owned(),
        }
    }

    /// Makes rows that can be locked. It is a transaction of its own: in another one, the lock that it takes on a row
    /// that is there already could end in a deadlock. Its time includes that of the disk.
    pub(crate) fn make<'a>(&self, table: Table, names: impl IntoIterator<Item = &'a Name>) -> String {
        let rows = list(names, |text, name| _ = write!(text, "({}, {CLOCK})", literal(name)));
        let insert = format!("INSERT IGNORE INTO {}{} (name, used) VALUES {rows}", self.prefix, table.word());
        format!("{}; {}", self.roll_back(), self.bounded(&insert, LockWait::Whole))
    }

    /// The state of the server just now, in words: whether it takes writes, the settings of this connection, for how
    /// many seconds its client may stop in a transaction, and the id in the row of table `store`. The text has a length
    /// of its own. Otherwise a union would cut it off, because the server takes switches for shorter than they are.
    fn state(&self) -> &'static str {
        match self.dialect {
            Dialect::MariaDb => {
                "CAST(CONCAT_WS(' ', @@global.read_only, @@autocommit, @@tx_isolation, @@idle_transaction_timeout, id) \
                 AS CHAR(128))"
            }
            Dialect::MySql => {
                "CAST(CONCAT_WS(' ', @@global.read_only, @@autocommit, @@transaction_isolation, 1, id) AS CHAR(128))"
            }
        }
    }

    /// Everything that a step needs, at one moment. The parts: 0 the clock, the floor, the state of the server and the
    /// store's id; 1 rows of resources; 2 their entries, empty slots included; 3 tombstones.
    pub(crate) fn read(&self, names: &[Name], contenders: &[ContenderId]) -> String {
        self.parts(names, contenders, RESOURCES)
    }

    /// Reads the same without rows of resources, which the statement before it has locked and read.
    pub(crate) fn read_rest(&self, names: &[Name], contenders: &[ContenderId]) -> String {
        self.parts(names, contenders, "")
    }

    /// Reads those of the names that have a row.
    pub(crate) fn existing<'a>(&self, names: impl IntoIterator<Item = &'a Name>) -> String {
        let (p, names) = (&self.prefix, literals(names));
        format!("SELECT name FROM {p}resource FORCE INDEX (PRIMARY) WHERE name IN ({names})")
    }

    fn parts(&self, names: &[Name], contenders: &[ContenderId], resources: &str) -> String {
        let (p, state) = (&self.prefix, self.state());
        let mut text = format!(
            "SELECT 0 AS part, x'' AS name, 0 AS slot, floor AS high_water, {CLOCK} AS number, 0 AS moved, {state} AS entry \
             FROM {p}store"
        );
        if !names.is_empty() {
            let names = literals(names);
            if !resources.is_empty() {
                _ = write!(text, " UNION ALL {} WHERE name IN ({names})", self.in_tables(resources));
            }
            _ = write!(
                text,
                " UNION ALL SELECT 2, name, slot, 0, 0, 0, entry FROM {p}entry FORCE INDEX (PRIMARY) WHERE name IN ({names})"
            );
        }
        if !contenders.is_empty() {
            _ = write!(
                text,
                " UNION ALL SELECT 3, contender, 0, 0, until, 0, NULL FROM {p}tombstone FORCE INDEX (PRIMARY) WHERE {}",
                tombstones_of(contenders)
            );
        }
        text
    }

    /// The facts that a keeper that waits needs, at one moment. The parts: 0 the clock; 1 per name, when its holders
    /// last changed and how many wait before this keeper; 2 grants of this keeper that it has not confirmed; 3 per
    /// latch, when it last changed.
    pub(crate) fn poll(&self, keeper: KeeperId, names: &[Name], latches: &[Name]) -> String {
        let (p, state) = (&self.prefix, self.state());
        let mut text = format!(
            "SELECT 0 AS part, x'' AS name, {CLOCK} AS moved, 0 AS ahead, {state} AS entry FROM {p}store"
        );
        if !names.is_empty() {
            let names = literals(names);
            _ = write!(
                text,
                " UNION ALL SELECT 1, r.name, r.moved, (SELECT COUNT(*) FROM {p}entry AS e WHERE e.name = r.name \
                 AND e.turn > 0 AND e.turn < (SELECT MIN(o.turn) FROM {p}entry AS o WHERE o.name = r.name \
                 AND o.turn > 0 AND o.keeper = x'{keeper}')), NULL \
                 FROM {p}resource AS r FORCE INDEX (PRIMARY) WHERE r.name IN ({names}) \
                 UNION ALL SELECT 2, name, 0, 0, holder FROM {p}resource FORCE INDEX (PRIMARY) WHERE name IN ({names}) \
                 AND fresh = x'{keeper}' \
                 UNION ALL SELECT 2, name, 0, 0, entry FROM {p}entry FORCE INDEX (PRIMARY) WHERE name IN ({names}) \
                 AND fresh = x'{keeper}'"
            );
        }
        if !latches.is_empty() {
            let latches = literals(latches);
            _ = write!(
                text,
                " UNION ALL SELECT 3, name, used, 0, NULL FROM {p}latch WHERE name IN ({latches})"
            );
        }
        text
    }

    /// Has the commit of a transaction reach the disk, although it changed nothing. Another transaction may have
    /// committed the rows that it read just now, and others see a commit before it is on disk.
    pub(crate) fn touch<'a>(
        &self,
        table: Table,
        names: impl IntoIterator<Item = &'a Name>,
        now: i64,
    ) -> String {
        let (p, table, names) = (&self.prefix, table.word(), literals(names));
        format!("UPDATE {p}{table} FORCE INDEX (PRIMARY) SET used = {now} WHERE name IN ({names})")
    }

    /// A transaction of its own that writes something, and changes nothing that anybody goes by: a tombstone of nobody gets
    /// another time. An update to equal values would write nothing. The row is this keeper's own, so keepers do not wait for
    /// each other, and no poll looks at it. The statement commits by itself, unless somebody has switched that off.
    pub(crate) fn write_for_nobody(&self, keeper: KeeperId) -> String {
        let (p, nobody) = (&self.prefix, ContenderId { keeper, seq: 0 }.to_string());
        let nobody = Hex(nobody.as_bytes());
        format!(
            "INSERT INTO {p}tombstone VALUES ({nobody}, {CLOCK}) ON DUPLICATE KEY UPDATE until = until + 1; COMMIT"
        )
    }

    /// A latch, and the remembered answer to an operation. The parts: 0 the clock and the floor; 1 the row; 2 the
    /// answer.
    pub(crate) fn read_latch(&self, name: &Name, op: ContenderId) -> String {
        let (p, state, name, op) = (&self.prefix, self.state(), literal(name), op.to_string());
        let op = Hex(op.as_bytes());
        format!(
            "SELECT 0 AS part, floor AS high_water, {CLOCK} AS number, 0 AS remaining, 0 AS initial, 0 AS opened, 0 AS born, \
             {state} AS word FROM {p}store \
             UNION ALL SELECT 1, high_water, 0, remaining, initial, opened, born, NULL FROM {p}latch WHERE name = {name} \
             UNION ALL SELECT 2, answer, until, remaining, initial, opened, born, NULL FROM {p}counted WHERE op = {op}"
        )
    }

    /// A fence, the clock, and the state of the server.
    pub(crate) fn read_fence(&self, name: &Name) -> String {
        let (p, state, name) = (&self.prefix, self.state(), literal(name));
        format!("SELECT highest, {CLOCK}, {state} FROM {p}store, {p}fence WHERE name = {name}")
    }

    /// Names that are held or waited for, after a name, in order.
    pub(crate) fn names(&self, from: &str, after: &[u8], limit: usize) -> String {
        let (p, from, after) = (&self.prefix, Hex(from.as_bytes()), Hex(after));
        format!(
            "SELECT name FROM {p}resource AS r WHERE name >= {from} AND name > {after} AND (holder IS NOT NULL OR EXISTS \
             (SELECT 1 FROM {p}entry AS e WHERE e.name = r.name AND e.entry IS NOT NULL)) ORDER BY name LIMIT {limit}"
        )
    }

    /// Latches after a name, in order.
    pub(crate) fn latches(&self, from: &str, after: &str, limit: usize) -> String {
        let (p, from, after) = (&self.prefix, Hex(from.as_bytes()), Hex(after.as_bytes()));
        format!(
            "SELECT name, remaining, initial, opened, born FROM {p}latch WHERE name >= {from} AND name > {after} \
             AND remaining IS NOT NULL ORDER BY name LIMIT {limit}"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn statements(dialect: Dialect) -> Statements {
        Statements::new("app_".into(), dialect, 600)
    }

    #[test]
    fn values_are_numbers_and_hexadecimal_digits() {
        let names = ["a", "'; DROP TABLE x; --"].map(|text| Name::new(text).expect("valid"));
        let statements = statements(Dialect::MariaDb);
        let lock = statements.lock(Table::Resource, &names, Busy::Skipped);
        assert!(
            lock.contains("app_resource") && lock.contains("(x'61', x'273b2044") && !lock.contains("DROP")
        );
        let nobody = ContenderId { keeper: KeeperId::from_u128(7), seq: 1 };
        for text in [
            statements.read(&names, &[nobody]),
            statements.poll(nobody.keeper, &names, &names),
            statements.make(Table::Fence, &names),
            statements.read_latch(&names[1], nobody),
        ] {
            assert!(!text.contains("DROP") && text.contains("x'273b2044"), "{text}");
        }
    }

    /// An open transaction is undone, because the beginning of another one would commit it. A client that stops in the
    /// middle is ended, but not one that stops afterwards.
    #[test]
    fn law_6_a_transaction_begins_with_a_rollback() {
        let (mariadb, mysql) = (statements(Dialect::MariaDb), statements(Dialect::MySql));
        assert_eq!(mariadb.first_flight("L", "R"), "ROLLBACK AND CHAIN; L; R");
        let limited = "ROLLBACK; SET wait_timeout = 1; START TRANSACTION READ WRITE; L; R";
        assert_eq!(mysql.first_flight("L", "R"), limited);
        assert!(
            mariadb.make(Table::Latch, []).starts_with("ROLLBACK; ") && mariadb.roll_back() == "ROLLBACK"
        );
        assert_eq!(mariadb.second_flight(&["W".to_owned()]), "W; COMMIT");
        assert_eq!(mysql.second_flight(&["W".to_owned()]), "W; COMMIT; SET wait_timeout = 600");
        assert_eq!(mysql.roll_back(), "ROLLBACK; SET wait_timeout = 600");
    }

    #[test]
    fn a_lone_name_is_waited_for_shortly() {
        let name = [Name::new("a").expect("valid")];
        let mariadb = statements(Dialect::MariaDb).lock(Table::Latch, &name, Busy::Awaited(LockWait::Brief));
        assert!(mariadb.starts_with("SET STATEMENT max_statement_time = 0.03 FOR SELECT"), "{mariadb}");
        let mysql = statements(Dialect::MySql).lock(Table::Latch, &name, Busy::Awaited(LockWait::Whole));
        assert!(mysql.starts_with("SELECT") && mysql.ends_with("FOR UPDATE"), "{mysql}");
    }

    /// All are between the first and the last as the server compares them, which is byte by byte.
    #[test]
    fn many_contenders_are_looked_up_as_one_range() {
        let id = |seq| ContenderId { keeper: KeeperId::from_u128(7), seq };
        let contenders = [9, 10, 11, 100, 2].map(id);
        let few = tombstones_of(&contenders[..A_FEW]);
        assert!(few.starts_with("contender IN (") && few.matches("x'").count() == A_FEW, "{few}");
        let many = tombstones_of(&contenders);
        let hex = |seq| Hex(id(seq).to_string().as_bytes()).to_string();
        let range = format!("contender BETWEEN {} AND {} AND until >= ", hex(10), hex(9));
        assert!(many.starts_with(&range), "{many}");
    }

    #[test]
    fn each_byte_is_two_digits() {
        for length in [0, 1, 127, 128, 129, 300] {
            let bytes: Vec<u8> = (0..length).map(|number| (number * 7 % 256) as u8).collect();
            let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            assert_eq!(Hex(&bytes).to_string(), format!("x'{digits}'"));
        }
    }
}
