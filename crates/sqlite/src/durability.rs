//! Decides which transactions are synced to disk before they are answered.
//!
//! An answered grant, renewal, count or fence is on disk. A power cut may only undo changes that give nobody anything:
//! positions in queues, and releases that nobody waits for.

use lockkeeper_core::{
    Units,
    store::{Claim, Leave, Request},
};
use rusqlite::{Connection, OptionalExtension, Result, params};

use crate::poll;

/// Whether a transaction is synced.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Durability {
    /// Synced before it is answered. It may do anything.
    Synced,
    /// Not synced. It may only make changes that a power cut may undo.
    Unsynced,
}

impl Durability {
    /// The value of SQLite's setting `synchronous`.
    pub(crate) fn synchronous(self) -> &'static str {
        match self {
            Self::Synced => "FULL",
            Self::Unsynced => "NORMAL",
        }
    }

    /// Guesses the durability that a group needs; `None` if only the rows can tell. A wrong guess costs a little time,
    /// since [`may_be_lost`](crate::work::Work::may_be_lost) finds out.
    pub(crate) fn guess(group: &[Request]) -> Option<Self> {
        if group.iter().all(poll::is_poll) {
            return Some(Self::Unsynced);
        }
        if group.len() <= poll::FEW {
            return None;
        }
        // Large groups mostly contain a grant, and share its sync.
        let only_leaves = group.iter().all(|request| matches!(request, Request::Leave(_)));
        Some(if only_leaves { Self::Unsynced } else { Self::Synced })
    }

    /// Does the same for a few requests, from the last row of each resource.
    pub(crate) fn guess_by_rows(connection: &Connection, group: &[Request]) -> Result<Self> {
        Ok(if give_nothing(connection, group)? { Self::Unsynced } else { Self::Synced })
    }
}

/// Whether these requests will probably give nobody anything.
fn give_nothing(connection: &Connection, group: &[Request]) -> Result<bool> {
    let mut last = connection
        .prepare_cached("SELECT queued FROM entry WHERE name = ? ORDER BY queued DESC, turn DESC LIMIT 1")?;
    let mut holder = connection
        .prepare_cached("SELECT 1 FROM entry WHERE name = ? AND keeper = ? AND seq = ? AND queued = 0")?;
    for request in group {
        let (Request::Claim(Claim { name, .. }) | Request::Leave(Leave { name, .. })) = request;
        let last_waits: Option<bool> = last.query_row([name.as_str()], |row| row.get(0)).optional()?;
        let nothing = match request {
            Request::Claim(claim) => match last_waits {
                Some(last_waits) => last_waits || claim.units == Units::All,
                None => false,
            },
            // A waiter that leaves gives nobody anything, nor does a holder that nobody waits for.
            Request::Leave(Leave { contender, tombstone_until, .. }) => {
                let (keeper, seq) = (contender.keeper.to_string(), contender.seq.cast_signed());
                tombstone_until.is_none()
                    && (last_waits != Some(true) || !holder.exists(params![name.as_str(), keeper, seq])?)
            }
        };
        if !nothing {
            return Ok(false);
        }
    }
    Ok(true)
}
