//! Polls on the front of a queue: the holders, and the waiters up to the one that asks.

use lockkeeper_core::{
    model::{Effects, HighWater, Now, Resource},
    store::{Claim, Verdict},
};

use crate::{BadRow, EntryRow, Stored, loaded::Decoded};

/// A poll that does no more than keep its position.
#[derive(Clone, Debug)]
pub struct Kept {
    /// The answer.
    pub verdict: Verdict,
    /// The row of the waiter that asks, if it has to be written. Only `began` and `stamp` changed.
    pub row: Option<EntryRow>,
    /// The front of the queue.
    pub front: Resource,
}

/// Does the model's claim on the `front` of the queue, whose last waiter is the one that asks. Returns `None` if the
/// claim would do more than keep its position, so that all rows are needed.
///
/// Contenders behind the one that asks do not matter: the model may let them expire at any later time. Details do not
/// matter either, since no step looks at them. So a store may leave both out.
///
/// # Errors
/// If a row cannot be this program's.
pub fn keep_position(now: Now, claim: &Claim, front: Stored) -> Result<Option<Kept>, BadRow> {
    let Decoded { mut resource, waiter_turns, .. } = Decoded::of(front)?;
    let (Some(turn), Some(last)) = (waiter_turns.last(), resource.queue.back()) else { return Ok(None) };
    let (waiters, asked) = (resource.queue.len(), last.asked);
    let mut effects = Effects::default();
    let verdict = resource.claim(now, &mut HighWater::default(), claim, &mut effects);
    let kept = !effects.changed && resource.queue.len() == waiters;
    let Some(own) = resource.queue.back().filter(|own| kept && own.contender == claim.contender) else {
        return Ok(None);
    };
    let row = (own.asked != asked).then(|| EntryRow::of_waiter(*turn, own));
    let busy = matches!(verdict, Verdict::Busy { .. });
    Ok(busy.then_some(Kept { verdict, row, front: resource }))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{
        RowChange, Transition, Writes,
        samples::{at, claim, name},
    };

    /// The rows of a holder and two waiters that all came at the beginning.
    fn front(lease: Duration) -> Stored {
        let mut transition = Transition::new(at(0), HighWater::default());
        transition.add(&name("stock"), Stored::default()).expect("good rows");
        for seq in 1..=3 {
            transition.claim(&Claim { lease, ..claim("stock", seq) });
        }
        let (Writes { mut resources, .. }, _) = transition.finish();
        let writes = resources.remove(0);
        let rows = writes.entries.into_iter().map(|change| match change {
            RowChange::Put { after, .. } => after,
            RowChange::Remove(row) => panic!("{row:?}"),
        });
        Stored { row: writes.row, entries: rows.collect() }
    }

    /// Has the second of the waiters poll `seconds` after all of them came.
    fn poll_after(seconds: u64, lease: Duration) -> Option<Kept> {
        let poll = Claim { lease, stamp: 77, ..claim("stock", 3) };
        keep_position(at(seconds), &poll, front(lease)).expect("good rows")
    }

    #[test]
    fn only_polls_that_keep_a_position_are_done_on_the_front() {
        let long = Duration::from_secs(60);
        for (seconds, changed) in [(1, false), (4, false), (5, true), (14, true)] {
            let kept = poll_after(seconds, long).expect("it only keeps its position");
            assert!(matches!(kept.verdict, Verdict::Busy { ahead: 1, .. }), "{kept:?}");
            let asked = if changed { at(seconds) } else { at(0) }.lease;
            assert_eq!(kept.front.queue.back().map(|own| own.asked), Some(asked));
            let written = kept.row.map(|row| (row.turn, row.began.cast_unsigned(), row.stamp));
            assert_eq!(written, changed.then_some((2, asked.0, 77)), "after {seconds} s");
        }
        assert!(poll_after(15, long).is_none(), "the positions have expired");
        assert!(
            poll_after(3, Duration::from_secs(2)).is_none(),
            "the lease has ended, so the head is granted"
        );
        let other = claim("stock", 4);
        assert!(
            keep_position(at(1), &other, front(long)).expect("good rows").is_none(),
            "it does not wait yet"
        );
    }
}
