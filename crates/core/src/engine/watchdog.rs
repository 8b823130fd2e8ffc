//! The keeper's beat: it renews what is held, ends what is over and asks again for what is
//! waited for. It runs on the keeper's own thread, so a blocked user runtime loses no lock.

use std::{sync::Arc, time::Duration};

use super::{
    Engine, by_server,
    hold::{Due, Hold},
};
use crate::{
    clock::BootTime,
    error::{Lost, StoreError, StoreErrorKind},
    store::{Renew, Renewed},
    telemetry,
};

/// Renewals due within this time of one that is due go out with it.
const TOGETHER: Duration = Duration::from_millis(50);

/// The beat, until the keeper ends.
pub(crate) async fn beat(engine: Arc<Engine>) {
    loop {
        let latest = engine.look_around();
        tokio::select! {
            biased;
            () = engine.stop().stopped() => return,
            () = engine.ledger().until_due(engine.clock(), latest) => {}
        }
    }
}

impl Engine {
    /// Does what is due; returns when to look again at the latest.
    fn look_around(self: &Arc<Self>) -> BootTime {
        let now = self.clock().now();
        let due = self.ledger().take_due(now, TOGETHER);
        if !due.seats.is_empty() {
            self.ask_again(due.seats);
        }
        let mut renewals = Vec::new();
        for hold in due.holds {
            match hold.plan(now, TOGETHER) {
                Due::Over => self.ledger().lost(hold.slot),
                Due::Later => self.ledger().look_again(&hold),
                Due::Renew(lease) => {
                    self.ledger().look_again(&hold);
                    renewals.push((hold, lease));
                }
            }
        }
        for (_, renewals) in by_server(&**self.store(), renewals, |(hold, _)| &hold.name) {
            let mut renewals = renewals.into_iter().peekable();
            while renewals.peek().is_some() {
                let batch = renewals.by_ref().take(self.group_limit()).collect();
                let engine = self.clone();
                self.background().spawn(async move { engine.renew(batch).await });
            }
        }
        self.watches().sweep(now)
    }

    /// Renews one batch as one request.
    async fn renew(self: Arc<Self>, batch: Vec<(Arc<Hold>, Duration)>) {
        let requests: Vec<Renew> = batch.iter().map(|(hold, lease)| renewal(hold, *lease)).collect();
        let sent = self.clock().now();
        for (hold, lease) in &batch {
            hold.asks_for(sent, *lease);
        }
        let result = self.ask_store("renew", self.store().renew(&requests)).await;
        let now = self.clock().now();
        match result {
            Ok(answers) => {
                if let Some((hold, _)) = batch.first() {
                    let server = self.store().server_of(&hold.name);
                    self.store_clock().heard(server, now, answers.now);
                }
                let mut answers = answers.each.into_iter();
                for (hold, _) in &batch {
                    match answers.next() {
                        Some(answer) => self.renewed(hold, sent, answer, now),
                        None => self.not_renewed(hold, sent, now),
                    }
                }
            }
            Err(error) => {
                telemetry::renewal_failed(batch.len(), &error);
                for (hold, _) in &batch {
                    self.not_renewed(hold, sent, now);
                }
            }
        }
    }

    /// A renewal came to nothing: try again soon.
    fn not_renewed(&self, hold: &Hold, sent: BootTime, now: BootTime) {
        hold.unanswered(sent, now);
        self.ledger().look_again(hold);
    }

    /// Takes in the answer to a renewal, whoever asked for it.
    pub(crate) fn renewed(&self, hold: &Hold, sent: BootTime, answer: Renewed, now: BootTime) {
        match answer {
            Renewed::Held { remaining } => {
                telemetry::renewed(hold, now);
                hold.answered(sent, remaining, now);
            }
            Renewed::Gone => hold.lose(Lost::Gone),
            Renewed::Evicted => hold.lose(Lost::Evicted),
            Renewed::Unknown => hold.unanswered(sent, now),
        }
        if hold.lost().is_some() {
            self.ledger().lost(hold.slot);
        } else {
            self.ledger().look_again(hold);
        }
    }
}

/// The one lease that was to be renewed is not known to be.
pub(crate) fn not_renewed() -> StoreError {
    StoreError::new(
        StoreErrorKind::Unreachable,
        "the store did not say whether the lease was renewed; ask again",
    )
}

/// A renewal that only extends.
pub(crate) fn renewal(hold: &Hold, lease: Duration) -> Renew {
    Renew { name: hold.name.clone(), contender: hold.contender, lease, lower_to: None, detach: false }
}
