//! Groups of claims and leaves. What this keeper knows is answered from memory; the rest goes out as
//! one transaction, and behind it, without waiting, the listings that say who was admitted.

use std::sync::Arc;

use lockkeeper_core::{
    Capacity, ContenderId, StoreError, Units,
    store::{Answer, Answers, Claim, Details, Leave, Left, Request},
};
use zookeeper_client::MultiWriteResult;

use crate::{
    claims::{NewNode, Remembered, add_number, checked, number_of},
    codec::ClaimData,
    keeper::KeeperState,
    memory::ClaimState,
    queue::follows,
    session::Session,
    stepwise::OwnSessions,
    trouble::{corrupt, refused, trouble},
};

/// What has to be asked of the server for one record of a group.
enum Op<'a> {
    Create {
        position: usize,
        claim: &'a Claim,
    },
    Delete {
        position: usize,
        contender: ContenderId,
        left: Left,
        /// What it means that the node is gone already.
        if_gone: Left,
        node: String,
        markers: Vec<String>,
        /// If it holds alone: who stood behind it when it was admitted.
        behind: Option<Vec<String>>,
    },
}

impl Op<'_> {
    fn contender(&self) -> ContenderId {
        match self {
            Self::Create { claim, .. } => claim.contender,
            Self::Delete { contender, .. } => *contender,
        }
    }
}

/// How it is learned who stands in line with a claim whose node is made by a transaction.
enum Others<L> {
    /// By a listing, which is under way.
    Listed(L),
    /// The same transaction removes what held alone, and these were in line behind it: if the claim came right after the
    /// last of them, nobody else is before it.
    Remembered { removed: String, behind: Vec<String> },
}

/// Servers take a megabyte at most in one request (`jute.maxbuffer`), unless they are told otherwise.
const MOST_BYTES: usize = 512 << 10;

/// How many bytes a claim adds to a transaction, at most: whatever is not plain is written as three.
fn note_size(claim: &Claim) -> usize {
    let length = |text: &Option<Arc<str>>| text.as_deref().map_or(0, str::len);
    let Details { process, label, value, .. } = &claim.details;
    let said = process.host.len() + process.program.len() + length(label) + length(value);
    3 * (claim.name.as_str().len() + said) + 512
}

type GroupAnswers = Vec<Option<Answer>>;

impl KeeperState {
    /// Does a group.
    pub(crate) async fn apply(self: &Arc<Self>, group: &[Request]) -> Result<Answers<Answer>, StoreError> {
        // Nobody waits for a turn only to hear this.
        self.session().inspect_err(|_| self.still_wanted(group))?;
        // Before the turn, so that nobody waits for a server that is slow to open them.
        let own = self.sessions_for(group).await;
        let _turn = self.turn.lock().await;
        let answers = self.apply_in_turn(group, own).await;
        // Also what got no answer has to be looked after.
        self.sooner.notify_one();
        answers
    }

    async fn apply_in_turn(
        self: &Arc<Self>,
        group: &[Request],
        mut own: OwnSessions,
    ) -> Result<Answers<Answer>, StoreError> {
        let session = self.session()?;
        let mut answers: GroupAnswers = vec![None; group.len()];
        let mut ops: Vec<Op<'_>> = Vec::with_capacity(group.len());
        let mut bytes = 0;
        for (position, request) in group.iter().enumerate() {
            let contender = match request {
                Request::Leave(leave) => leave.contender,
                Request::Claim(claim) => claim.contender,
            };
            // What an earlier record of the same contender comes to is known once it was sent.
            if ops.iter().any(|op| op.contender() == contender) {
                self.send(&session, std::mem::take(&mut ops), &mut answers).await?;
            }
            let answer = match request {
                Request::Leave(leave) => match self.begin_leave(leave, position) {
                    Ok(op) => {
                        ops.push(op);
                        continue;
                    }
                    Err(Some(left)) => Answer::Leave(left),
                    Err(None) => {
                        self.send(&session, std::mem::take(&mut ops), &mut answers).await?;
                        Answer::Leave(self.leave_alone(&session, leave).await?)
                    }
                },
                Request::Claim(claim) => match self.known(claim) {
                    Remembered::Answer(verdict) => Answer::Claim(verdict),
                    Remembered::New if claim.queue && !claim.detachable && !claim.again => {
                        bytes += note_size(claim);
                        if bytes > MOST_BYTES {
                            bytes = note_size(claim);
                            self.send(&session, std::mem::take(&mut ops), &mut answers).await?;
                        }
                        ops.push(Op::Create { position, claim });
                        continue;
                    }
                    known @ (Remembered::New | Remembered::Unknown(_) | Remembered::Holding(..)) => {
                        self.send(&session, std::mem::take(&mut ops), &mut answers).await?;
                        let own = own.remove(&claim.contender);
                        let verdict = self.claim_alone(&session, claim, known, own).await;
                        Answer::Claim(verdict.or_else(|error| self.in_trouble(&session, claim, error))?)
                    }
                },
            };
            answers[position] = Some(answer);
        }
        self.send(&session, ops, &mut answers).await?;
        let each = answers.into_iter().flatten().collect();
        Ok(Answers { now: self.store_time(), each })
    }

    /// These still wait, though nobody can be asked for them now.
    fn still_wanted(&self, group: &[Request]) {
        let (now, mut memory) = (self.now(), self.memory());
        for request in group {
            if let Request::Claim(claim) = request
                && let Some(record) = memory.records.get_mut(&claim.contender)
                && let ClaimState::Waiting { asked, .. } = &mut record.state
            {
                *asked = now;
            }
        }
    }

    /// What a leave needs: one removal, nothing more (`Err` with the answer), or several steps (`Err` with
    /// none).
    fn begin_leave(&self, leave: &Leave, position: usize) -> Result<Op<'static>, Option<Left>> {
        let (now, time) = (self.now(), self.store_time());
        let mut memory = self.memory();
        if let Some(until) = leave.tombstone_until {
            memory.left.insert(leave.contender, until, (), time);
        }
        let Some(record) = memory.records.get_mut(&leave.contender) else {
            // It may have been detached, here or by another keeper.
            return Err(None);
        };
        let left = match record.state {
            ClaimState::Unknown { .. } => return Err(None),
            ClaimState::Retired { .. } => return Err(Some(Left::NotThere)),
            ClaimState::Waiting { .. } => Left::LeftQueue,
            ClaimState::Leaving(left) => left,
            ClaimState::Holding(hold) => {
                if hold.granted.after(leave.hold_at_least) > now && !record.note.evicted {
                    return Err(None);
                }
                Left::Released
            }
        };
        let holds_alone = matches!(record.state, ClaimState::Holding(_))
            && (record.units, record.capacity) == (Units::All, Capacity::All)
            && record.markers.is_empty();
        let behind = record.behind.take().filter(|_| holds_alone);
        // An earlier removal may have been done and its answer lost.
        let if_gone = if matches!(record.state, ClaimState::Leaving(_)) { left } else { Left::NotThere };
        record.leave(left);
        let (node, markers) = (record.node.clone(), record.markers.clone());
        Ok(Op::Delete { position, contender: leave.contender, left, if_gone, node, markers, behind })
    }

    /// Sends all of `ops` as one transaction; if that is refused, one by one.
    async fn send(
        self: &Arc<Self>,
        session: &Arc<Session>,
        ops: Vec<Op<'_>>,
        answers: &mut GroupAnswers,
    ) -> Result<(), StoreError> {
        match ops.len() {
            0 => return Ok(()),
            1 => return self.send_singly(session, ops, answers).await,
            _ => {}
        }
        let sent = session.now();
        let mut multi = session.client.new_multi_writer();
        let mut folder = None;
        for op in &ops {
            match op {
                Op::Delete { node, markers, .. } => {
                    for node in markers.iter().chain([node]) {
                        multi.add_delete(node, None).map_err(trouble)?;
                    }
                }
                Op::Create { claim, .. } => {
                    let (path, note) =
                        (self.claim_path(claim), ClaimData::new(claim.lease, claim.details.clone()));
                    multi.add_create(&path, &note.to_bytes(), &self.sequential()).map_err(trouble)?;
                    folder.get_or_insert_with(|| self.settings.paths.lock(&claim.name));
                }
            }
        }
        if let Some(folder) = folder {
            add_number(&mut multi, &folder)?;
        }
        let committed = multi.commit();
        let (mut others, mut removed) = (Vec::new(), None);
        for op in &ops {
            match op {
                // A leave comes right before a claim of the same name.
                Op::Delete { node, behind, .. } => removed = behind.as_ref().map(|behind| (node, behind)),
                Op::Create { claim, .. } => {
                    let folder = self.settings.paths.lock(&claim.name);
                    let known = removed.take().and_then(|(node, behind)| {
                        let (of, child) = node.rsplit_once('/')?;
                        let (removed, behind) = (child.to_owned(), behind.clone());
                        // Of another capacity, it would disagree with some who may have left since.
                        let same = of == folder && claim.capacity == Capacity::All;
                        same.then_some(Others::Remembered { removed, behind })
                    });
                    others
                        .push(known.unwrap_or_else(|| Others::Listed(session.client.list_children(&folder))));
                }
            }
        }
        let results = match session.write(sent, committed).await {
            Ok(results) => results,
            Err(error) if refused(&error) => return self.send_singly(session, ops, answers).await,
            Err(error) => {
                for op in &ops {
                    self.unknown(session, op);
                }
                return Err(trouble(error.into()));
            }
        };
        let number = number_of(&results);
        let mut made = results.into_iter().filter_map(|result| match result {
            MultiWriteResult::Create { path, .. } => Some(path),
            _ => None,
        });
        let mut others = others.into_iter();
        let mut first_trouble = None;
        for op in ops {
            match op {
                Op::Delete { position, contender, left, .. } => {
                    self.memory().records.remove(&contender);
                    answers[position] = Some(Answer::Leave(left));
                }
                Op::Create { position, claim } => {
                    let Some(((node, others), number)) = made.next().zip(others.next()).zip(number) else {
                        return Err(corrupt("ZooKeeper answered fewer operations than it was asked"));
                    };
                    let (folder, child) = node.rsplit_once('/').unwrap_or_default();
                    let queue = match others {
                        Others::Listed(list) => session.read(list).await,
                        // What held alone was the first until this one came. Of the others some may have left since.
                        Others::Remembered { removed, mut behind }
                            if follows(behind.last().unwrap_or(&removed), child) =>
                        {
                            behind.push(child.to_owned());
                            Ok(behind)
                        }
                        Others::Remembered { .. } => session.read(session.client.list_children(folder)).await,
                    };
                    let made = NewNode { node, number: checked(number)? };
                    match self.placed(session, false, claim, made, queue).await {
                        Ok(verdict) => answers[position] = Some(Answer::Claim(verdict)),
                        // The others are in the memory by now, or will be asked for again.
                        Err(error) => first_trouble = Some(error),
                    }
                }
            }
        }
        first_trouble.map_or(Ok(()), Err)
    }

    async fn send_singly(
        self: &Arc<Self>,
        session: &Arc<Session>,
        ops: Vec<Op<'_>>,
        answers: &mut GroupAnswers,
    ) -> Result<(), StoreError> {
        let mut first_trouble = None;
        for op in ops {
            let (position, answer) = match op {
                Op::Create { position, claim } => {
                    (position, self.create(session, false, claim).await.map(Answer::Claim))
                }
                Op::Delete { position, contender, left, if_gone, node, markers, .. } => {
                    let left = self.delete(session, contender, [left, if_gone], &node, &markers).await;
                    (position, left.map(Answer::Leave))
                }
            };
            match answer {
                Ok(answer) => answers[position] = Some(answer),
                Err(error) => first_trouble = Some(error),
            }
        }
        first_trouble.map_or(Ok(()), Err)
    }

    /// The outcome of `op` is not known: it is asked for again, or cleared away by the reaper.
    fn unknown(&self, session: &Arc<Session>, op: &Op<'_>) {
        if let Op::Create { claim, .. } = op {
            self.enter(session, false, claim, String::new(), 0, ClaimState::Unknown { asked: self.now() });
        }
    }
}
