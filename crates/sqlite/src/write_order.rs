//! The order in which the keepers of this process write to one file: first come, first served.
//!
//! In SQLite the next writer is the one that asks at the right moment. With many keepers one of them may wait for long:
//! a thread that has waited looks less often than one that just came, and on a busy disk renewals came too late.
//! Between processes nothing can be done about that. Within a process only renewals overtake, because their leases run
//! out.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard, Weak},
    thread::{self, Thread},
    time::Instant,
};

use lockkeeper_core::support;

use crate::{file::FileId, ticket::Urgency};

/// The orders of all files that keepers of this process have open.
static ORDERS: Mutex<Option<HashMap<FileId, Weak<WriteOrder>>>> = Mutex::new(None);

/// The order of writes to one file.
#[derive(Debug, Default)]
pub(crate) struct WriteOrder(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// The thread that may write. The permit passes from one thread to the next without being free in between.
    writing: Option<u64>,
    waiting: VecDeque<WaitingThread>,
    last: u64,
}

#[derive(Debug)]
struct WaitingThread {
    number: u64,
    urgency: Urgency,
    thread: Thread,
}

/// Permits its owner to write, until it is dropped.
#[derive(Debug)]
pub(crate) struct WritePermit<'a>(&'a WriteOrder);

impl WriteOrder {
    /// The order of writes to `file`.
    pub(crate) fn of(file: FileId) -> Arc<Self> {
        let mut orders = support::lock(&ORDERS);
        let orders = orders.get_or_insert_default();
        if let Some(order) = orders.get(&file).and_then(Weak::upgrade) {
            return order;
        }
        orders.retain(|_, order| order.strong_count() > 0);
        let order = Arc::new(Self::default());
        orders.insert(file, Arc::downgrade(&order));
        order
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        support::lock(&self.0)
    }

    /// Waits until this thread may write; `None` if that takes longer than `until`.
    pub(crate) fn take(&self, urgency: Urgency, until: Instant) -> Option<WritePermit<'_>> {
        let mut state = self.lock();
        state.last += 1;
        let own = state.last;
        if state.writing.is_none() {
            state.writing = Some(own);
            return Some(WritePermit(self));
        }
        let position = match urgency {
            Urgency::Usual => state.waiting.len(),
            Urgency::First => state.waiting.partition_point(|other| other.urgency == Urgency::First),
        };
        state.waiting.insert(position, WaitingThread { number: own, urgency, thread: thread::current() });
        loop {
            drop(state);
            let now = Instant::now();
            thread::park_timeout(until.saturating_duration_since(now));
            state = self.lock();
            if state.writing == Some(own) {
                return Some(WritePermit(self));
            }
            if now >= until {
                state.waiting.retain(|other| other.number != own);
                return None;
            }
        }
    }
}

impl Drop for WritePermit<'_> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        let next = state.waiting.pop_front();
        state.writing = next.as_ref().map(|next| next.number);
        drop(state);
        if let Some(next) = next {
            next.thread.unpark();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::mpsc, time::Duration};

    use super::*;

    fn take(order: &WriteOrder, urgency: Urgency) -> WritePermit<'_> {
        order.take(urgency, Instant::now() + Duration::from_secs(60)).expect("it comes")
    }

    fn await_waiting(order: &WriteOrder, length: usize) {
        while order.lock().waiting.len() < length {
            thread::yield_now();
        }
    }

    #[test]
    fn permits_come_in_the_order_of_arrival_but_renewals_first() {
        let file = FileId { device: u64::MAX, inode: 1 };
        let order = WriteOrder::of(file);
        let (served, in_order) = mpsc::channel();
        thread::scope(|scope| {
            let first = take(&order, Urgency::Usual);
            for position in 0..8 {
                let served = served.clone();
                scope.spawn(move || {
                    let urgency = if position % 3 == 2 { Urgency::First } else { Urgency::Usual };
                    let order = WriteOrder::of(file);
                    let _permit = take(&order, urgency);
                    served.send(position).expect("heard");
                });
                await_waiting(&order, position + 1);
            }
            drop(first);
        });
        drop(served);
        assert_eq!(in_order.iter().collect::<Vec<_>>(), [2, 5, 0, 1, 3, 4, 6, 7]);
        assert!(order.take(Urgency::Usual, Instant::now()).is_some(), "in the end no thread has the permit");
    }

    #[test]
    fn a_thread_that_waited_too_long_is_passed() {
        let order = WriteOrder::of(FileId { device: u64::MAX, inode: 2 });
        let first = take(&order, Urgency::Usual);
        assert!(order.take(Urgency::Usual, Instant::now() + Duration::from_millis(1)).is_none());
        thread::scope(|scope| {
            let second = scope.spawn(|| drop(take(&order, Urgency::Usual)));
            await_waiting(&order, 1);
            drop(first);
            second.join().expect("the next one gets it");
        });
        let other = WriteOrder::of(FileId { device: u64::MAX, inode: 3 });
        assert!(other.take(Urgency::Usual, Instant::now()).is_some(), "another file has its own order");
    }
}
