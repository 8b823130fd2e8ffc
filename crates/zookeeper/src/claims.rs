//! Groups of claims and leaves. What this keeper knows is answered from memory; the rest goes out as
//! one transaction, and behind it, without waiting, the listings that say who was admitted.

use std::sync::Arc;

use lockkeeper_core::{
    Capacity, ContenderId, GrantNumber, StoreError, Token, Units,
    store::{Answer, Answers, Card, Claim, Leave, Left, Request, Verdict},
};
use zookeeper_client::{Error, MultiWriteError, MultiWriteResult, MultiWriter};

use crate::{
    line::{Line, Standing, claim_prefix, follows},
    note::Note,
    session::Session,
    shared::Shared,
    table::{Entry, Hold, Stand, Task},
    trouble::{corrupt, refused, trouble},
};

/// What has to be asked of the server for one entry of a group.
enum Op<'a> {
    Create {
        place: usize,
        claim: &'a Claim,
    },
    Delete {
        place: usize,
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

/// How it is learned who stands in line with a claim whose node is made by a transaction.
enum Others<L> {
    /// By a listing, which is under way.
    Listed(L),
    /// The same transaction removes what held alone, and these were in line behind it: if the claim came right after the
    /// last of them, nobody else is before it.
    Known { removed: String, behind: Vec<String> },
}

/// Servers take a megabyte at most in one request (`jute.maxbuffer`), unless they are told otherwise.
const MOST_BYTES: usize = 512 << 10;

/// How many bytes a claim adds to a transaction, at most: whatever is not plain is written as three.
fn note_size(claim: &Claim) -> usize {
    let length = |text: &Option<Arc<str>>| text.as_deref().map_or(0, str::len);
    let Card { facts, label, value, .. } = &claim.card;
    let said = facts.host.len() + facts.program.len() + length(label) + length(value);
    3 * (claim.name.as_str().len() + said) + 512
}

/// A claim's node that has just been made.
pub(crate) struct Made {
    pub(crate) node: String,
    pub(crate) number: GrantNumber,
}

/// What the keeper knows of a claim.
pub(crate) enum Known {
    Answer(Verdict),
    /// Its node may or may not have been made.
    Unknown(Arc<Session>),
    /// It holds, unless its node was taken away.
    Holding(Arc<Session>, String),
    New,
}

type Placed = Vec<Option<Answer>>;

impl Shared {
    /// Does a group.
    pub(crate) async fn apply(self: &Arc<Self>, group: &[Request]) -> Result<Answers<Answer>, StoreError> {
        // Nobody waits for a turn only to hear this.
        self.session().inspect_err(|_| self.still_wanted(group))?;
        let _turn = self.turn.lock().await;
        let answers = self.apply_in_turn(group).await;
        // Also what got no answer has to be looked after.
        self.sooner.notify_one();
        answers
    }

    async fn apply_in_turn(self: &Arc<Self>, group: &[Request]) -> Result<Answers<Answer>, StoreError> {
        let session = self.session()?;
        let mut answers: Placed = vec![None; group.len()];
        let mut ops = Vec::with_capacity(group.len());
        let mut bytes = 0;
        for (place, request) in group.iter().enumerate() {
            let answer = match request {
                Request::Leave(leave) => match self.begin_leave(leave, place) {
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
                    Known::Answer(verdict) => Answer::Claim(verdict),
                    Known::New if claim.queue && !claim.detachable && !claim.again => {
                        bytes += note_size(claim);
                        if bytes > MOST_BYTES {
                            bytes = note_size(claim);
                            self.send(&session, std::mem::take(&mut ops), &mut answers).await?;
                        }
                        ops.push(Op::Create { place, claim });
                        continue;
                    }
                    Known::New | Known::Unknown(_) | Known::Holding(..) => {
                        self.send(&session, std::mem::take(&mut ops), &mut answers).await?;
                        Answer::Claim(self.claim_alone(&session, claim).await?)
                    }
                },
            };
            answers[place] = Some(answer);
        }
        self.send(&session, ops, &mut answers).await?;
        let each = answers.into_iter().flatten().collect();
        Ok(Answers { now: self.store_time(), each })
    }

    /// These still wait, though nobody can be asked for them now.
    fn still_wanted(&self, group: &[Request]) {
        let (now, mut table) = (self.now(), self.table());
        for request in group {
            if let Request::Claim(claim) = request
                && let Some(entry) = table.entries.get_mut(&claim.contender)
                && let Stand::Waiting { asked, .. } = &mut entry.stand
            {
                *asked = now;
            }
        }
    }

    /// What is known of a claim without asking the server.
    pub(crate) fn known(&self, claim: &Claim) -> Known {
        let (now, time) = (self.now(), self.store_time());
        let mut table = self.table();
        if claim.not_after < time || table.left.find(claim.contender, time).is_some() {
            return Known::Answer(Verdict::Stale);
        }
        let Some(entry) = table.entries.get_mut(&claim.contender) else { return Known::New };
        if !entry.session.lives() {
            table.entries.remove(&claim.contender);
            return Known::New;
        }
        match &mut entry.stand {
            Stand::Unknown { .. } => Known::Unknown(entry.session.clone()),
            Stand::Leaving(_) | Stand::Retired { .. } => Known::Answer(Verdict::Stale),
            Stand::Waiting { ahead, asked } => {
                *asked = now;
                Known::Answer(self.busy(*ahead))
            }
            Stand::Holding(_) => Known::Holding(entry.session.clone(), entry.node.clone()),
        }
    }

    /// The grant that a claim has, if its node is still there.
    pub(crate) async fn granted_before(
        &self,
        session: &Session,
        node: &str,
        claim: &Claim,
    ) -> Result<Option<Verdict>, StoreError> {
        match session.check(node).await {
            Ok(()) => {}
            Err(Error::NoNode) => return Ok(None),
            Err(error) => return Err(trouble(error)),
        }
        let (folder, child) = node.rsplit_once('/').unwrap_or_default();
        let line = self.line(session, folder).await?;
        let Some(number) = self.table().entries.get(&claim.contender).map(|entry| entry.number) else {
            return Ok(None);
        };
        let floor = self.floor(session, folder, &line, child, claim.units, number).await?;
        let mut table = self.table();
        let Some(entry) = table.entries.get_mut(&claim.contender) else { return Ok(None) };
        // Its time ended while this asked: it is on its way out.
        let Stand::Holding(hold) = &mut entry.stand else { return Ok(Some(Verdict::Stale)) };
        hold.confirm(claim.lease);
        hold.floor = floor;
        let hold = *hold;
        Ok(Some(Verdict::Granted(entry.grant(&hold, self.now()))))
    }

    /// ZooKeeper tells when something ends, so there is nothing to be learned by asking earlier.
    pub(crate) fn busy(&self, ahead: usize) -> Verdict {
        Verdict::Busy { ahead: u32::try_from(ahead).unwrap_or(u32::MAX), retry_in: self.place.session }
    }

    /// What a leave needs: one removal, nothing more (`Err` with the answer), or several steps (`Err` with
    /// none).
    fn begin_leave(&self, leave: &Leave, place: usize) -> Result<Op<'static>, Option<Left>> {
        let (now, time) = (self.now(), self.store_time());
        let mut table = self.table();
        if let Some(until) = leave.bury_until {
            table.left.mark(leave.contender, until, (), time);
        }
        let Some(entry) = table.entries.get_mut(&leave.contender) else {
            // It may have been detached, here or by another keeper.
            return Err(None);
        };
        let left = match entry.stand {
            Stand::Unknown { .. } => return Err(None),
            Stand::Retired { .. } => return Err(Some(Left::NotThere)),
            Stand::Waiting { .. } => Left::LeftQueue,
            Stand::Leaving(left) => left,
            Stand::Holding(hold) => {
                if hold.granted.after(leave.hold_at_least) > now && !entry.note.evicted {
                    return Err(None);
                }
                Left::Released
            }
        };
        let holds_alone = matches!(entry.stand, Stand::Holding(_))
            && (entry.units, entry.capacity) == (Units::All, Capacity::All)
            && entry.markers.is_empty();
        let behind = entry.behind.take().filter(|_| holds_alone);
        // An earlier removal may have been done and its answer lost.
        let if_gone = if matches!(entry.stand, Stand::Leaving(_)) { left } else { Left::NotThere };
        entry.leave(left);
        let (node, markers) = (entry.node.clone(), entry.markers.clone());
        Ok(Op::Delete { place, contender: leave.contender, left, if_gone, node, markers, behind })
    }

    /// Sends all of `ops` as one transaction; if that is refused, one by one.
    async fn send(
        self: &Arc<Self>,
        session: &Arc<Session>,
        ops: Vec<Op<'_>>,
        answers: &mut Placed,
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
                    let (path, note) = (self.claim_path(claim), Note::new(claim.lease, claim.card.clone()));
                    multi.add_create(&path, &note.to_bytes(), &self.sequential()).map_err(trouble)?;
                    folder.get_or_insert_with(|| self.place.paths.lock(&claim.name));
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
                    let folder = self.place.paths.lock(&claim.name);
                    let known = removed.take().and_then(|(node, behind)| {
                        let (of, child) = node.rsplit_once('/')?;
                        let (removed, behind) = (child.to_owned(), behind.clone());
                        // Of another capacity, it would disagree with some who may have left since.
                        let same = of == folder && claim.capacity == Capacity::All;
                        same.then_some(Others::Known { removed, behind })
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
                Op::Delete { place, contender, left, .. } => {
                    self.table().entries.remove(&contender);
                    answers[place] = Some(Answer::Leave(left));
                }
                Op::Create { place, claim } => {
                    let Some(((node, others), number)) = made.next().zip(others.next()).zip(number) else {
                        return Err(corrupt("ZooKeeper answered fewer operations than it was asked"));
                    };
                    let (folder, child) = node.rsplit_once('/').unwrap_or_default();
                    let line = match others {
                        Others::Listed(list) => session.read(list).await,
                        // What held alone was the first until this one came. Of the others some may have left since.
                        Others::Known { removed, mut behind }
                            if follows(behind.last().unwrap_or(&removed), child) =>
                        {
                            behind.push(child.to_owned());
                            Ok(behind)
                        }
                        Others::Known { .. } => session.read(session.client.list_children(folder)).await,
                    };
                    let made = Made { node, number: checked(number)? };
                    match self.placed(session, false, claim, made, line).await {
                        Ok(verdict) => answers[place] = Some(Answer::Claim(verdict)),
                        // The others are in the table by now, or will be asked for again.
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
        answers: &mut Placed,
    ) -> Result<(), StoreError> {
        let mut first_trouble = None;
        for op in ops {
            let (place, answer) = match op {
                Op::Create { place, claim } => {
                    (place, self.create(session, false, claim).await.map(Answer::Claim))
                }
                Op::Delete { place, contender, left, if_gone, node, markers, .. } => {
                    let left = self.delete(session, contender, [left, if_gone], &node, &markers).await;
                    (place, left.map(Answer::Leave))
                }
            };
            match answer {
                Ok(answer) => answers[place] = Some(answer),
                Err(error) => first_trouble = Some(error),
            }
        }
        first_trouble.map_or(Ok(()), Err)
    }

    /// The outcome of `op` is not known: it is asked for again, or cleared away by the reaper.
    fn unknown(&self, session: &Arc<Session>, op: &Op<'_>) {
        if let Op::Create { claim, .. } = op {
            self.enter(session, false, claim, String::new(), 0, Stand::Unknown { asked: self.now() });
        }
    }

    fn claim_path(&self, claim: &Claim) -> String {
        let prefix = claim_prefix(claim.contender, claim.units, claim.capacity);
        format!("{}/{prefix}", self.place.paths.lock(&claim.name))
    }

    /// Removes a node; the answer is the first of `left` if this did it, the second if it was gone already.
    pub(crate) async fn delete(
        &self,
        session: &Session,
        contender: ContenderId,
        [left, if_gone]: [Left; 2],
        node: &str,
        markers: &[String],
    ) -> Result<Left, StoreError> {
        for marker in markers {
            match session.read(session.client.delete(marker, None)).await {
                Ok(()) | Err(Error::NoNode) => {}
                Err(error) => return Err(trouble(error)),
            }
        }
        let sent = session.now();
        let left = match session.write(sent, session.client.delete(node, None)).await {
            Ok(()) => left,
            Err(Error::NoNode) => if_gone,
            Err(error) => return Err(trouble(error)),
        };
        self.table().entries.remove(&contender);
        Ok(left)
    }

    /// Makes the node of a claim in `session`, and says how it stands.
    pub(crate) async fn create(
        self: &Arc<Self>,
        session: &Arc<Session>,
        own_session: bool,
        claim: &Claim,
    ) -> Result<Verdict, StoreError> {
        let folder = self.place.paths.lock(&claim.name);
        let path = self.claim_path(claim);
        let data = Note::new(claim.lease, claim.card.clone()).to_bytes();
        let options = self.sequential();
        let unknown = |error| {
            self.enter(session, own_session, claim, String::new(), 0, Stand::Unknown { asked: self.now() });
            Err(trouble(error))
        };
        loop {
            let sent = session.now();
            let created = session.client.create(&path, &data, &options);
            let list = session.client.list_children(&folder);
            match session.write(sent, created).await {
                Ok((stat, sequence)) => {
                    let made = Made { node: format!("{path}{sequence}"), number: checked(stat.czxid)? };
                    let line = session.read(list).await;
                    return self.placed(session, own_session, claim, made, line).await;
                }
                Err(Error::NoNode) => {}
                Err(error) => return unknown(error),
            }
            // The first claim brings its folder along: an empty one would never vanish.
            let sent = session.now();
            let mut multi = session.client.new_multi_writer();
            multi.add_create(&folder, b"", &self.container()).map_err(trouble)?;
            multi.add_create(&path, &data, &options).map_err(trouble)?;
            add_number(&mut multi, &folder)?;
            let committed = multi.commit();
            let list = session.client.list_children(&folder);
            match session.write(sent, committed).await {
                Ok(results) => {
                    let number = number_of(&results);
                    let (Some(MultiWriteResult::Create { path, .. }), Some(number)) =
                        (results.into_iter().nth(1), number)
                    else {
                        return Err(corrupt("ZooKeeper answered fewer operations than it was asked"));
                    };
                    let made = Made { node: path, number: checked(number)? };
                    let line = session.read(list).await;
                    return self.placed(session, own_session, claim, made, line).await;
                }
                Err(MultiWriteError::OperationFailed { index: 0, source: Error::NodeExists }) => {}
                Err(error) => return unknown(error.into()),
            }
        }
    }

    /// A claim's node is there: says how it stands, and lets it wait or go.
    pub(crate) async fn placed(
        self: &Arc<Self>,
        session: &Arc<Session>,
        own_session: bool,
        claim: &Claim,
        made: Made,
        listed: Result<Vec<String>, Error>,
    ) -> Result<Verdict, StoreError> {
        let Made { node, number } = made;
        let (folder, child) = node.rsplit_once('/').unwrap_or_default();
        let waits = |standing: Option<Standing>| {
            let ahead = standing.as_ref().map_or(0, |standing| standing.ahead);
            let stand = Stand::Waiting { ahead, asked: self.now() };
            self.enter(session, own_session, claim, node.clone(), number, stand);
            self.wait_in_line(claim.contender, standing);
        };
        // The node is there, whatever cannot be learned now: it finds out by itself where it stands.
        let not_known = |error| {
            waits(None);
            Err(error)
        };
        let children = match listed {
            Ok(children) => children,
            Err(error) => return not_known(trouble(error)),
        };
        let line = self.line_of(folder, children);
        let turned_away = |verdict| {
            self.enter(session, own_session, claim, node.clone(), number, Stand::Leaving(Left::LeftQueue));
            Ok(verdict)
        };
        if line.is_used_up(child) {
            tracing::warn!(
                folder,
                "two billion claims without a break: newcomers wait until nobody is in line"
            );
            self.enter(session, own_session, claim, node.clone(), number, Stand::Leaving(Left::LeftQueue));
            self.remove_node(claim.contender).await;
            // Without its folder the resource counts from zero. Somebody still in there keeps it.
            drop(session.read(session.client.delete(folder, None)).await);
            // It comes again when it asks again.
            return Ok(self.busy(line.nodes.len()));
        }
        let answer = if let Some(in_use) = line.disagrees(child) {
            turned_away(Verdict::Mismatch { in_use })
        } else {
            match line.standing(child) {
                // Taken away by somebody the moment it came.
                None => return Ok(Verdict::Stale),
                Some(standing) if standing.admitted => {
                    let floor = match self.floor(session, folder, &line, child, claim.units, number).await {
                        Ok(floor) => floor,
                        Err(error) => return not_known(error),
                    };
                    let hold = Hold::confirmed(self.now(), claim.lease, floor);
                    self.enter(session, own_session, claim, node.clone(), number, Stand::Holding(hold));
                    if let Some(entry) = self.table().entries.get_mut(&claim.contender) {
                        entry.behind = line.behind(child);
                    }
                    let remaining = hold.expires.min(session.deadline()).since(self.now());
                    let grant = lockkeeper_core::store::Grant { number, floor, remaining };
                    return Ok(Verdict::Granted(grant));
                }
                Some(standing) if claim.queue => {
                    let ahead = standing.ahead;
                    waits(Some(standing));
                    return Ok(self.busy(ahead));
                }
                Some(Standing { ahead, .. }) => turned_away(self.busy(ahead)),
            }
        };
        self.remove_node(claim.contender).await;
        answer
    }

    /// The smallest number that holds together with a claim that is admitted now (I7).
    pub(crate) async fn floor(
        &self,
        session: &Session,
        folder: &str,
        line: &Line,
        child: &str,
        units: Units,
        own: GrantNumber,
    ) -> Result<GrantNumber, StoreError> {
        if units == Units::All {
            return Ok(own);
        }
        for (node, _) in line.admissions().take_while(|(node, _)| node.name != child) {
            let path = format!("{folder}/{}", node.name);
            match session.read(session.client.get_data(&path)).await {
                Ok((data, stat)) => return Ok(Note::from_bytes(&data).number(stat.czxid).min(own)),
                Err(Error::NoNode) => {}
                Err(error) => return Err(trouble(error)),
            }
        }
        Ok(own)
    }

    fn enter(
        &self,
        session: &Arc<Session>,
        own_session: bool,
        claim: &Claim,
        node: String,
        number: GrantNumber,
        stand: Stand,
    ) {
        let entry = Entry {
            name: claim.name.clone(),
            units: claim.units,
            capacity: claim.capacity,
            session: session.clone(),
            own_session,
            node,
            markers: Vec::new(),
            number,
            note: Note::new(claim.lease, claim.card.clone()),
            stand,
            behind: None,
            waits: None,
        };
        self.table().entries.insert(claim.contender, entry);
    }

    fn wait_in_line(self: &Arc<Self>, contender: ContenderId, standing: Option<Standing>) {
        // Begun under the lock: an entry that goes takes its task along.
        if let Some(entry) = self.table().entries.get_mut(&contender) {
            let task = self.background.spawn(self.clone().wait(contender, standing));
            entry.waits = Some(Task(task.abort_handle()));
        }
    }
}

/// A grant's number: that of the transaction that made its node.
pub(crate) fn checked(zxid: i64) -> Result<GrantNumber, StoreError> {
    GrantNumber::try_from(zxid).ok().filter(|number| (1..Token::NUMBER_LIMIT).contains(number)).ok_or_else(
        || corrupt("ZooKeeper's transaction numbers have outgrown the tokens: too many elections"),
    )
}

/// Adds what shows the number of a transaction. Servers before 3.9 leave it out of the answer to a
/// creation inside of a transaction (ZOOKEEPER-4667), but not of that to a change.
pub(crate) fn add_number(multi: &mut MultiWriter<'_>, folder: &str) -> Result<(), StoreError> {
    multi.add_set_data(folder, b"", None).map_err(trouble)
}

/// The number of the transaction with these results.
pub(crate) fn number_of(results: &[MultiWriteResult]) -> Option<i64> {
    results.iter().find_map(|result| match result {
        MultiWriteResult::SetData { stat } => Some(stat.mzxid),
        _ => None,
    })
}
