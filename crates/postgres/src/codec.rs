//! Turns rows into those of `lockkeeper-rows`, and its writes into parameters of statements. Pure.

use std::{
    collections::{BTreeMap, HashMap},
    time::Duration,
};

use lockkeeper_core::{
    KeeperId, Name, StoreError,
    model::{HighWater, Now},
    store::StoreTime,
};
use lockkeeper_rows::{
    ResourceRow, RowHolder, Slots, Snapshot, Stored, Tombstone, Transition, Writes, entry_text,
    high_water_from, name_from,
};
use tokio_postgres::Row;

use crate::{
    origin::{Header, Origin},
    trouble::{corrupt, explain},
};

/// A crash of the server may take a release back if the lock is free after so long all the same.
const LOST_FOR_AT_MOST: Duration = Duration::from_secs(30);

/// Everything that a step needs, as one statement read it.
#[derive(Debug)]
pub(crate) struct ReadRows {
    pub(crate) now: Now,
    floor: HighWater,
    pub(crate) header: Header,
    resources: BTreeMap<Name, Stored>,
    /// Names that have a row which this program cannot have written.
    damaged: BTreeMap<Name, StoreError>,
    slots: HashMap<Name, Slots>,
    tombstones: Vec<Tombstone>,
    /// Keepers that want to hear of changes.
    pub(crate) watchers: HashMap<Name, Vec<KeeperId>>,
}

/// A moment of the server's clock, on which both leases and numbers run.
fn at(micros: i64) -> Now {
    let micros = micros.cast_unsigned();
    Now { lease: StoreTime(micros), wall: micros }
}

impl ReadRows {
    /// Takes the rows of `Statement::Read`, which must have been answered by the server process and the store of `origin`.
    pub(crate) fn new(rows: &[Row], origin: &Origin) -> Result<Self, StoreError> {
        let mut read = Self {
            now: at(0),
            floor: HighWater(0),
            header: Header { transaction: None, waits_for_replicas: true },
            resources: BTreeMap::new(),
            damaged: BTreeMap::new(),
            slots: HashMap::new(),
            tombstones: Vec::new(),
            watchers: HashMap::new(),
        };
        for row in rows {
            read.take(row, origin)?;
        }
        if read.now.wall == 0 {
            return Err(corrupt("the table store has no row; drop the schema, or restore it"));
        }
        Ok(read)
    }

    fn take(&mut self, row: &Row, origin: &Origin) -> Result<(), StoreError> {
        let (part, slot): (i32, i32) = (get(row, 0)?, get(row, 2)?);
        let (high_water, number): (i64, i64) = (get(row, 3)?, get(row, 4)?);
        let text: Option<&str> = get(row, 5)?;
        match part {
            0 => {
                self.header = origin.header(slot.into(), text.unwrap_or_default())?;
                self.now = at(number);
                self.floor = high_water_from(high_water)?;
            }
            1 => {
                let name = name_of(row)?;
                let stored = self.resources.entry(name.clone()).or_default();
                let holder = match text.map(entry_text::decode) {
                    Some(Ok(holder)) => RowHolder::Here(holder),
                    Some(Err(error)) => {
                        self.damaged.insert(name.clone(), damaged(&name).with_source(error));
                        RowHolder::Vacant
                    }
                    None => RowHolder::Vacant,
                };
                stored.row = ResourceRow { high_water, capacity: number, holder };
            }
            2 => {
                let name = name_of(row)?;
                let entry = text.map(entry_text::decode).transpose().unwrap_or_else(|error| {
                    self.damaged.insert(name.clone(), damaged(&name).with_source(error));
                    None
                });
                let slots = self.slots.entry(name.clone()).or_default();
                slots.add(slot, entry.as_ref().map(|entry| entry.contender));
                self.resources.entry(name).or_default().entries.extend(entry);
            }
            3 => {
                let contender = text.and_then(|text| text.parse().ok());
                let contender =
                    contender.ok_or_else(|| corrupt("a tombstone has no contender; remove it"))?;
                self.tombstones.push(Tombstone { contender, until: StoreTime(number.cast_unsigned()) });
            }
            _ => {
                if let Some(keeper) = text.and_then(|text| text.parse().ok()) {
                    self.watchers.entry(name_of(row)?).or_default().push(keeper);
                }
            }
        }
        Ok(())
    }

    /// Whether there is a row for this name.
    pub(crate) fn has(&self, name: &Name) -> bool {
        self.resources.get(name).is_some_and(|stored| stored.row.holder != RowHolder::NoRoom)
    }

    /// The rows of one resource, which must not be a damaged one.
    pub(crate) fn stored(&mut self, name: &Name) -> Stored {
        self.resources.remove(name).unwrap_or_default()
    }

    /// The reason why the rows of a name cannot be used, if there is one.
    pub(crate) fn damage(&self, name: &Name) -> Option<&StoreError> {
        self.damaged.get(name)
    }

    /// Looks for rows of these names that can be read, but have values that make no sense. Only for reads that no step
    /// could be done on: it uses them up.
    pub(crate) fn look_closer(mut self, names: &[Name]) -> BTreeMap<Name, StoreError> {
        for name in names {
            let stored = self.stored(name);
            if let Err(bad) = Transition::new(self.now, self.floor).add(name, stored) {
                self.damaged.insert(name.clone(), damaged(name).with_source(bad));
            }
        }
        self.damaged
    }

    /// Takes the rows of these names for a step, which touches no others.
    pub(crate) fn snapshot(&mut self, names: impl IntoIterator<Item = Name>) -> Snapshot {
        let resources = names.into_iter().map(|name| {
            let stored = self.stored(&name);
            (name, stored)
        });
        let resources = resources.collect();
        Snapshot {
            now: self.now,
            floor: self.floor,
            resources,
            tombstones: std::mem::take(&mut self.tombstones),
        }
    }

    /// Turns the writes of a step into parameters.
    pub(crate) fn parameters(&mut self, writes: &Writes) -> Parameters {
        let mut parameters = Parameters {
            used: self.now.wall.cast_signed(),
            may_be_lost: !writes.gives && writes.frees <= LOST_FOR_AT_MOST,
            ..Parameters::default()
        };
        for resource in &writes.resources {
            // The row is always written: it says when the name was last used.
            let name = resource.name.as_str().as_bytes().to_vec();
            parameters.names.push(name.clone());
            parameters.high_waters.push(resource.row.high_water);
            parameters.capacities.push(resource.row.capacity);
            let holder = resource.row.holder.row();
            parameters.ends.push(holder.map_or(0, entry_text::ends));
            parameters.holders.push(holder.map(entry_text::encode));
            let slots = self.slots.entry(resource.name.clone()).or_default();
            for (slot, entry) in slots.place(&resource.entries) {
                parameters.entry_names.push(name.clone());
                parameters.slots.push(slot);
                parameters.entry_ends.push(entry.map_or(0, entry_text::ends));
                parameters.entries.push(entry.map(entry_text::encode));
            }
        }
        let mut latest = BTreeMap::new();
        for Tombstone { contender, until } in &writes.tombstones {
            let kept = latest.entry(*contender).or_insert(*until);
            *kept = (*kept).max(*until);
        }
        for (contender, until) in latest {
            parameters.contenders.push(contender.to_string());
            parameters.untils.push(until.0.cast_signed());
        }
        parameters
    }
}

/// The parameters of `Statement::WriteAll`.
#[derive(Debug, Default)]
pub(crate) struct Parameters {
    pub(crate) names: Vec<Vec<u8>>,
    pub(crate) high_waters: Vec<i64>,
    pub(crate) capacities: Vec<i64>,
    pub(crate) ends: Vec<i64>,
    pub(crate) holders: Vec<Option<String>>,
    pub(crate) used: i64,
    /// A crash of the server may undo it: nobody was given anything.
    pub(crate) may_be_lost: bool,
    pub(crate) entry_names: Vec<Vec<u8>>,
    pub(crate) slots: Vec<i32>,
    pub(crate) entry_ends: Vec<i64>,
    pub(crate) entries: Vec<Option<String>>,
    pub(crate) contenders: Vec<String>,
    pub(crate) untils: Vec<i64>,
}

impl Parameters {
    /// Whether only rows of resources are written.
    pub(crate) fn only_rows(&self) -> bool {
        self.slots.is_empty() && self.contenders.is_empty()
    }
}

/// The rows of a name are not this program's.
pub(crate) fn damaged(name: &Name) -> StoreError {
    corrupt(format!(
        "a row of {name} has values that Lockkeeper does not write there; another program changed it: restore or remove it"
    ))
}

/// A column, or the error that says that somebody changed the table.
pub(crate) fn get<'a, T: tokio_postgres::types::FromSql<'a>>(
    row: &'a Row,
    column: usize,
) -> Result<T, StoreError> {
    row.try_get(column).map_err(|error| {
        drop(explain(error));
        corrupt("a table of the store has other columns than this program made; restore it")
    })
}

/// The name in a row of `Statement::Read`.
fn name_of(row: &Row) -> Result<Name, StoreError> {
    name_from_bytes(get(row, 1)?)
}

/// A name as it is stored.
pub(crate) fn name_from_bytes(bytes: &[u8]) -> Result<Name, StoreError> {
    let text = str::from_utf8(bytes).map_err(|_| corrupt("a row has a name that is no text; remove it"))?;
    Ok(name_from(text)?)
}
