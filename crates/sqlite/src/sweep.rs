//! The sweep: removes rows that have ended and that nobody asks for any more.

use lockkeeper_core::model::WAIT_LEASE;
use rusqlite::Result;

use crate::{codec, work::Work};

impl Work<'_> {
    /// Settles resources in which every lease has ended, as the model does: unused names leave nothing behind. A
    /// resource with a live waiter is settled when that waiter asks.
    pub(crate) fn sweep(&mut self) -> Result<()> {
        let now = self.transition.now().lease.0;
        let asked_before = now.saturating_sub(u64::try_from(WAIT_LEASE.as_micros()).unwrap_or(u64::MAX));
        let mut find = self.transaction.prepare_cached(
            "SELECT name FROM entry GROUP BY name
             HAVING NOT max(CASE WHEN queued THEN began > ?2 ELSE expires > ?1 END) LIMIT 1000",
        )?;
        let names = find.query_map([now.cast_signed(), asked_before.cast_signed()], |row| row.get(0))?;
        for name in names.map(|name| name.and_then(codec::name_from)).collect::<Result<Vec<_>>>()? {
            self.step(&name, |transition| transition.settle(&name))?;
        }
        for table in ["grave", "counted"] {
            self.transaction
                .prepare_cached(&format!("DELETE FROM {table} WHERE until < ?"))?
                .execute([now.cast_signed()])?;
        }
        Ok(())
    }
}
