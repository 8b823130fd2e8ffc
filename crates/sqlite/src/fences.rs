//! Fences: the highest token that each resource's side check has seen.

use lockkeeper_core::store::{Admit, Admitted};
use rusqlite::{OptionalExtension, Result, params};

use crate::{codec, work::Work};

impl Work<'_> {
    /// Checks a token.
    pub(crate) fn fence(&mut self, admit: &Admit) -> Result<Admitted> {
        let name = admit.name.as_str();
        let mut find = self.transaction.prepare_cached("SELECT highest FROM fence WHERE name = ?")?;
        let seen: Option<i64> = find.query_row([name], |row| row.get(0)).optional()?;
        let fenced = lockkeeper_rows::admit(seen, admit).map_err(codec::not_ours)?;
        if let Some(highest) = fenced.highest {
            self.transaction
                .prepare_cached("INSERT OR REPLACE INTO fence VALUES (?, ?)")?
                .execute(params![name, highest])?;
        }
        Ok(fenced.answer)
    }
}
