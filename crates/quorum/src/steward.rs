//! Looks after members: connects those that were not there, and has them vote when it is safe.
//!
//! Every client does this for itself, and compare-and-set on the member's record decides between them. A member that does
//! not vote first gets a record without a vote, which is like no other. A client that has seen this very record for longer
//! than any lease knows that the member has kept all its grants for that long, and that no hold from before is left.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use lockkeeper_core::{
    GrantNumber, KeeperId, StoreError,
    store::{Enrolment, MemberState, Membership},
};

use crate::{
    connect::{Entrance, Found},
    link::Link,
    quorum::Quorum,
    record::{Identity, Record, Vote},
};

/// How often members are looked at that are not connected or do not vote.
const SOON: Duration = Duration::from_millis(500);
/// How often all is looked at in any case.
const LATER: Duration = Duration::from_secs(20);
/// What marks are raised by beyond what is needed: other names of the member are granted meanwhile.
const ROOM: GrantNumber = 1_000_000;

/// Takes a member in that was connected.
pub(crate) fn greet(quorum: &Quorum, found: Found) {
    let Found { member, store, state, greeting, received } = found;
    let link = &quorum.links[member];
    link.connect(store);
    link.is_at(received, &state, &quorum.identity);
    link.answered(received, greeting.answers.now, &greeting.membership, &quorum.identity);
}

/// Looks after members for as long as the quorum is used.
pub(crate) async fn tend_always(quorum: Weak<Quorum>, entrance: Entrance) {
    let mut pause = Duration::ZERO;
    loop {
        let Some(strong) = quorum.upgrade() else { return };
        drop(tokio::time::timeout(pause, strong.stewards.notified()).await);
        // Whoever notified may do so often.
        tokio::time::sleep(pause.min(SOON)).await;
        pause = if tend(&strong, &entrance).await { LATER } else { SOON };
        strong.sweep();
    }
}

/// Looks at all members once. True: nothing is left to do.
async fn tend(quorum: &Arc<Quorum>, entrance: &Entrance) -> bool {
    for link in &quorum.links {
        if link.store().is_none() {
            connect(quorum, entrance, link).await;
        }
    }
    let absent = quorum.links.iter().filter(|link| !link.votes(&quorum.identity)).count();
    if absent == 0 {
        return true;
    }
    for link in &quorum.links {
        if !link.votes(&quorum.identity) && link.store().is_some() {
            // A member that does not answer is looked at again soon.
            drop(begin_watch(quorum, link).await);
        }
    }
    let voters = quorum.links.len() - absent;
    let result = if voters >= quorum.majority.needed() { rejoin(quorum).await } else { found(quorum).await };
    if let Err(error) = result {
        tracing::debug!(%error, "members do not vote yet");
    }
    false
}

async fn connect(quorum: &Arc<Quorum>, entrance: &Entrance, link: &Link) {
    let entered = tokio::time::timeout(quorum.request_limit, entrance.clone().enter(link.index)).await;
    match entered {
        Ok(Ok(found)) => {
            let is_ours = Record::of(&found.state.membership)
                .is_none_or(|record| record.quorum == quorum.identity)
                && *quorum.identity.members[link.index] == *found.store.id();
            if !is_ours {
                let why =
                    "it is another server than the quorum was founded with, or belongs to another quorum";
                return link.failed(&crate::settings::config(why));
            }
            greet(quorum, found);
        }
        Ok(Err(error)) => link.failed(&error),
        Err(_) => {}
    }
}

/// Reads what a member is, and takes note of its vote.
async fn look(quorum: &Quorum, link: &Link) -> Result<(MemberState, Vote), StoreError> {
    let state = link.member()?.state().await?;
    let vote = link.is_at(quorum.clock.now(), &state, &quorum.identity);
    Ok((state, vote))
}

/// Gives a member that does not vote a record that is like no other.
async fn begin_watch(quorum: &Quorum, link: &Link) -> Result<(), StoreError> {
    let (state, vote) = look(quorum, link).await?;
    if vote != Vote::None {
        return Ok(());
    }
    let is_watched = |record: &Record| record.quorum == quorum.identity && record.voter.is_none();
    match Record::of(&state.membership) {
        Some(record) if record.quorum != quorum.identity => {
            let why = "it belongs to another quorum; remove its record, or use the same URL everywhere";
            let error = crate::settings::config(why);
            link.failed(&error);
            return Err(error);
        }
        Some(record) if is_watched(&record) => return Ok(()),
        _ => {}
    }
    tracing::info!(
        member = link.shown(),
        "does not vote; it will after it was watched for the longest lease"
    );
    mark(&quorum.identity, link, &state).await?;
    look(quorum, link).await?;
    Ok(())
}

/// Writes a record without a vote.
pub(crate) async fn mark(quorum: &Identity, link: &Link, state: &MemberState) -> Result<bool, StoreError> {
    // No vote counts by this number: it only makes the record unique.
    let since = GrantNumber::from_str_radix(&KeeperId::random().to_string()[..12], 16).unwrap_or_default();
    let record = Record { quorum: quorum.clone(), since, voter: None };
    enrol(link, &state.membership, &record, state.high_water + ROOM).await
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

/// Whether a member was seen with this membership, which has no vote, for longer than any lease.
fn is_watched(quorum: &Quorum, link: &Link, membership: &Membership) -> bool {
    let now = quorum.clock.now();
    let marked = Record::of(membership).is_some_and(|record| record.quorum == quorum.identity);
    let watched = link
        .watched()
        .is_some_and(|(watched, since)| watched == *membership && now.since(since) > quorum.watch_time());
    marked && watched
}

/// Has members vote again, with a mark above those of a majority of others.
async fn rejoin(quorum: &Quorum) -> Result<(), StoreError> {
    for link in quorum.links.iter().filter(|link| link.watched().is_some()) {
        // One that does not answer keeps no other from voting.
        let Ok((state, vote)) = look(quorum, link).await else { continue };
        if vote != Vote::None || !is_watched(quorum, link, &state.membership) {
            continue;
        }
        let mut marks = Vec::new();
        for other in quorum.links.iter().filter(|other| other.index != link.index) {
            if let Ok((state, Vote::Since(_))) = look(quorum, other).await {
                marks.push(state.high_water);
            }
        }
        if marks.len() < quorum.majority.needed() {
            return Ok(());
        }
        let mark = marks.into_iter().max().unwrap_or(0).max(state.high_water) + ROOM;
        drop(begin_to_vote(quorum, link, &state.membership, mark).await);
    }
    Ok(())
}

/// Has all members vote, if too few do: the quorum is new, or too many members have lost their data. All members have its
/// record before the first one votes.
async fn found(quorum: &Quorum) -> Result<(), StoreError> {
    let mut states = Vec::new();
    for link in &quorum.links {
        let (state, vote) = look(quorum, link).await?;
        if vote == Vote::None && !is_watched(quorum, link, &state.membership) {
            return Ok(());
        }
        states.push((link, state, vote));
    }
    let mark = founding_mark(states.iter().map(|(_, state, _)| state));
    for (link, state, vote) in states {
        if vote == Vote::None {
            begin_to_vote(quorum, link, &state.membership, mark).await?;
        }
    }
    Ok(())
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

async fn begin_to_vote(
    quorum: &Quorum,
    link: &Link,
    membership: &Membership,
    mark: GrantNumber,
) -> Result<(), StoreError> {
    if vote(&quorum.identity, link, membership, mark).await? {
        tracing::info!(member = link.shown(), "votes");
    }
    look(quorum, link).await?;
    Ok(())
}

/// Writes a record with a vote.
pub(crate) async fn vote(
    quorum: &Identity,
    link: &Link,
    membership: &Membership,
    since: GrantNumber,
) -> Result<bool, StoreError> {
    let record = Record { quorum: quorum.clone(), since, voter: Some(membership.incarnation.clone()) };
    enrol(link, membership, &record, since).await
}
