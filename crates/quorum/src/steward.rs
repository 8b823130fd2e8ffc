//! Looks after members: connects those that were not there, gives member ids to those that have none, and has them vote
//! when it is safe.
//!
//! Every client does this for itself, and compare-and-set on the member's record decides between them. A member that
//! does not vote gets a new member id: first a majority of others take it into their records, and then the member gets
//! a record of its own, without a vote, which is like no other. A client that has seen this very record for longer than
//! any lease knows that the member has kept all its grants for that long, and that no hold from before is left. It also
//! knows that in that time nobody has had votes from a majority for the server that had the place before.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use lockkeeper_core::{
    GrantNumber, StoreError, StoreErrorKind,
    clock::BootTime,
    store::{Enrolment, MemberState, Membership},
    support::{background::Background, backoff::Backoff, duration::show},
};

use crate::{
    entrance::{Entrance, Found, one_server},
    link::Link,
    member_ids::Standing,
    quorum::Quorum,
    record::{Identity, MemberId, Record},
    settings::config,
};

/// How often members are looked at that are not connected or do not vote.
const SOON: Duration = Duration::from_millis(500);
/// The shortest pause.
const PAUSE: Backoff = Backoff::new(SOON, SOON);
/// How often all is looked at in any case.
const LATER: Duration = Duration::from_secs(20);
/// The room above the marks that are needed: other names of the member are granted meanwhile.
const ROOM: GrantNumber = 1_000_000;

/// Looks after the members of a quorum for one client.
pub(crate) struct Steward {
    entrance: Entrance,
    /// Member ids that this client has made, others may know of, and no server has.
    free: Vec<Option<MemberId>>,
    /// The member ids as last known, each with the time when others were seen to have changed it.
    ids: Vec<(Option<MemberId>, Option<BootTime>)>,
    /// The last message about each member.
    said: Vec<Option<String>>,
    /// Asks members that are suspected.
    _asks: Background,
}

/// Takes a member in that was connected.
pub(crate) fn greet(quorum: &Quorum, found: Found) {
    let Found { member, store, state, greeting, received } = found;
    let link = &quorum.links[member];
    link.connect(store);
    quorum.learn(link, &state.membership);
    link.is_at(received, &state, &quorum.identity);
    quorum.learn(link, &greeting.membership);
    link.answered(received, greeting.answers.now, &greeting.membership, &quorum.identity, false);
}

/// Looks after members for as long as the quorum is used.
pub(crate) async fn tend_always(quorum: Weak<Quorum>, mut steward: Steward) {
    let mut pause = Duration::ZERO;
    loop {
        let Some(strong) = quorum.upgrade() else { return };
        drop(tokio::time::timeout(pause, strong.stewards.notified()).await);
        // Notifications may come often. Clients that found a quorum at the same time come apart.
        tokio::time::sleep(pause.min(PAUSE.clone().jittered())).await;
        pause = if steward.tend(&strong).await { LATER } else { SOON };
        strong.sweep();
    }
}

/// Asks members that are suspected, for as long as the quorum is used.
async fn ask_silent_always(quorum: Weak<Quorum>) {
    loop {
        let Some(strong) = quorum.upgrade() else { return };
        strong.ask_silent().await;
        let suspected = strong.suspected.clone();
        drop(strong);
        suspected.notified().await;
    }
}

/// Reads the state of a member, and takes note of it.
async fn look(
    quorum: &Quorum,
    link: &Link,
    entrance: &Entrance,
) -> Result<(MemberState, Standing), StoreError> {
    let slow = |_| StoreError::new(StoreErrorKind::Unreachable, "it is too slow");
    let asked = tokio::time::timeout(quorum.request_limit, link.member()?.state()).await;
    let state = asked.map_err(slow).flatten()?;
    refuse_duplicate(quorum, link.index, &link.shown(), &state)
        .inspect_err(|error| link.failed(error, quorum.clock.now()))?;
    quorum.learn(link, &state.membership);
    link.is_at(quorum.clock.now(), &state, &quorum.identity);
    let standing = quorum.identity.standing(link.index, &label(quorum, link, entrance), &state.membership);
    Ok((state, standing))
}

/// Refuses a server that is another member already, under another URL: a name may come to lead to it at any time.
fn refuse_duplicate(
    quorum: &Quorum,
    member: usize,
    url: &str,
    state: &MemberState,
) -> Result<(), StoreError> {
    let mut others = quorum.links.iter().filter(|link| link.index != member);
    match others.find(|link| link.is_server(&state.server)) {
        Some(other) => Err(one_server((other.index, &other.shown()), (member, url))),
        None => Ok(()),
    }
}

/// Returns the label that counts for the server that a link leads to.
fn label(quorum: &Quorum, link: &Link, entrance: &Entrance) -> Arc<str> {
    entrance.label(&quorum.identity.identity(), link.index, &link.shown())
}

async fn enrol(
    link: &Link,
    expected: &Membership,
    record: &Record,
    high_water: GrantNumber,
) -> Result<bool, StoreError> {
    let record = record.to_string().into();
    link.member()?.enrol(&Enrolment { expected: expected.clone(), record, high_water }).await
}

/// Writes a record without a vote. Its member id is new, so it is like no other. It carries the time, for people.
pub(crate) async fn mark(quorum: &Identity, link: &Link, state: &MemberState) -> Result<bool, StoreError> {
    let record = Record { quorum: quorum.clone(), own: link.index, since: state.wall, voter: None };
    enrol(link, &state.membership, &record, state.high_water + ROOM).await
}

/// Writes a record with a vote.
pub(crate) async fn vote(
    quorum: &Identity,
    link: &Link,
    membership: &Membership,
    since: GrantNumber,
) -> Result<bool, StoreError> {
    let voter = Some(membership.incarnation.clone());
    let record = Record { quorum: quorum.clone(), own: link.index, since, voter };
    enrol(link, membership, &record, since).await
}

/// The mark that members begin with: above all marks, and not below the median of the clocks.
pub(crate) fn founding_mark<'a>(states: impl Iterator<Item = &'a MemberState>) -> GrantNumber {
    let (mut marks, mut walls) = (0, Vec::new());
    for state in states {
        marks = state.high_water.max(marks);
        walls.push(state.wall);
    }
    walls.sort_unstable();
    let median = walls.get(walls.len() / 2).copied().unwrap_or(0);
    marks.max(median) + ROOM
}

/// Whether a member was seen with this membership for longer than any lease.
fn is_watched(quorum: &Quorum, link: &Link, membership: &Membership) -> bool {
    let now = quorum.clock.now();
    let seen = link.membership();
    seen.is_some_and(|(seen, since)| seen == *membership && now.since(since) > quorum.watch_time())
}

impl Steward {
    pub(crate) fn new(entrance: Entrance, quorum: &Arc<Quorum>) -> Self {
        let members = quorum.links.len();
        let asks = Background::spawn(&quorum.background, ask_silent_always(Arc::downgrade(quorum)));
        let (free, said, ids) = (vec![None; members], vec![None; members], vec![(None, None); members]);
        Self { entrance, free, ids, said, _asks: asks }
    }

    /// Takes note of member ids that others have changed.
    fn note_ids(&mut self, quorum: &Quorum) {
        for (place, (id, changed)) in self.ids.iter_mut().enumerate() {
            let now = quorum.identity.id(place);
            if id.is_some() && *id != now && self.free[place] != now {
                *changed = Some(quorum.clock.now());
            }
            *id = now;
        }
    }

    /// Whether the server that got the member id of a place last should have had the time to vote. Clients that reach
    /// different servers there would otherwise take the place from each other all the time.
    fn had_time(&self, quorum: &Quorum, place: usize) -> bool {
        let changed = self.ids[place].1;
        changed.is_none_or(|changed| quorum.clock.now().since(changed) > 2 * quorum.watch_time())
    }

    /// Looks at all members once; true if nothing is left to do.
    pub(crate) async fn tend(&mut self, quorum: &Arc<Quorum>) -> bool {
        for link in &quorum.links {
            if link.store().is_none() {
                self.connect(quorum, link).await;
            }
        }
        let now = quorum.clock.now();
        for link in quorum.links.iter().filter(|link| !link.is_suspect() && link.was_heard(now) >= LATER / 2)
        {
            // Nobody has asked it for long, and it may have lost its data.
            drop(look(quorum, link, &self.entrance).await);
        }
        let done = |link: &Link| link.votes(&quorum.identity) && !link.lags(&quorum.identity);
        if quorum.links.iter().all(done) {
            self.said.fill(None);
            return true;
        }
        for link in quorum.links.iter().filter(|link| link.store().is_some()) {
            // A member that does not answer is looked at again soon.
            if !link.votes(&quorum.identity) && !link.is_silent() {
                drop(look(quorum, link, &self.entrance).await);
            }
        }
        self.note_ids(quorum);
        let voters = quorum.links.iter().filter(|link| link.votes(&quorum.identity)).count();
        let result = match voters >= quorum.majority.needed() {
            true => self.rejoin(quorum).await,
            false => self.found(quorum).await,
        };
        if let Err(error) = result {
            tracing::debug!(%error, "members do not vote yet");
        }
        self.tell(quorum);
        false
    }

    async fn connect(&self, quorum: &Arc<Quorum>, link: &Link) {
        let entered =
            tokio::time::timeout(quorum.request_limit, self.entrance.clone().enter(link.index)).await;
        match entered {
            Ok(Ok(found)) => {
                if let Err(error) = refuse_duplicate(quorum, link.index, found.store.url(), &found.state) {
                    return link.failed(&error, quorum.clock.now());
                }
                let label = self.entrance.label(&quorum.identity.identity(), link.index, found.store.url());
                let standing = quorum.identity.standing(link.index, &label, &found.state.membership);
                if let Standing::Refused(why) = standing {
                    return link.failed(&config(why), quorum.clock.now());
                }
                greet(quorum, found);
                // Waiters may have turned to other gates, because this member was not there.
                quorum.is_back(link);
            }
            Ok(Err(error)) => link.failed(&error, quorum.clock.now()),
            Err(_) => {}
        }
    }

    /// Logs the reasons for waiting for members, whenever they change.
    fn tell(&mut self, quorum: &Quorum) {
        let wait = quorum.watch_time();
        for (link, said) in quorum.links.iter().zip(&mut self.said) {
            let waits = link.store().is_some() && !link.votes(&quorum.identity);
            let trouble = link.trouble().map(|error| error.to_string());
            let what = match (&trouble, waits) {
                (Some(trouble), _) => Some(trouble.clone()),
                (None, true) => {
                    Some(format!("does not vote; it will after it was watched for {}", show(wait)))
                }
                (None, false) => None,
            };
            if *said == what {
                continue;
            }
            let member = link.shown();
            match (&what, trouble) {
                (Some(what), Some(_)) => tracing::warn!(member, "a member of the quorum is missing: {what}"),
                (Some(what), None) => tracing::info!(member, "a member of the quorum {what}"),
                (None, _) => tracing::info!(member, "a member of the quorum votes"),
            }
            *said = what;
        }
    }

    /// Has a member that has its place or gets it know of all these member ids; true if it does.
    async fn update(&self, quorum: &Quorum, link: &Link, wanted: &Identity) -> Result<bool, StoreError> {
        let (state, standing) = look(quorum, link, &self.entrance).await?;
        let Some(mut record) = Record::of(&state.membership) else { return Ok(false) };
        if !matches!(standing, Standing::Votes(_) | Standing::Watched) {
            return Ok(false);
        }
        if record.quorum.join(wanted).is_empty() {
            return Ok(true);
        }
        let updated = enrol(link, &state.membership, &record, state.high_water + ROOM).await?;
        look(quorum, link, &self.entrance).await?;
        Ok(updated)
    }

    /// The member id for the server at this place.
    fn new_id(&mut self, quorum: &Quorum, link: &Link) -> Option<MemberId> {
        let now = quorum.identity.id(link.index)?;
        // One that others know of already, and that no server has, is as good as a new one.
        let free = self.free[link.index].take().filter(|free| *free == now);
        let id = free.unwrap_or_else(|| now.next(&link.shown()));
        self.free[link.index] = Some(id.clone());
        Some(id)
    }

    /// Writes a record without a vote into a member that gets a new member id.
    async fn mark(
        &mut self,
        quorum: &Quorum,
        identity: &Identity,
        link: &Link,
        state: &MemberState,
    ) -> Result<(), StoreError> {
        let marked = mark(identity, link, state).await;
        // A server that may have the member id keeps others from it. That it was not written is certain only if nothing
        // was sent: a connection may have led to another server meanwhile.
        if !matches!(&marked, Err(error) if !error.maybe_applied()) {
            self.free[link.index] = None;
        }
        if marked? {
            self.ids[link.index] = (identity.ids.get(link.index).cloned(), None);
        }
        look(quorum, link, &self.entrance).await?;
        Ok(())
    }

    /// Gives a member a new member id, which a majority of others know of before it does.
    async fn give_id(&mut self, quorum: &Quorum, link: &Link, state: &MemberState) -> Result<(), StoreError> {
        let Some(id) = self.new_id(quorum, link) else { return Ok(()) };
        let mut wanted = quorum.identity.identity();
        wanted.ids[link.index] = id.clone();
        let mut told = 0;
        for other in quorum.links.iter().filter(|other| other.index != link.index) {
            // One that is suspected would only keep the others waiting.
            let may_answer = !other.is_suspect() && other.votes(&quorum.identity);
            if may_answer && matches!(self.update(quorum, other, &wanted).await, Ok(true)) {
                told += 1;
            }
        }
        // Somebody else may have made a later member id meanwhile.
        let identity = quorum.identity.identity();
        if told < quorum.majority.needed() || identity.ids[link.index] != id {
            return Ok(());
        }
        self.mark(quorum, &identity, link, state).await
    }

    /// Gives member ids to those that have none, and has those vote that were watched, with marks above those of a
    /// majority of others.
    async fn rejoin(&mut self, quorum: &Quorum) -> Result<(), StoreError> {
        let identity = quorum.identity.identity();
        for link in quorum.links.iter().filter(|link| link.votes(&quorum.identity)) {
            if link.lags(&quorum.identity) && !link.is_suspect() {
                drop(self.update(quorum, link, &identity).await);
            }
        }
        for link in quorum.links.iter().filter(|link| link.store().is_some()) {
            if link.votes(&quorum.identity) || link.is_silent() {
                continue;
            }
            // One that does not answer keeps no other from voting.
            let Ok((state, standing)) = look(quorum, link, &self.entrance).await else { continue };
            let watched = is_watched(quorum, link, &state.membership);
            let done = match standing {
                Standing::Vacant if self.had_time(quorum, link.index) => {
                    self.give_id(quorum, link, &state).await
                }
                Standing::Outdated if watched && self.had_time(quorum, link.index) => {
                    self.give_id(quorum, link, &state).await
                }
                Standing::Watched if watched => self.vote_again(quorum, link, &state).await,
                Standing::Refused(why) => Err(config(why)),
                _ => Ok(()),
            };
            if let Err(error) = done {
                link.failed(&error, quorum.clock.now());
            }
        }
        Ok(())
    }

    /// Has a member vote that was watched, with a mark above those of a majority of others that know of its member id.
    async fn vote_again(&self, quorum: &Quorum, link: &Link, state: &MemberState) -> Result<(), StoreError> {
        let id = quorum.identity.id(link.index);
        let mut marks = Vec::new();
        let others = quorum.links.iter().filter(|other| other.index != link.index);
        for other in others.filter(|other| !other.is_suspect()) {
            let Ok((state, Standing::Votes(_))) = look(quorum, other, &self.entrance).await else { continue };
            let knows = |record: Record| record.quorum.ids.get(link.index) == id.as_ref();
            if Record::of(&state.membership).is_some_and(knows) {
                marks.push(state.high_water);
            }
        }
        if marks.len() < quorum.majority.needed() || quorum.identity.id(link.index) != id {
            return Ok(());
        }
        let mark = marks.into_iter().max().unwrap_or(0).max(state.high_water) + ROOM;
        vote(&quorum.identity.identity(), link, &state.membership, mark).await?;
        look(quorum, link, &self.entrance).await?;
        Ok(())
    }

    /// Has all members vote, if too few do: the quorum is new, or too many members have lost their data. All members
    /// have a record with the same member ids before the first one votes.
    async fn found(&mut self, quorum: &Quorum) -> Result<(), StoreError> {
        let mut all = Vec::new();
        for link in &quorum.links {
            let (state, standing) = look(quorum, link, &self.entrance).await?;
            if let Standing::Refused(why) = standing {
                let error = config(why);
                link.failed(&error, quorum.clock.now());
                return Err(error);
            }
            all.push((link, state, standing));
        }
        let has_id = |standing: &Standing| matches!(standing, Standing::Votes(_) | Standing::Watched);
        let mut identity = quorum.identity.identity();
        for (link, _, _) in all.iter().filter(|(_, _, standing)| !has_id(standing)) {
            identity.ids[link.index] = self.new_id(quorum, link).unwrap_or_else(|| MemberId::empty(""));
        }
        let mut updated = true;
        for (link, _, _) in all.iter().filter(|(_, _, standing)| has_id(standing)) {
            updated &= self.update(quorum, link, &identity).await?;
        }
        // Somebody else may have made later member ids meanwhile.
        if !updated || !identity.clone().join(&quorum.identity.identity()).is_empty() {
            return Ok(());
        }
        let vacant: Vec<_> = all.iter().filter(|(_, _, standing)| !has_id(standing)).collect();
        for (link, state, _) in &vacant {
            self.mark(quorum, &identity, link, state).await?;
        }
        if vacant.is_empty() { self.vote_all(quorum, &identity, &all).await } else { Ok(()) }
    }

    /// Has all members vote that do not, if all of these were watched for long enough.
    async fn vote_all(
        &self,
        quorum: &Quorum,
        identity: &Identity,
        all: &[(&Link, MemberState, Standing)],
    ) -> Result<(), StoreError> {
        let waits = || all.iter().filter(|(_, _, standing)| *standing == Standing::Watched);
        let are_same = all.iter().all(|(_, state, _)| {
            Record::of(&state.membership).is_some_and(|record| record.quorum == *identity)
        });
        if !are_same || !waits().all(|(link, state, _)| is_watched(quorum, link, &state.membership)) {
            return Ok(());
        }
        let mark = founding_mark(all.iter().map(|(_, state, _)| state));
        for (link, state, _) in waits() {
            vote(identity, link, &state.membership, mark).await?;
            look(quorum, link, &self.entrance).await?;
        }
        Ok(())
    }
}
