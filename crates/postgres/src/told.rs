//! Warnings about names with rows that cannot be used: one for each name, however often it is met.

use std::{collections::BTreeSet, sync::Mutex};

use lockkeeper_core::{Name, StoreError, support};

/// How many names are remembered. Beyond that, a warning may come again.
const MOST: usize = 1000;

/// The names that were warned of.
#[derive(Debug, Default)]
pub(crate) struct Told(Mutex<BTreeSet<Name>>);

impl Told {
    /// Warns, unless it was done before for this name.
    pub(crate) fn once(&self, name: &Name, error: &StoreError) {
        let mut told = support::lock(&self.0);
        if told.len() >= MOST {
            told.clear();
        }
        if told.insert(name.clone()) {
            tracing::warn!(name = name.as_str(), %error, "a row of this name cannot be used");
        }
    }
}
