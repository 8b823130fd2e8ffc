//! Applies groups of claims and leaves. Requests that the records answer are answered from there. Plain ones are collected
//! into one transaction. The rest is done one after another, see `stepwise_claims` and `stepwise_leaves`.

use std::sync::Arc;

use lockkeeper_core::{
    Capacity, StoreError, Units,
    store::{Answer, Answers, Attachment, Claim, Details, Leave, Left, Request, Verdict},
};

use crate::{
    claims::Remembered,
    keeper::KeeperState,
    nodes::RemovalAnswer,
    records::ClaimState,
    session::Session,
    stepwise_claims::OwnSessions,
    transaction::{Operation, Removal},
};

/// How many bytes of claims go into one transaction. Servers take a megabyte in one request (`jute.maxbuffer`), unless
/// they are told otherwise.
const MOST_BYTES: usize = 512 << 10;

/// How many bytes a claim adds to a transaction, at most: a byte that is no plain letter is written as three.
fn size(claim: &Claim) -> usize {
    let length = |text: &Option<Arc<str>>| text.as_deref().map_or(0, str::len);
    let Details { process, label, value, .. } = &claim.details;
    let details = process.host.len() + process.program.len() + length(label) + length(value);
    3 * (claim.name.as_str().len() + details) + 512
}

/// A group that is being applied.
struct Group<'g> {
    session: Arc<Session>,
    own_sessions: OwnSessions,
    /// By position in the group; `None` until the answer is known.
    answers: Vec<Option<Answer>>,
    /// Operations that are not sent yet.
    pending: Vec<Operation<'g>>,
    /// How many bytes the pending claims have.
    bytes: usize,
}

/// The next step of a leave.
enum LeaveStep {
    Answered(Left),
    Remove(Removal),
    /// Several requests.
    Stepwise,
}

impl KeeperState {
    /// Applies a group.
    pub(crate) async fn apply(self: &Arc<Self>, requests: &[Request]) -> Result<Answers<Answer>, StoreError> {
        // Without a session nobody waits for the turn.
        self.session().inspect_err(|_| self.keep_waiting(requests))?;
        // Sessions are opened before the turn, so that nobody else waits for a slow server.
        let own_sessions = self.own_sessions_for(requests).await;
        let _turn = self.turn.lock().await;
        let answers = self.apply_in_turn(requests, own_sessions).await;
        // The reaper also has to look after requests that got no answer.
        self.sooner.notify_one();
        answers
    }

    async fn apply_in_turn(
        self: &Arc<Self>,
        requests: &[Request],
        own_sessions: OwnSessions,
    ) -> Result<Answers<Answer>, StoreError> {
        let mut group = Group {
            session: self.session()?,
            own_sessions,
            answers: vec![None; requests.len()],
            pending: Vec::with_capacity(requests.len()),
            bytes: 0,
        };
        for (position, request) in requests.iter().enumerate() {
            let contender = match request {
                Request::Leave(leave) => leave.contender,
                Request::Claim(claim) => claim.contender,
            };
            // A request depends on the outcome of an earlier one of the same contender.
            if group.pending.iter().any(|operation| operation.contender() == contender) {
                self.send_pending(&mut group).await?;
            }
            match request {
                Request::Leave(leave) => self.apply_leave(&mut group, position, leave).await?,
                Request::Claim(claim) => self.apply_claim(&mut group, position, claim).await?,
            }
        }
        self.send_pending(&mut group).await?;
        Ok(Answers { now: self.store_time(), each: group.answers.into_iter().flatten().collect() })
    }

    async fn send_pending(self: &Arc<Self>, group: &mut Group<'_>) -> Result<(), StoreError> {
        group.bytes = 0;
        let pending = std::mem::take(&mut group.pending);
        self.send(&group.session, pending, &mut group.answers).await
    }

    async fn apply_leave(
        self: &Arc<Self>,
        group: &mut Group<'_>,
        position: usize,
        leave: &Leave,
    ) -> Result<(), StoreError> {
        let left = match self.begin_leave(leave, position) {
            LeaveStep::Remove(removal) => {
                group.pending.push(Operation::Remove(removal));
                return Ok(());
            }
            LeaveStep::Answered(left) => left,
            LeaveStep::Stepwise => {
                self.send_pending(group).await?;
                self.leave_stepwise(&group.session, leave).await?
            }
        };
        group.answers[position] = Some(Answer::Leave(left));
        Ok(())
    }

    async fn apply_claim<'g>(
        self: &Arc<Self>,
        group: &mut Group<'g>,
        position: usize,
        claim: &'g Claim,
    ) -> Result<(), StoreError> {
        let verdict = match self.remembered(claim) {
            Remembered::Verdict(verdict) => verdict,
            Remembered::Nothing if claim.queue && !claim.attachment.may_outlive_process() && !claim.again => {
                if group.bytes + size(claim) > MOST_BYTES {
                    self.send_pending(group).await?;
                }
                group.bytes += size(claim);
                group.pending.push(Operation::Create { position, claim });
                return Ok(());
            }
            remembered => {
                self.send_pending(group).await?;
                let own_session = group.own_sessions.remove(&claim.contender);
                let verdict = match self.claim_stepwise(&group.session, claim, remembered, own_session).await
                {
                    Ok(Verdict::Granted(_)) if claim.attachment == Attachment::Detached => {
                        self.let_go(claim).await
                    }
                    verdict => verdict,
                };
                verdict.or_else(|error| self.own_session_failed(&group.session, claim, error))?
            }
        };
        group.answers[position] = Some(Answer::Claim(verdict));
        Ok(())
    }

    /// Remembers that these claims still wait, although the servers cannot be asked now.
    fn keep_waiting(&self, requests: &[Request]) {
        let (now, mut records) = (self.now(), self.records());
        for request in requests {
            if let Request::Claim(claim) = request
                && let Some(record) = records.claims.get_mut(&claim.contender)
                && let ClaimState::Waiting { asked, .. } = &mut record.state
            {
                *asked = now;
            }
        }
    }

    /// Decides the next step of a leave. If its node is to be removed, its record is leaving from now on.
    fn begin_leave(&self, leave: &Leave, position: usize) -> LeaveStep {
        let (now, time) = (self.now(), self.store_time());
        let mut records = self.records();
        if let Some(until) = leave.tombstone_until {
            records.left.insert(leave.contender, until, (), time);
        }
        let Some(record) = records.claims.get_mut(&leave.contender) else {
            // This keeper or another one may have detached it.
            return LeaveStep::Stepwise;
        };
        let left = match record.state {
            ClaimState::Unknown { .. } => return LeaveStep::Stepwise,
            ClaimState::Retired { .. } => return LeaveStep::Answered(Left::NotThere),
            ClaimState::Waiting { .. } => Left::LeftQueue,
            ClaimState::Leaving(left) => left,
            ClaimState::Holding(hold)
                if hold.granted.after(leave.hold_at_least) > now && !record.data.evicted =>
            {
                return LeaveStep::Stepwise;
            }
            ClaimState::Holding(_) => Left::Released,
        };
        let holds_alone = matches!(record.state, ClaimState::Holding(_))
            && (record.units, record.capacity) == (Units::All, Capacity::All)
            && record.markers.is_empty();
        let behind = record.behind.take().filter(|_| holds_alone);
        // An earlier removal may have been done while its answer was lost.
        let gone = if matches!(record.state, ClaimState::Leaving(_)) { left } else { Left::NotThere };
        record.leave(left);
        LeaveStep::Remove(Removal {
            position,
            contender: leave.contender,
            answer: RemovalAnswer { removed: left, gone },
            node: record.node.clone(),
            markers: record.markers.clone(),
            behind,
        })
    }
}
