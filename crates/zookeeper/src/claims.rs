//! One claim and its node: how the node is made and removed, how it stands, and what the keeper knows of it.

use std::sync::Arc;

use lockkeeper_core::{
    Capacity, ContenderId, GrantNumber, StoreError, Token, Units,
    store::{Claim, Left, Verdict},
};
use zookeeper_client::{Client, Error, MultiWriteError, MultiWriteResult, MultiWriter};

use crate::{
    codec::ClaimData,
    keeper::KeeperState,
    memory::{ClaimRecord, ClaimState, HoldRecord, Task},
    queue::{Queue, Standing, claim_prefix},
    session::Session,
    trouble::{corrupt, trouble},
};

/// A claim's node that has just been made.
pub(crate) struct NewNode {
    pub(crate) node: String,
    pub(crate) number: GrantNumber,
}

/// What the keeper knows of a claim.
pub(crate) enum Remembered {
    Answer(Verdict),
    /// Its node may or may not have been made.
    Unknown(Arc<Session>),
    /// It holds, unless its node was taken away.
    Holding(String),
    New,
}

impl KeeperState {
    /// What is known of a claim without asking the server.
    pub(crate) fn known(&self, claim: &Claim) -> Remembered {
        let (now, time) = (self.now(), self.store_time());
        let mut memory = self.memory();
        if claim.not_after < time || memory.left.find(claim.contender, time).is_some() {
            return Remembered::Answer(Verdict::Stale);
        }
        let Some(record) = memory.records.get_mut(&claim.contender) else { return Remembered::New };
        if !record.session.lives() {
            memory.records.remove(&claim.contender);
            return Remembered::New;
        }
        match &mut record.state {
            ClaimState::Unknown { .. } => Remembered::Unknown(record.session.clone()),
            ClaimState::Leaving(_) | ClaimState::Retired { .. } => Remembered::Answer(Verdict::Stale),
            ClaimState::Waiting { ahead, asked } => {
                *asked = now;
                Remembered::Answer(self.busy(*ahead))
            }
            ClaimState::Holding(_) => Remembered::Holding(record.node.clone()),
        }
    }

    /// The grant that a claim has, if its node is still there. The keeper's session asks: the claim's own may be silent.
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
        let queue = self.queue(session, folder).await?;
        let Some(number) = self.memory().records.get(&claim.contender).map(|record| record.number) else {
            return Ok(None);
        };
        let floor = self.floor(session, folder, &queue, child, claim.units, number).await?;
        let mut memory = self.memory();
        let Some(record) = memory.records.get_mut(&claim.contender) else { return Ok(None) };
        // Its time ended while this asked: it is on its way out.
        let ClaimState::Holding(hold) = &mut record.state else { return Ok(Some(Verdict::Stale)) };
        hold.confirm(claim.lease);
        hold.floor = floor;
        let hold = *hold;
        Ok(Some(Verdict::Granted(record.grant(&hold, self.now()))))
    }

    /// ZooKeeper tells when something ends, so there is nothing to be learned by asking earlier.
    pub(crate) fn busy(&self, ahead: usize) -> Verdict {
        Verdict::busy(u32::try_from(ahead).unwrap_or(u32::MAX), self.settings.session)
    }

    pub(crate) fn claim_path(&self, claim: &Claim) -> String {
        let prefix = claim_prefix(claim.contender, claim.units, claim.capacity);
        format!("{}/{prefix}", self.settings.paths.lock(&claim.name))
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
        let sent = session.now();
        let left = match session.write(sent, session.client.delete(node, None)).await {
            Ok(()) => left,
            Err(Error::NoNode) => if_gone,
            Err(error) => return Err(trouble(error)),
        };
        session.read(delete_markers(&session.client, markers)).await.map_err(trouble)?;
        self.memory().records.remove(&contender);
        Ok(left)
    }

    /// Makes the node of a claim in `session`, and says how it stands.
    pub(crate) async fn create(
        self: &Arc<Self>,
        session: &Arc<Session>,
        own_session: bool,
        claim: &Claim,
    ) -> Result<Verdict, StoreError> {
        let folder = self.settings.paths.lock(&claim.name);
        let path = self.claim_path(claim);
        let data = ClaimData::new(claim.lease, claim.details.clone()).to_bytes();
        let options = self.sequential();
        let unknown = |error| {
            self.enter(
                session,
                own_session,
                claim,
                String::new(),
                0,
                ClaimState::Unknown { asked: self.now() },
            );
            Err(trouble(error))
        };
        loop {
            // Much may have been waited for since the claim was looked at (I9).
            if claim.not_after < self.store_time() {
                return Ok(Verdict::Stale);
            }
            let sent = session.now();
            let created = session.client.create(&path, &data, &options);
            let list = session.client.list_children(&folder);
            match session.write(sent, created).await {
                Ok((stat, sequence)) => {
                    let made = NewNode { node: format!("{path}{sequence}"), number: checked(stat.czxid)? };
                    let queue = session.read(list).await;
                    return self.placed(session, own_session, claim, made, queue).await;
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
                    let made = NewNode { node: path, number: checked(number)? };
                    let queue = session.read(list).await;
                    return self.placed(session, own_session, claim, made, queue).await;
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
        made: NewNode,
        listed: Result<Vec<String>, Error>,
    ) -> Result<Verdict, StoreError> {
        let NewNode { node, number } = made;
        let (folder, child) = node.rsplit_once('/').unwrap_or_default();
        let waits = |standing: Option<Standing>| {
            let ahead = standing.as_ref().map_or(0, |standing| standing.ahead);
            let state = ClaimState::Waiting { ahead, asked: self.now() };
            self.enter(session, own_session, claim, node.clone(), number, state);
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
        let queue = self.queue_of(folder, children);
        let turned_away = |verdict| {
            self.enter(
                session,
                own_session,
                claim,
                node.clone(),
                number,
                ClaimState::Leaving(Left::LeftQueue),
            );
            Ok(verdict)
        };
        if queue.is_used_up(child) {
            tracing::warn!(
                folder,
                "two billion claims without a break: newcomers wait until nobody is in line"
            );
            self.enter(
                session,
                own_session,
                claim,
                node.clone(),
                number,
                ClaimState::Leaving(Left::LeftQueue),
            );
            self.remove_node(claim.contender).await;
            // Without its folder the resource counts from zero. Somebody still in there keeps it.
            drop(session.read(session.client.delete(folder, None)).await);
            // It comes again when it asks again.
            return Ok(self.busy(queue.nodes.len()));
        }
        let answer = if let Some(in_use) = queue.disagrees(child) {
            turned_away(Verdict::mismatch(in_use))
        } else {
            match queue.standing(child) {
                // Taken away by somebody the moment it came.
                None => return Ok(Verdict::Stale),
                Some(standing) if standing.admitted => {
                    let floor = match self.floor(session, folder, &queue, child, claim.units, number).await {
                        Ok(floor) => floor,
                        Err(error) => return not_known(error),
                    };
                    let hold = HoldRecord::confirmed(self.now(), claim.lease, floor);
                    self.enter(session, own_session, claim, node.clone(), number, ClaimState::Holding(hold));
                    if let Some(record) = self.memory().records.get_mut(&claim.contender) {
                        record.behind = queue.behind(child);
                    }
                    if claim.capacity != Capacity::All && !queue.is_last(child) {
                        // Somebody came in before this listing, and may have seen this one wait.
                        self.mark_until_done(claim.contender);
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
        queue: &Queue,
        child: &str,
        units: Units,
        own: GrantNumber,
    ) -> Result<GrantNumber, StoreError> {
        if units == Units::All {
            return Ok(own);
        }
        for (node, _) in queue.admissions().take_while(|(node, _)| node.name != child) {
            let path = format!("{folder}/{}", node.name);
            match session.read(session.client.get_data(&path)).await {
                Ok((data, stat)) => return Ok(ClaimData::from_bytes(&data).number(stat.czxid).min(own)),
                Err(Error::NoNode) => {}
                Err(error) => return Err(trouble(error)),
            }
        }
        Ok(own)
    }

    pub(crate) fn enter(
        &self,
        session: &Arc<Session>,
        own_session: bool,
        claim: &Claim,
        node: String,
        number: GrantNumber,
        state: ClaimState,
    ) {
        let record = ClaimRecord {
            name: claim.name.clone(),
            units: claim.units,
            capacity: claim.capacity,
            session: session.clone(),
            own_session,
            node,
            markers: Vec::new(),
            number,
            note: ClaimData::new(claim.lease, claim.details.clone()),
            version: 0,
            state,
            behind: None,
            waits: None,
        };
        self.memory().records.insert(claim.contender, record);
    }

    fn wait_in_line(self: &Arc<Self>, contender: ContenderId, standing: Option<Standing>) {
        // Begun under the lock: an record that goes takes its task along.
        if let Some(record) = self.memory().records.get_mut(&contender) {
            let task = self.background.spawn(self.clone().wait(contender, standing));
            record.waits = Some(Task(task.abort_handle()));
        }
    }
}

/// Removes the markers of a claim whose node is gone. Never before: without them it would hold all of what it had given
/// back.
pub(crate) async fn delete_markers(client: &Client, markers: &[String]) -> Result<(), Error> {
    for marker in markers {
        match client.delete(marker, None).await {
            Ok(()) | Err(Error::NoNode) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
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
