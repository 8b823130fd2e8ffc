//! How holds and places are given back: by a release, by a dropped future or guard, by closing the
//! keeper. A leave goes on being tried until its lease would have ended anyway.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use tokio::sync::oneshot;

use super::{
    Engine,
    flight::Flight,
    group::{Job, LeaveJob},
    hold::Hold,
    seat::{Outcome, Seat},
};
use crate::{
    clock::BootTime,
    deadline,
    error::{Lost, StoreError},
    store::{Leave, Left},
    telemetry,
};

/// How long a keeper that was dropped without `close` goes on giving back.
const LAST_ERRANDS: Duration = Duration::from_secs(10);

impl Engine {
    /// Gives a hold back to the store; the caller lets the flight fly.
    pub(crate) fn give_back(
        self: &Arc<Self>,
        hold: &Hold,
        reply: Option<oneshot::Sender<Result<Left, StoreError>>>,
    ) -> Option<Flight> {
        hold.finish();
        // What was lost without its owner's fault still keeps others away for as long as it said.
        let keeps_its_minimum = !matches!(hold.lost(), Some(Lost::Evicted | Lost::Gone));
        let hold_at_least = if keeps_its_minimum { hold.terms.min_hold } else { Duration::ZERO };
        self.leave_hold(hold, hold_at_least, reply)
    }

    /// Gives back what nobody took, so that there is no minimum to keep; the caller lets the flight fly.
    pub(crate) fn give_up(self: &Arc<Self>, hold: &Hold) -> Option<Flight> {
        hold.finish();
        self.leave_hold(hold, Duration::ZERO, None)
    }

    fn leave_hold(
        self: &Arc<Self>,
        hold: &Hold,
        hold_at_least: Duration,
        reply: Option<oneshot::Sender<Result<Left, StoreError>>>,
    ) -> Option<Flight> {
        if !hold.leave_once() {
            return None;
        }
        let now = self.clock().now();
        telemetry::released(hold, || now.since(hold.granted));
        let leave = Leave {
            name: hold.name.clone(),
            contender: hold.contender,
            tombstone_until: hold.tombstone_until,
            hold_at_least,
        };
        if leave.hold_at_least.is_zero() {
            self.ledger.strike_hold(hold);
        } else {
            // It may live on without us: a late word of its grant must not end it early.
            self.ledger.let_go(hold);
        }
        // By the last answer it may be over sooner, but an answer that was lost may have been better.
        let slack = deadline::margin(hold.asked_until().since(now).max(hold.terms.claim_lease())) * 2;
        self.leave(leave, reply, hold.asked_until().after(slack).after(self.request_limit()))
    }

    /// Stops keeping a hold that lives on elsewhere.
    pub(crate) fn let_go(&self, hold: &Hold) {
        hold.finish();
        self.ledger.let_go(hold);
    }

    fn leave(
        self: &Arc<Self>,
        leave: Leave,
        reply: Option<oneshot::Sender<Result<Left, StoreError>>>,
        until: BootTime,
    ) -> Option<Flight> {
        if self.stop.is_stopped() {
            // Everything was given back before the keeper's thread ended.
            return None;
        }
        self.leaving.fetch_add(1, Ordering::AcqRel);
        let group = self.group(&leave.name);
        let job = LeaveJob { leave, reply, until, tries: 0 };
        if job.reply.is_some() {
            group.submit(self, [Job::Leave(job)])
        } else {
            group.leave_behind(self, job)
        }
    }

    /// Leaves in the background, trying until a lease of that length would have ended anyway.
    pub(crate) fn leave_soon(self: &Arc<Self>, leave: Leave, lease: Duration) {
        let lease = lease.max(Duration::from_secs(60));
        let until = self.clock().now().after(lease).after(deadline::margin(lease) * 2);
        let until = until.after(self.request_limit());
        if let Some(flight) = self.leave(leave, None, until) {
            flight.in_background();
        }
    }

    /// The answer to a leave. Who waits for it hears of a failure at once; the leave itself goes
    /// on being tried.
    pub(crate) fn left(self: &Arc<Self>, mut job: LeaveJob, result: Result<Left, StoreError>) {
        let now = self.clock().now();
        // The keeper's thread ends when nothing is under way any more, so what fails after its end is not tried again.
        let goes_on = now < job.until && !self.stop.is_stopped();
        let again = matches!(&result, Err(error) if error.is_passing()) && goes_on;
        if let Some(reply) = job.reply.take() {
            // The releasing task may be gone; the leave was done all the same.
            drop(reply.send(result));
        }
        if !again {
            if job.leave.contender.keeper == self.ids.keeper() {
                self.ledger.left(job.leave.contender.seq);
            }
            if self.leaving.fetch_sub(1, Ordering::AcqRel) == 1 {
                self.all_left.notify_waiters();
            }
            return;
        }
        job.tries += 1;
        let pause = Duration::from_millis(50) * 2u32.pow(job.tries.min(5) - 1);
        let (engine, group) = (self.clone(), self.group(&job.leave.name));
        self.background.spawn(async move {
            engine.clock().sleep_until(now.after(pause)).await;
            if let Some(flight) = group.submit(&engine, [Job::Leave(job)]) {
                flight.depart();
            }
        });
    }

    /// Waits until nothing is left to give back.
    async fn drained(&self) {
        loop {
            let all_left = self.all_left.notified();
            tokio::pin!(all_left);
            all_left.as_mut().enable();
            if self.leaving.load(Ordering::Acquire) == 0 {
                return;
            }
            all_left.await;
        }
    }

    /// Gives everything back, and ends when that is done. Dropping the future stops nothing.
    pub(crate) async fn close(self: &Arc<Self>) {
        self.shut(None);
        self.stop.stopped().await;
    }

    /// Nobody has the keeper any more: finish giving back, then end. Past the limit the leases end
    /// by themselves.
    pub(crate) fn wind_down(self: &Arc<Self>) {
        self.shut(Some(LAST_ERRANDS));
    }

    /// Ends all that is held and waited for, once, and lets the rest happen in the background.
    fn shut(self: &Arc<Self>, limit: Option<Duration>) {
        if self.closed.swap(true, Ordering::AcqRel) {
            return;
        }
        let everything = self.ledger.close();
        self.lanes.shut();
        for seat in everything.seats {
            drop(seat.tell(Outcome::Closed));
            if seat.is_known() {
                self.leave_soon(leave_of(&seat), seat.claim().lease);
            }
        }
        for hold in everything.holds {
            hold.lose(Lost::Closed);
            if let Some(flight) = self.give_back(&hold, None) {
                flight.in_background();
            }
        }
        self.watches.all_changed();
        let engine = self.clone();
        self.background.spawn(async move {
            match limit {
                Some(limit) => drop(engine.clock().within(limit, engine.drained()).await),
                None => engine.drained().await,
            }
            engine.watches.clear();
            // A store that does not answer must not keep the thread.
            engine.clock().within(engine.request_limit(), engine.store.close()).await;
            engine.stop.stop();
        });
    }
}

pub(super) fn leave_of(seat: &Seat) -> Leave {
    Leave {
        name: seat.claim().name.clone(),
        contender: seat.claim().contender,
        tombstone_until: seat.tombstone_until(),
        hold_at_least: Duration::ZERO,
    }
}
