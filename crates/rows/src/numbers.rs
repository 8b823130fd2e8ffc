//! Single values as SQL has them.

use std::time::Duration;

use lockkeeper_core::{Capacity, Name, Token, Units, model::HighWater, store::Kind};

use crate::BadRow;

/// Units as a number.
pub fn units_number(units: Units) -> i64 {
    match units {
        Units::All => 0,
        Units::Count(count) => count.get().into(),
    }
}

/// Reads units from a number.
///
/// # Errors
/// If no units have this `number`.
pub fn units_from(number: i64) -> Result<Units, BadRow> {
    match number {
        0 => Ok(Units::All),
        number => count(number).and_then(|count| Units::count(count).ok()).ok_or(BadRow::at("units")),
    }
}

/// A capacity as a number.
pub fn capacity_number(capacity: Capacity) -> i64 {
    match capacity {
        Capacity::All => 0,
        Capacity::Count(count) => count.get().into(),
    }
}

/// Reads a capacity from a number.
///
/// # Errors
/// If no capacity has this `number`.
pub fn capacity_from(number: i64) -> Result<Capacity, BadRow> {
    match number {
        0 => Ok(Capacity::All),
        number => count(number).and_then(|count| Capacity::count(count).ok()).ok_or(BadRow::at("capacity")),
    }
}

/// A high-water mark, or the floor of all.
///
/// # Errors
/// If `number` cannot have been granted. Such a mark would stop the numbers of a name from growing, and such a floor
/// those of all names.
pub fn high_water_from(number: i64) -> Result<HighWater, BadRow> {
    let number = u64::try_from(number).ok().filter(|number| *number < Token::NUMBER_LIMIT);
    number.map(HighWater).ok_or(BadRow::at("high_water"))
}

fn count(number: i64) -> Option<u32> {
    u32::try_from(number).ok()
}

/// A kind by its [word](Kind::word).
///
/// # Errors
/// If no kind has this word.
pub fn kind_from(word: &str) -> Result<Kind, BadRow> {
    Kind::from_word(word).ok_or(BadRow::at("kind"))
}

/// Reads a name as it was stored.
///
/// # Errors
/// If it is not valid.
pub fn name_from(text: impl AsRef<str>) -> Result<Name, BadRow> {
    Name::new(text).map_err(|_| BadRow::at("name"))
}

pub(crate) fn micros(length: Duration) -> i64 {
    i64::try_from(length.as_micros()).unwrap_or(i64::MAX)
}

pub(crate) fn length(micros: i64) -> Duration {
    Duration::from_micros(micros.cast_unsigned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_above_all_numbers_is_nobodys() {
        let limit = Token::NUMBER_LIMIT.cast_signed();
        for good in [0, 1, limit - 1] {
            assert_eq!(high_water_from(good), Ok(HighWater(good.cast_unsigned())));
        }
        for bad in [-1, limit, i64::MAX] {
            assert!(high_water_from(bad).is_err(), "{bad}");
        }
    }
}
