//! A contender's knowledge of one member.

use lockkeeper_core::{GrantNumber, clock::BootTime, deadline};

use super::{Request, Said, Stamp};

/// A contender's knowledge of one member, and its requests there.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(super) struct AtMember {
    /// Answers to requests before this one say nothing any more.
    pub(super) from: Stamp,
    /// The request whose answer was taken last.
    pub(super) heard: Stamp,
    status: Status,
    /// The last hold there. It may be over.
    hold: Option<AtMemberHold>,
    /// Claims without an answer, which may still arrive, and whether their answer is still waited for.
    claims: Vec<(Stamp, Awaited)>,
    /// The highest number that the hold is being raised to.
    raising: Option<(Stamp, GrantNumber)>,
    /// Whether the last leave was confirmed.
    left: bool,
}

/// What is known of the contender at this member.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub(super) enum Status {
    /// Nothing was heard, or it has left.
    #[default]
    Out,
    /// It holds.
    Held,
    /// It waits in the queue.
    InQueue,
    /// Somebody else holds, and it does not wait.
    Busy,
    /// It held, and does not any more.
    Gone,
    /// A leave is under way.
    Leaving,
    /// A leave got no answer, so it may arrive at any time: this id cannot be used there any more.
    Spent,
    /// A leave has left a tombstone: this id cannot be used there until that has ended.
    Tombstoned,
}

/// Whether somebody still waits for an answer.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Awaited {
    Yes,
    No,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct AtMemberHold {
    pub(super) number: GrantNumber,
    pub(super) floor: GrantNumber,
    pub(super) deadline: BootTime,
    pub(super) votes: bool,
    pub(super) since: GrantNumber,
}

impl AtMemberHold {
    /// Whether it was granted, or raised, since the member votes. Before that its number may be below tokens that were
    /// told with the help of this member and that it has forgotten.
    pub(super) fn is_fresh(&self) -> bool {
        self.number > self.since
    }
}

impl AtMember {
    pub(super) fn sent(&mut self, stamp: Stamp, request: Request) {
        match request {
            Request::Claim { .. } => self.claims.push((stamp, Awaited::Yes)),
            Request::Raise { to } => self.raising = Some((stamp, to)),
            Request::Renew { .. } => {}
            Request::Leave { .. } => {
                // The leave ends all effects of earlier requests.
                self.from = stamp;
                self.status = Status::Leaving;
                self.raising = None;
                self.left = false;
            }
        }
    }

    /// Notes that the request with this stamp is not under way any more.
    pub(super) fn answered(&mut self, stamp: Stamp) {
        self.claims.retain(|(claim, _)| *claim != stamp);
        self.raising = self.raising.filter(|(raise, _)| *raise != stamp);
    }

    pub(super) fn silent(&mut self, stamp: Stamp) {
        for (claim, awaited) in &mut self.claims {
            if *claim == stamp {
                *awaited = Awaited::No;
            }
        }
        self.raising = self.raising.filter(|(raise, _)| *raise != stamp);
        if self.status == Status::Leaving && self.from == stamp {
            self.status = Status::Spent;
        }
    }

    /// Takes an answer. `first_floor`: a mistake.
    pub(super) fn take(&mut self, stamp: Stamp, sent: BootTime, said: &Said, first_floor: bool) {
        self.from = Stamp(self.from.0.max(stamp.0 + 1));
        self.heard = self.heard.max(stamp);
        match said {
            Said::Held { number, floor, remaining, votes, since } => {
                let before = self.hold.filter(|_| first_floor && self.status == Status::Held);
                self.hold = Some(AtMemberHold {
                    number: *number,
                    floor: before.map_or(*floor, |before| before.floor),
                    deadline: deadline::from_answer(sent, *remaining),
                    votes: *votes,
                    since: *since,
                });
                self.status = Status::Held;
            }
            Said::Busy { in_queue: true } => self.status = Status::InQueue,
            Said::Busy { in_queue: false } => self.status = Status::Busy,
            Said::Gone | Said::Evicted(_) => self.status = Status::Gone,
            Said::Stale if self.left => self.status = Status::Tombstoned,
            // It came too late for the clock of the member, and did nothing: what was there before still is.
            Said::Stale => {}
            Said::Left => {
                self.left = true;
                if self.status == Status::Leaving {
                    self.status = Status::Out;
                }
            }
        }
    }

    /// Forgets the hold there: it does not count any more.
    pub(super) fn forget(&mut self) {
        if self.status == Status::Held {
            self.status = Status::Gone;
        }
        self.raising = None;
    }

    /// Returns what is known of the contender. A hold is over when its deadline has passed.
    pub(super) fn status(&self, now: BootTime) -> Status {
        match self.hold {
            Some(hold) if self.status == Status::Held && hold.deadline <= now => Status::Gone,
            _ => self.status,
        }
    }

    /// The hold, if it is not over and the member votes.
    pub(super) fn vote(&self, now: BootTime) -> Option<AtMemberHold> {
        self.hold.filter(|hold| hold.votes && self.status(now) == Status::Held)
    }

    pub(super) fn counts(&self, now: BootTime) -> bool {
        self.vote(now).is_some()
    }

    /// The hold there, or the last one.
    pub(super) fn last_hold(&self) -> Option<AtMemberHold> {
        self.hold
    }

    /// The number that the hold is to be raised to, if it is not over and below that.
    pub(super) fn low(&self, target: GrantNumber, now: BootTime) -> Option<GrantNumber> {
        let hold = self.hold.filter(|_| self.status(now) == Status::Held)?;
        let least = if hold.votes { target.max(hold.since + 1) } else { target };
        (hold.number < least).then_some(least)
    }

    /// Whether the answer to a claim is waited for.
    pub(super) fn is_claiming(&self) -> bool {
        self.claims.iter().any(|(stamp, awaited)| *awaited == Awaited::Yes && *stamp >= self.from)
    }

    /// Whether the answer to a claim is under way, even if it says nothing any more.
    pub(super) fn awaits_claim(&self) -> bool {
        self.claims.iter().any(|(_, awaited)| *awaited == Awaited::Yes)
    }

    /// Whether a claim since the last leave got no answer, so that it may hold or wait there without knowing it.
    pub(super) fn has_lost_claim(&self) -> bool {
        let is_lost = |(stamp, awaited): &(Stamp, Awaited)| *awaited == Awaited::No && *stamp >= self.from;
        !self.is_claiming() && self.claims.iter().any(is_lost)
    }

    /// Whether a claim without an answer may still arrive.
    pub(super) fn may_arrive(&self) -> bool {
        !self.claims.is_empty()
    }

    /// Whether a request that raises the number to this or more is under way.
    pub(super) fn is_raising(&self, target: GrantNumber) -> bool {
        self.raising.is_some_and(|(_, to)| to >= target)
    }

    pub(super) fn has_left(&self) -> bool {
        self.left
    }

    /// Forgets a hold that is over.
    #[cfg(test)]
    pub(super) fn forget_lost(&mut self, now: BootTime) {
        self.status = self.status(now);
        if self.status != Status::Held {
            self.hold = None;
        }
    }

    #[cfg(test)]
    pub(super) fn stamps(&self) -> Vec<Stamp> {
        let claims = self.claims.iter().map(|(stamp, _)| *stamp);
        let raising = self.raising.map(|(stamp, _)| stamp);
        [self.from, self.heard].into_iter().chain(claims).chain(raising).collect()
    }

    #[cfg(test)]
    pub(super) fn renumber(&mut self, new: &std::collections::BTreeMap<Stamp, Stamp>) {
        self.from = new[&self.from];
        self.heard = new[&self.heard];
        for (stamp, _) in &mut self.claims {
            *stamp = new[stamp];
        }
        if let Some((stamp, _)) = &mut self.raising {
            *stamp = new[stamp];
        }
    }
}
