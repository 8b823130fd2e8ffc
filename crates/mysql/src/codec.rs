//! The rows that were read, in the form of `lockkeeper-rows`, and its writes as statements. Pure.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fmt::Write as _,
};

use lockkeeper_core::{
    KeeperId, Name, StoreError,
    model::{HighWater, Now},
    store::StoreTime,
};
use lockkeeper_rows::{
    BadRow, EntryRow, ResourceRow, RowHolder, Slots, Snapshot, Stored, Tombstone, Transition, Wakes, Writes,
    entry_text, high_water_from, name_from,
};
use mysql_async::{Row, Value};

use crate::{
    server::is_on,
    statements::{Hex, literal},
    trouble::{config, corrupt, replica},
};

/// Everything that a step needs, as one statement has read it.
#[derive(Debug)]
pub(crate) struct ReadRows {
    pub(crate) now: Now,
    floor: HighWater,
    resources: BTreeMap<Name, Stored>,
    /// The time at which the holders of a name last changed.
    moved: HashMap<Name, i64>,
    slots: HashMap<Name, Slots>,
    tombstones: Vec<Tombstone>,
    /// Names with a row that this program does not write. The others are served.
    bad: BTreeMap<Name, BadRow>,
}

/// A moment of the server's clock, on which both leases and numbers run.
pub(crate) fn at(micros: i64) -> Now {
    let micros = micros.cast_unsigned();
    Now { lease: StoreTime(micros), wall: micros }
}

impl ReadRows {
    /// Takes the rows of [`read`](crate::statements::Statements::read), of the store with this id.
    pub(crate) fn new(rows: &[Row], id: &str) -> Result<Self, StoreError> {
        let mut read = Self {
            now: at(0),
            floor: HighWater(0),
            resources: BTreeMap::new(),
            moved: HashMap::new(),
            slots: HashMap::new(),
            tombstones: Vec::new(),
            bad: BTreeMap::new(),
        };
        for row in rows {
            read.take(row, id)?;
        }
        if read.now.wall == 0 {
            return Err(corrupt("the table store has no row; drop the tables, or restore them"));
        }
        Ok(read)
    }

    /// Adds rows of resources that were locked and read: name, high-water mark, capacity, when the holders last
    /// changed, and the holder.
    pub(crate) fn with_locked(mut self, rows: &[Row]) -> Result<Self, StoreError> {
        for row in rows {
            let (name, high_water, capacity) = (name_of(row, 0)?, number(row, 1)?, number(row, 2)?);
            self.take_resource(name, high_water, capacity, number(row, 3)?, bytes(row, 4)?);
        }
        Ok(self)
    }

    fn take_resource(
        &mut self,
        name: Name,
        high_water: i64,
        capacity: i64,
        moved: i64,
        holder: Option<&[u8]>,
    ) {
        let holder = match holder.map(decode).transpose() {
            Ok(holder) => holder.map_or(RowHolder::Vacant, RowHolder::Here),
            Err(bad) => {
                self.bad.insert(name.clone(), bad);
                RowHolder::Vacant
            }
        };
        self.moved.insert(name.clone(), moved);
        self.resources.entry(name).or_default().row = ResourceRow { high_water, capacity, holder };
    }

    fn take(&mut self, row: &Row, id: &str) -> Result<(), StoreError> {
        let (high_water, number) = (self::number(row, 3)?, self::number(row, 4)?);
        let entry = bytes(row, 6)?;
        match self::number(row, 0)? {
            0 => {
                check_state(text(row, 6)?, id)?;
                self.now = at(number);
                self.floor = high_water_from(high_water)?;
            }
            1 => {
                let (name, moved) = (name_of(row, 1)?, self::number(row, 5)?);
                self.take_resource(name, high_water, number, moved, entry);
            }
            2 => {
                let (name, slot) = (name_of(row, 1)?, self::number(row, 2)?);
                let slot = i32::try_from(slot).map_err(|_| changed_table())?;
                match entry.map(decode).transpose() {
                    Ok(entry) => {
                        let slots = self.slots.entry(name.clone()).or_default();
                        slots.add(slot, entry.as_ref().map(|entry| entry.contender));
                        self.resources.entry(name).or_default().entries.extend(entry);
                    }
                    Err(bad) => drop(self.bad.insert(name, bad)),
                }
            }
            _ => {
                let contender = text(row, 1)?.and_then(|text| text.parse().ok());
                let contender =
                    contender.ok_or_else(|| corrupt("a tombstone has no contender; remove it"))?;
                self.tombstones.push(Tombstone { contender, until: StoreTime(number.cast_unsigned()) });
            }
        }
        Ok(())
    }

    /// Whether there is a row for this name.
    pub(crate) fn has(&self, name: &Name) -> bool {
        self.resources.get(name).is_some_and(|stored| stored.row.holder != RowHolder::NoRoom)
    }

    /// Returns the mistake in the rows of this name.
    pub(crate) fn bad(&self, name: &Name) -> Option<BadRow> {
        self.bad.get(name).copied()
    }

    /// The rows of one resource.
    pub(crate) fn stored(&mut self, name: &Name) -> Stored {
        self.resources.remove(name).unwrap_or_default()
    }

    /// Looks for rows of these names that can be read, but have values that make no sense. Only for reads that no step
    /// could be done on: it uses them up.
    pub(crate) fn look_closer(mut self, names: &[Name]) -> BTreeMap<Name, BadRow> {
        for name in names {
            let stored = self.stored(name);
            if let Err(bad) = Transition::new(self.now, self.floor).add(name, stored) {
                self.bad.insert(name.clone(), bad);
            }
        }
        self.bad
    }

    /// Leaves out names that are known to be bad.
    pub(crate) fn without(mut self, bad: BTreeMap<Name, BadRow>) -> Self {
        self.bad = bad;
        self
    }

    /// Takes the resources for a step on these names, without those whose rows cannot be used. The others are not
    /// touched.
    pub(crate) fn snapshot(&mut self, names: impl IntoIterator<Item = Name>) -> Snapshot {
        let mut resources = Vec::new();
        for name in names {
            if self.bad.contains_key(&name) {
                continue;
            }
            let stored = self.stored(&name);
            resources.push((name, stored));
        }
        let tombstones = std::mem::take(&mut self.tombstones);
        Snapshot { now: self.now, floor: self.floor, resources, tombstones }
    }

    /// Returns the statements that write the changes. The row of a resource is always written: it says when the name
    /// was last used.
    pub(crate) fn statements(&self, writes: &Writes, wakes: &Wakes, prefix: &str) -> Vec<String> {
        let (mut entries, mut tombstones) = (String::new(), String::new());
        let no_slots = Slots::default();
        for resource in &writes.resources {
            let name = &resource.name;
            let slots = self.slots.get(name).unwrap_or(&no_slots);
            for (slot, entry) in slots.place(&resource.entries) {
                separate(&mut entries);
                let turn = entry.filter(|entry| entry.queued).map_or(0, |entry| entry.turn);
                // Writing to a string cannot fail.
                _ = write!(entries, "({}, {slot}, {turn}, ", literal(name));
                push_keeper(&mut entries, entry.map(|entry| entry.contender.keeper));
                _ = write!(entries, ", {}, ", entry.map_or(0, entry_text::ends));
                push_keeper(&mut entries, entry.and_then(fresh));
                entries.push_str(", ");
                push_entry(&mut entries, entry);
                entries.push(')');
            }
        }
        for Tombstone { contender, until } in &writes.tombstones {
            separate(&mut tombstones);
            _ = write!(tombstones, "({}, {})", Hex(contender.to_string().as_bytes()), until.0.cast_signed());
        }
        let upserts = [(ENTRIES, entries), (TOMBSTONES, tombstones)];
        let upserts = upserts.into_iter().filter(|(_, values)| !values.is_empty());
        let upserts = upserts.map(|((into, update), values)| {
            format!("INSERT INTO {prefix}{into} VALUES {values} ON DUPLICATE KEY UPDATE {update}")
        });
        let rows = self.resource_values(writes, wakes);
        let rows = (!rows.is_empty()).then(|| write_resources(&rows, self.now.wall.cast_signed(), prefix));
        rows.into_iter().chain(upserts).collect()
    }

    fn resource_values<'a>(&self, writes: &'a Writes, wakes: &Wakes) -> Vec<ResourceValues<'a>> {
        let (changed, now): (BTreeSet<&Name>, _) =
            (wakes.changed.iter().collect(), self.now.wall.cast_signed());
        let values = writes.resources.iter().map(|resource| {
            let before = self.moved.get(&resource.name).copied().unwrap_or_default();
            ResourceValues {
                name: &resource.name,
                row: &resource.row,
                moved: if changed.contains(&resource.name) { now.max(before + 1) } else { before },
                holder: resource.row.holder.row(),
            }
        });
        values.collect()
    }
}

/// The values that are written of one resource.
struct ResourceValues<'a> {
    name: &'a Name,
    row: &'a ResourceRow,
    moved: i64,
    holder: Option<&'a EntryRow>,
}

impl ResourceValues<'_> {
    fn ends(&self) -> i64 {
        self.holder.map_or(0, entry_text::ends)
    }

    fn fresh(&self) -> Option<KeeperId> {
        self.holder.and_then(fresh)
    }
}

/// A column of a resource, and the function that writes its value.
type Column = (&'static str, fn(&mut String, &ResourceValues<'_>));

const COLUMNS: [Column; 6] = [
    ("high_water", |text, values| _ = write!(text, "{}", values.row.high_water)),
    ("capacity", |text, values| _ = write!(text, "{}", values.row.capacity)),
    ("moved", |text, values| _ = write!(text, "{}", values.moved)),
    ("ends", |text, values| _ = write!(text, "{}", values.ends())),
    ("fresh", |text, values| push_keeper(text, values.fresh())),
    ("holder", |text, values| push_entry(text, values.holder)),
];

/// Writes rows of resources, which are there: they are locked. Values that are the same in all of them are said once,
/// because to read the text of a value costs the server as much as to write it.
fn write_resources(rows: &[ResourceValues<'_>], now: i64, prefix: &str) -> String {
    let is_same = |index: usize| {
        let differs = |a: &ResourceValues<'_>, b: &ResourceValues<'_>| match index {
            0 => a.row.high_water != b.row.high_water,
            1 => a.row.capacity != b.row.capacity,
            2 => a.moved != b.moved,
            3 => a.ends() != b.ends(),
            4 => a.fresh() != b.fresh(),
            _ => a.holder.is_some() || b.holder.is_some(),
        };
        !rows.iter().any(|row| differs(&rows[0], row))
    };
    let same: [bool; COLUMNS.len()] = std::array::from_fn(is_same);
    let (mut into, mut values, mut update) = (String::from("name"), String::new(), format!("used = {now}"));
    for ((column, write), same) in COLUMNS.iter().zip(same) {
        _ = write!(update, ", {column} = ");
        if same {
            write(&mut update, &rows[0]);
        } else {
            _ = write!(into, ", {column}");
            _ = write!(update, "VALUES({column})");
        }
    }
    for row in rows {
        separate(&mut values);
        _ = write!(values, "({}", literal(row.name));
        for ((_, write), _) in COLUMNS.iter().zip(same).filter(|(_, same)| !same) {
            values.push_str(", ");
            write(&mut values, row);
        }
        values.push(')');
    }
    format!("INSERT INTO {prefix}resource ({into}) VALUES {values} ON DUPLICATE KEY UPDATE {update}")
}

/// A table with its columns, and the clause for a row that is there. One statement with many rows is faster than many.
type Upsert = (&'static str, &'static str);

const ENTRIES: Upsert = (
    "entry (name, slot, turn, keeper, ends, fresh, entry)",
    "turn = VALUES(turn), keeper = VALUES(keeper), ends = VALUES(ends), fresh = VALUES(fresh), entry = VALUES(entry)",
);
const TOMBSTONES: Upsert = ("tombstone (contender, until)", "until = GREATEST(until, VALUES(until))");

fn separate(values: &mut String) {
    if !values.is_empty() {
        values.push_str(", ");
    }
}

/// Returns the keeper that has yet to see its grant.
fn fresh(entry: &EntryRow) -> Option<KeeperId> {
    (!entry.queued && !entry.confirmed && !entry.retired).then_some(entry.contender.keeper)
}

fn push_keeper(values: &mut String, keeper: Option<KeeperId>) {
    match keeper {
        // Writing to a string cannot fail.
        Some(keeper) => _ = write!(values, "x'{keeper}'"),
        None => values.push_str("NULL"),
    }
}

fn push_entry(values: &mut String, entry: Option<&EntryRow>) {
    match entry {
        Some(entry) => _ = write!(values, "{}", Hex(entry_text::encode(entry).as_bytes())),
        None => values.push_str("NULL"),
    }
}

pub(crate) fn decode(entry: &[u8]) -> Result<EntryRow, BadRow> {
    let text = str::from_utf8(entry).map_err(|_| BadRow { column: "entry" })?;
    entry_text::decode(text)
}

/// Checks the words of the server about itself, which come with every read, and the id of its store.
pub(crate) fn check_state(words: Option<&str>, id: &str) -> Result<(), StoreError> {
    let words: Vec<&str> = words.unwrap_or_default().split(' ').collect();
    let [read_only, autocommit, isolation, stops, store] = words[..] else { return Err(changed_table()) };
    if is_on(read_only) {
        return Err(replica());
    }
    if !is_on(autocommit) || isolation != "READ-COMMITTED" || stops != "1" {
        return Err(config(format!(
            "something between this program and the server changed autocommit ({autocommit}), the isolation level \
             ({isolation}) or the limit of an idle transaction ({stops} s) of the connection; connect to the server itself"
        )));
    }
    if store != id {
        return Err(another_store());
    }
    Ok(())
}

pub(crate) fn another_store() -> StoreError {
    corrupt(
        "another store answers under this URL: its tables were made anew, or the URL leads elsewhere now; connect again",
    )
}

fn changed_table() -> StoreError {
    corrupt("a table of the store has other columns than this program made; restore it")
}

/// The bytes in a column; `None` for NULL.
pub(crate) fn bytes(row: &Row, column: usize) -> Result<Option<&[u8]>, StoreError> {
    match row.as_ref(column) {
        Some(Value::Bytes(bytes)) => Ok(Some(bytes)),
        Some(Value::NULL) => Ok(None),
        _ => Err(changed_table()),
    }
}

/// The text in a column; `None` for NULL.
pub(crate) fn text(row: &Row, column: usize) -> Result<Option<&str>, StoreError> {
    bytes(row, column)?.map(|bytes| str::from_utf8(bytes).map_err(|_| changed_table())).transpose()
}

/// The number in a column.
pub(crate) fn number(row: &Row, column: usize) -> Result<i64, StoreError> {
    maybe_number(row, column)?.ok_or_else(changed_table)
}

/// The number in a column; `None` for NULL.
pub(crate) fn maybe_number(row: &Row, column: usize) -> Result<Option<i64>, StoreError> {
    text(row, column)?.map(|text| text.parse().map_err(|_| changed_table())).transpose()
}

/// The name in a column.
pub(crate) fn name_of(row: &Row, column: usize) -> Result<Name, StoreError> {
    let text = text(row, column)?.ok_or_else(changed_table)?;
    Ok(name_from(text)?)
}

#[cfg(test)]
mod tests {
    use lockkeeper_core::{ContenderId, store::Request, testing};

    use super::*;

    fn name(text: &str) -> Name {
        Name::new(text).expect("valid")
    }

    /// The rows of free names that have some.
    fn free(names: &[&str]) -> ReadRows {
        let mut read = ReadRows {
            now: at(7_000_000),
            floor: HighWater(0),
            resources: BTreeMap::new(),
            moved: HashMap::new(),
            slots: HashMap::new(),
            tombstones: Vec::new(),
            bad: BTreeMap::new(),
        };
        names.iter().for_each(|text| read.take_resource(name(text), 5, 0, 3, None));
        read
    }

    /// The statements of claims of free names, each with its lease in seconds.
    fn claimed(claims: &[(&str, u64)]) -> Vec<String> {
        let names: Vec<&str> = claims.iter().map(|(name, _)| *name).collect();
        let mut read = free(&names);
        let claim = |(place, (text, seconds)): (usize, &(&str, u64))| {
            let contender = ContenderId { keeper: KeeperId::from_u128(1), seq: place as u64 };
            let mut claim = testing::claim(&name(text), contender);
            (claim.lease, claim.not_after) = (std::time::Duration::from_secs(*seconds), StoreTime(u64::MAX));
            Request::Claim(claim)
        };
        let group: Vec<Request> = claims.iter().enumerate().map(claim).collect();
        let snapshot = read.snapshot(names.iter().map(|text| name(text)));
        let outcome = snapshot.apply(&group).expect("good rows");
        read.statements(&outcome.writes, &outcome.wakes, "p_")
    }

    #[test]
    fn what_all_rows_have_in_common_is_said_once() {
        let [alike] = &claimed(&[("a", 10), ("b", 10)])[..] else { panic!("one statement") };
        let start = "INSERT INTO p_resource (name, high_water, holder) VALUES (x'61', 7000000, x'";
        let end = "ON DUPLICATE KEY UPDATE used = 7000000, high_water = VALUES(high_water), capacity = 0, \
                   moved = 7000000, ends = 17000000, fresh = NULL, holder = VALUES(holder)";
        assert!(alike.starts_with(start) && alike.ends_with(end), "{alike}");
        let [unlike] = &claimed(&[("a", 10), ("b", 20)])[..] else { panic!("one statement") };
        assert!(
            unlike.starts_with("INSERT INTO p_resource (name, high_water, ends, holder) VALUES"),
            "{unlike}"
        );
        assert!(unlike.contains("ends = VALUES(ends)") && unlike.contains(", 27000000, "), "{unlike}");
    }

    #[test]
    fn a_connection_that_was_changed_is_refused() {
        for good in ["OFF ON READ-COMMITTED 1 id", "0 1 READ-COMMITTED 1 id"] {
            assert!(check_state(Some(good), "id").is_ok(), "{good}");
        }
        for (bad, word) in [
            ("ON ON READ-COMMITTED 1 id", "replica"),
            ("1 1 READ-COMMITTED 1 id", "replica"),
            ("OFF OFF READ-COMMITTED 1 id", "autocommit"),
            ("OFF ON REPEATABLE-READ 1 id", "isolation"),
            ("OFF ON READ-COMMITTED 0 id", "idle transaction (0 s)"),
            ("OFF ON READ-COMMITTED 1 other", "another store"),
            ("OFF ON READ-COMMITTED 1", "restore"),
            ("", "restore"),
        ] {
            let error = check_state(Some(bad), "id").expect_err(bad).to_string();
            assert!(error.contains(word), "{bad}: {error}");
        }
    }
}
