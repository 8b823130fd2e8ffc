//! The requests to one member that are sent later: leaves that it has not done, leaves that wait for the answer to
//! their own claim, and claims that follow these.
//!
//! A member that answers last is asked to leave while its claim is still under way. A leave that is sent then needs a
//! tombstone, because it may overtake the claim. Tombstones make all later claims of that name slower. Nearly always
//! the answer comes within moments, and after that the leave needs none.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Mutex, MutexGuard, atomic::AtomicUsize},
};

use lockkeeper_core::{Name, clock::BootTime, support};
use tokio::sync::Notify;

use crate::contest::Outgoing;

/// The requests to one member that are sent later.
#[derive(Default, Debug)]
pub(crate) struct Outbox {
    leaves: Mutex<Leaves>,
    held_back: Mutex<HeldBack>,
    /// How many leaves the member has not answered, also those that were not sent yet.
    pub(crate) leaving: AtomicUsize,
    /// Told when the member answers again, so that leaves that it has not done may be sent at once.
    pub(crate) is_back: Notify,
}

/// Leaves that the member has not done, each with the time until which it is sent.
#[derive(Default, Debug)]
pub(crate) struct Leaves {
    waiting: VecDeque<(Outgoing, BootTime)>,
    /// Whether a task sends them.
    are_sent: bool,
}

/// Requests that are held back, by name. The first of each name is a leave that waits for the answer to its claim.
/// Later claims of that name stay behind it, since they would find the lock taken.
#[derive(Default, Debug)]
pub(crate) struct HeldBack {
    waiting: HashMap<Name, VecDeque<(Outgoing, BootTime)>>,
    /// Whether a task sends requests that wait for too long.
    is_timed: bool,
}

impl Outbox {
    pub(crate) fn leaves(&self) -> MutexGuard<'_, Leaves> {
        support::lock(&self.leaves)
    }

    pub(crate) fn held_back(&self) -> MutexGuard<'_, HeldBack> {
        support::lock(&self.held_back)
    }
}

impl Leaves {
    /// Adds leaves that are to be sent again; true if the caller has to start the task that sends them.
    pub(crate) fn add(&mut self, leaves: Vec<Outgoing>, until: BootTime) -> bool {
        self.waiting.extend(leaves.into_iter().map(|leave| (leave, until)));
        !std::mem::replace(&mut self.are_sent, true)
    }

    /// Takes some to send, with those that are not sent any more. Without any to send, the task ends.
    pub(crate) fn take(&mut self, now: BootTime, most: usize) -> (Vec<(Outgoing, BootTime)>, Vec<Outgoing>) {
        let (mut next, mut given_up) = (Vec::new(), Vec::new());
        while next.len() < most
            && let Some((leave, until)) = self.waiting.pop_front()
        {
            if until <= now { given_up.push(leave) } else { next.push((leave, until)) }
        }
        self.are_sent = !next.is_empty();
        (next, given_up)
    }

    /// Puts leaves back that were not done. Others are sent before them.
    pub(crate) fn put_back(&mut self, leaves: impl IntoIterator<Item = (Outgoing, BootTime)>) {
        self.waiting.extend(leaves);
    }
}

impl HeldBack {
    /// Takes the requests that have to wait, until this time at most. Returns the rest.
    pub(crate) fn sift(&mut self, requests: Vec<Outgoing>, until: BootTime) -> Vec<Outgoing> {
        let mut at_once = Vec::with_capacity(requests.len());
        for request in requests {
            // It was overtaken by a leave, and that leave may wait for it.
            if request.contest.is_pointless(&request.ask) {
                continue;
            }
            let name = &request.contest.name;
            match self.waiting.get_mut(name) {
                Some(before) if !request.is_leave() || request.waits_for_claim() => {
                    before.push_back((request, until));
                }
                None if request.waits_for_claim() => {
                    self.waiting.insert(name.clone(), VecDeque::from([(request, until)]));
                }
                _ => at_once.push(request),
            }
        }
        at_once
    }

    /// Returns the requests that need not wait any more, in their order.
    pub(crate) fn due(&mut self, now: BootTime) -> Vec<Outgoing> {
        let mut due = Vec::new();
        self.waiting.retain(|_, waiting| {
            while let Some((first, until)) = waiting.front() {
                // A claim that was overtaken by its leave is not sent, so the leave does not wait for it.
                let is_pointless = first.contest.is_pointless(&first.ask);
                if !is_pointless && first.waits_for_claim() && now < *until {
                    return true;
                }
                due.extend(waiting.pop_front().map(|(request, _)| request).filter(|_| !is_pointless));
            }
            false
        });
        due
    }

    /// Returns true if something waits, and the caller has to start the task that sends requests that wait for too
    /// long.
    pub(crate) fn begin_to_time(&mut self) -> bool {
        !self.waiting.is_empty() && !std::mem::replace(&mut self.is_timed, true)
    }

    /// Returns true if nothing waits, and the task that sends requests that wait for too long has to end.
    pub(crate) fn end_to_time(&mut self) -> bool {
        self.is_timed = !self.waiting.is_empty();
        !self.is_timed
    }
}
