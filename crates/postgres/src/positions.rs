//! The times at which positions of this keeper in queues were last written down, as far as it remembers.
//!
//! A poll is one plain read while its position is young. Once that is old, the model writes it anew, which takes a
//! transaction, and then the plain read before it would be for nothing. The times here only decide which of the two is
//! sent first. They never change an answer.

use std::{collections::HashMap, sync::Mutex};

use lockkeeper_core::{
    ContenderId,
    model::{POSITION_KEPT, WAIT_LEASE},
    support,
};
use lockkeeper_rows::{RowChange, Writes};
use tokio::time::Instant;

/// So many may be forgotten ones before they are looked for.
const ROOM: usize = 64;

/// The positions of a keeper.
#[derive(Debug, Default)]
pub(crate) struct Positions(Mutex<Written>);

#[derive(Debug, Default)]
struct Written {
    when: HashMap<ContenderId, Instant>,
    /// How many there were when those that have ended were last removed.
    kept: usize,
}

impl Positions {
    /// Notes that the positions of these contenders were written just now.
    pub(crate) fn wrote(&self, contenders: impl Iterator<Item = ContenderId>) {
        let (now, mut written) = (Instant::now(), support::lock(&self.0));
        written.when.extend(contenders.map(|contender| (contender, now)));
        if written.when.len() > 2 * written.kept + ROOM {
            // A contender that did not ask for so long has no position any more.
            written.when.retain(|_, when| now.duration_since(*when) < WAIT_LEASE);
            written.kept = written.when.len();
        }
    }

    /// Whether the position of one of these is to be written anew if it asks now.
    pub(crate) fn are_old(&self, mut contenders: impl Iterator<Item = ContenderId>) -> bool {
        let (now, written) = (Instant::now(), support::lock(&self.0));
        contenders.any(|contender| {
            written.when.get(&contender).is_some_and(|when| now.duration_since(*when) >= POSITION_KEPT)
        })
    }
}

/// The contenders whose positions are in these writes.
pub(crate) fn in_writes(writes: &Writes) -> impl Iterator<Item = ContenderId> {
    writes.resources.iter().flat_map(|resource| &resource.entries).filter_map(|entry| match entry {
        RowChange::Put { after, .. } if after.queued => Some(after.contender),
        RowChange::Put { .. } | RowChange::Remove(_) => None,
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use lockkeeper_core::KeeperId;
    use tokio::time::advance;

    use super::*;

    fn contender(seq: u64) -> ContenderId {
        ContenderId { keeper: KeeperId::from_u128(1), seq }
    }

    #[tokio::test(start_paused = true)]
    async fn a_position_is_old_once_the_model_would_write_it_anew() {
        let positions = Positions::default();
        let are_old = |seqs: &[u64]| positions.are_old(seqs.iter().map(|seq| contender(*seq)));
        positions.wrote([contender(1)].into_iter());
        advance(POSITION_KEPT - Duration::from_millis(1)).await;
        positions.wrote([contender(2)].into_iter());
        assert!(!are_old(&[1, 2]));
        advance(Duration::from_millis(1)).await;
        assert!(are_old(&[2, 1]), "one of them is enough");
        assert!(!are_old(&[2, 3]), "of one that is not known, the read will tell");
        positions.wrote([contender(1)].into_iter());
        assert!(!are_old(&[1, 2]));
    }

    #[tokio::test(start_paused = true)]
    async fn those_that_have_ended_are_forgotten() {
        let positions = Positions::default();
        for minute in 0..100 {
            positions.wrote((0..1000).map(|seq| contender(minute * 1000 + seq)));
            advance(Duration::from_secs(60)).await;
        }
        assert!(support::lock(&positions.0).when.len() <= 2 * 1000 + ROOM);
    }
}
