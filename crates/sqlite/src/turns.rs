//! The line before a file within this process: its keepers write one after another, first come
//! first served.
//!
//! SQLite lets whoever asks at the right moment write next, so that with many keepers one may ask
//! in vain for long. Between processes that is what is left; within one, nobody overtakes but
//! renewals, whose leases run out meanwhile.

use lockkeeper_core::support;
use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard, Weak},
    thread::{self, Thread},
    time::Instant,
};

use crate::{place::Identity, writer::Urgency};

/// The lines of all files that keepers of this process have open.
static LINES: Mutex<Option<HashMap<Identity, Weak<Turns>>>> = Mutex::new(None);

/// The line before one file.
#[derive(Debug, Default)]
pub(crate) struct Turns(Mutex<Line>);

#[derive(Debug, Default)]
struct Line {
    /// Whose turn it is; a turn is passed on from one to the next without being free in between.
    turn: Option<u64>,
    waiting: VecDeque<Waiting>,
    last: u64,
}

#[derive(Debug)]
struct Waiting {
    ticket: u64,
    urgency: Urgency,
    thread: Thread,
}

/// Its owner may write; ends when dropped.
#[derive(Debug)]
pub(crate) struct Turn<'a>(&'a Turns);

impl Turns {
    /// The line before `file`.
    pub(crate) fn of(file: Identity) -> Arc<Self> {
        let mut lines = support::lock(&LINES);
        let lines = lines.get_or_insert_default();
        if let Some(line) = lines.get(&file).and_then(Weak::upgrade) {
            return line;
        }
        lines.retain(|_, line| line.strong_count() > 0);
        let line = Arc::new(Self::default());
        lines.insert(file, Arc::downgrade(&line));
        line
    }

    fn lock(&self) -> MutexGuard<'_, Line> {
        support::lock(&self.0)
    }

    /// Waits for this thread's turn; `None` when it has not come by `until`.
    pub(crate) fn take(&self, urgency: Urgency, until: Instant) -> Option<Turn<'_>> {
        let mut line = self.lock();
        line.last += 1;
        let own = line.last;
        if line.turn.is_none() {
            line.turn = Some(own);
            return Some(Turn(self));
        }
        let place = match urgency {
            Urgency::Usual => line.waiting.len(),
            Urgency::First => line.waiting.partition_point(|other| other.urgency == Urgency::First),
        };
        line.waiting.insert(place, Waiting { ticket: own, urgency, thread: thread::current() });
        loop {
            drop(line);
            let now = Instant::now();
            thread::park_timeout(until.saturating_duration_since(now));
            line = self.lock();
            if line.turn == Some(own) {
                return Some(Turn(self));
            }
            if now >= until {
                line.waiting.retain(|other| other.ticket != own);
                return None;
            }
        }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut line = self.0.lock();
        let next = line.waiting.pop_front();
        line.turn = next.as_ref().map(|next| next.ticket);
        drop(line);
        if let Some(next) = next {
            next.thread.unpark();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::mpsc, time::Duration};

    use super::*;

    fn take(turns: &Turns, urgency: Urgency) -> Turn<'_> {
        turns.take(urgency, Instant::now() + Duration::from_secs(60)).expect("it comes")
    }

    fn await_line(turns: &Turns, length: usize) {
        while turns.lock().waiting.len() < length {
            thread::yield_now();
        }
    }

    #[test]
    fn turns_come_in_the_order_of_arrival_but_renewals_first() {
        let file = (u64::MAX, 1);
        let turns = Turns::of(file);
        let (served, order) = mpsc::channel();
        thread::scope(|scope| {
            let first = take(&turns, Urgency::Usual);
            for place in 0..8 {
                let served = served.clone();
                scope.spawn(move || {
                    let urgency = if place % 3 == 2 { Urgency::First } else { Urgency::Usual };
                    let turns = Turns::of(file);
                    let _turn = take(&turns, urgency);
                    served.send(place).expect("heard");
                });
                await_line(&turns, place + 1);
            }
            drop(first);
        });
        drop(served);
        assert_eq!(order.iter().collect::<Vec<_>>(), [2, 5, 0, 1, 3, 4, 6, 7]);
        assert!(turns.take(Urgency::Usual, Instant::now()).is_some(), "in the end it is nobody's");
    }

    #[test]
    fn who_waited_too_long_is_passed() {
        let turns = Turns::of((u64::MAX, 2));
        let first = take(&turns, Urgency::Usual);
        assert!(turns.take(Urgency::Usual, Instant::now() + Duration::from_millis(1)).is_none());
        thread::scope(|scope| {
            let second = scope.spawn(|| drop(take(&turns, Urgency::Usual)));
            await_line(&turns, 1);
            drop(first);
            second.join().expect("the next one gets it");
        });
        let other = Turns::of((u64::MAX, 3));
        assert!(other.take(Urgency::Usual, Instant::now()).is_some(), "another file is not concerned");
    }
}
