//! One process of the demo and the lock that it wants again and again.

use std::{sync::Arc, time::Duration};

use lockkeeper::{
    StoreError,
    store::{
        Answer, Attachment, Capacity, Claim, ContenderId, Details, KeeperId, Kind, Leave, Name, ProcessInfo,
        Renew, Renewed, Request, Store, StoreTime, Units, Verdict,
    },
};

use super::Dice;
use crate::clock::Millis;

/// A process and its script.
#[derive(Clone, Debug)]
pub(crate) struct Job {
    pub(crate) name: Name,
    pub(crate) kind: Kind,
    pub(crate) units: Units,
    pub(crate) capacity: Capacity,
    pub(crate) process: Arc<ProcessInfo>,
    pub(crate) label: Option<Arc<str>>,
    pub(crate) value: Option<Arc<str>>,
    pub(crate) lease: Millis,
    /// How long it holds, at least and at most.
    pub(crate) hold: (Millis, Millis),
    /// How long it pauses between two claims, at least and at most.
    pub(crate) pause: (Millis, Millis),
    /// Times of long holds: the time from one to the next, and their length.
    pub(crate) slow: Option<(Millis, Millis)>,
    /// From when on it crashes if it holds, once.
    pub(crate) crashes_at: Option<Millis>,
    pub(crate) state: State,
    pub(crate) keeper: KeeperId,
    pub(crate) seq: u64,
}

/// The present state of a process.
#[derive(Clone, Copy, Debug)]
pub(crate) enum State {
    Pauses { until: Millis },
    Waits(ContenderId),
    Holds { contender: ContenderId, until: Millis, renews: Millis },
}

impl Job {
    pub(crate) async fn step(
        &mut self,
        store: &dyn Store,
        dice: &mut Dice,
        now: Millis,
    ) -> Result<(), StoreError> {
        match self.state {
            State::Pauses { until } if now >= until => {
                self.seq += 1;
                let contender = ContenderId { keeper: self.keeper, seq: self.seq };
                self.claim(store, dice, now, contender, false).await
            }
            State::Pauses { .. } => Ok(()),
            State::Waits(contender) => self.claim(store, dice, now, contender, true).await,
            State::Holds { contender, .. } if self.crashes_at.is_some_and(|at| now >= at) => {
                // Nobody renews its lease any more, and a new process takes its place later.
                let _ = contender;
                self.crashes_at = None;
                let pid = self.process.pid + 731;
                self.process = Arc::new(ProcessInfo { pid, ..(*self.process).clone() });
                self.keeper = KeeperId::random();
                self.state = State::Pauses { until: now + self.lease + 90_000 };
                Ok(())
            }
            State::Holds { contender, until, .. } if now >= until => {
                self.leave(store, contender).await?;
                self.pause(dice, now);
                Ok(())
            }
            State::Holds { contender, until, renews } if now >= renews => {
                let renew = Renew {
                    name: self.name.clone(),
                    contender,
                    lease: Duration::from_millis(self.lease),
                    lower_to: None,
                    detach: false,
                    at_least: 0,
                };
                let answers = store.renew(&[renew]).await?;
                match answers.each.first() {
                    Some(Renewed::Evicted(_)) => {
                        self.leave(store, contender).await?;
                        self.pause(dice, now);
                    }
                    Some(Renewed::Gone) => self.pause(dice, now),
                    _ => self.state = State::Holds { contender, until, renews: now + self.lease / 3 },
                }
                Ok(())
            }
            State::Holds { .. } => Ok(()),
        }
    }

    fn pause(&mut self, dice: &mut Dice, now: Millis) {
        self.state = State::Pauses { until: now + dice.between(self.pause.0, self.pause.1) };
    }

    async fn claim(
        &mut self,
        store: &dyn Store,
        dice: &mut Dice,
        now: Millis,
        contender: ContenderId,
        again: bool,
    ) -> Result<(), StoreError> {
        let claim = Claim {
            name: self.name.clone(),
            contender,
            units: self.units,
            capacity: self.capacity,
            lease: Duration::from_millis(self.lease),
            queue: true,
            attachment: Attachment::Process,
            renewed: true,
            at_least: 0,
            min_hold: Duration::ZERO,
            not_after: StoreTime(u64::MAX),
            stamp: 0,
            again,
            details: Details {
                kind: self.kind,
                process: self.process.clone(),
                label: self.label.clone(),
                value: self.value.clone(),
            },
        };
        let answers = store.apply(&[Request::Claim(claim)]).await?;
        self.state = match answers.each.first() {
            Some(Answer::Claim(Verdict::Granted(_))) => {
                let slow = self.slow.filter(|(every, length)| now % every < *length);
                let hold = slow.map_or_else(|| dice.between(self.hold.0, self.hold.1), |(_, length)| length);
                // A grant that was pushed is confirmed with the next step.
                State::Holds { contender, until: now + hold, renews: now }
            }
            _ => State::Waits(contender),
        };
        Ok(())
    }

    async fn leave(&self, store: &dyn Store, contender: ContenderId) -> Result<(), StoreError> {
        let leave = Leave {
            name: self.name.clone(),
            contender,
            tombstone_until: None,
            hold_at_least: Duration::ZERO,
        };
        store.apply(&[Request::Leave(leave)]).await.map(drop)
    }
}
