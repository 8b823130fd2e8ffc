//! Fences: the highest token that each resource's side check has seen.

use lockkeeper_core::{
    Token,
    store::{Admit, Admitted},
};
use rusqlite::{OptionalExtension, Result, params};

use crate::work::Work;

impl Work<'_> {
    /// Checks a token. The highest floor seen never falls (invariant I7).
    pub(crate) fn fence(&mut self, admit: &Admit) -> Result<Admitted> {
        let name = admit.name.as_str();
        let mut find = self.transaction.prepare_cached("SELECT highest FROM fence WHERE name = ?")?;
        let seen: Option<i64> = find.query_row([name], |row| row.get(0)).optional()?;
        let highest = seen.and_then(|seen| Token::try_from(seen).ok());
        if let Some(highest) = highest.filter(|highest| admit.token < *highest) {
            return Ok(Admitted::Stale { highest });
        }
        if highest.is_none_or(|highest| highest < admit.floor) {
            self.transaction
                .prepare_cached("INSERT OR REPLACE INTO fence VALUES (?, ?)")?
                .execute(params![name, admit.floor.as_i64()])?;
        }
        Ok(Admitted::Yes)
    }
}
