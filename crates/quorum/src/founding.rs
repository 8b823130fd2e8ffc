//! Founding a quorum by hand, for those who vouch that its servers are unused.

use std::{sync::Arc, time::Duration};

use lockkeeper_core::{
    KeeperId, StoreError,
    clock::Clock,
    store::{Connector, Context, WakeSink},
};
use tokio::runtime::Handle;

use crate::{
    connect::{Wanted, enter_all, identify},
    entrance::{Entrance, Found},
    link::Link,
    record::{MemberId, Record},
    settings::{Settings, config},
    steward::{founding_mark, mark, vote},
};

/// How long a member may take.
const LIMIT: Duration = Duration::from_secs(10);

/// The context that commands connect with.
pub(crate) fn context() -> Context {
    Context {
        keeper: KeeperId::random(),
        wakes: WakeSink::new(|_| {}),
        background: Handle::current(),
        clock: Clock::boot(),
        request_limit: LIMIT,
    }
}

/// Founds the quorum at once. All members must be there, and none may have a record.
pub(crate) async fn found_fresh(settings: &Settings, connectors: Vec<Connector>) -> Result<(), StoreError> {
    let (context, connectors) = (context(), Arc::<[Connector]>::from(connectors));
    let entrance = Entrance::new(&connectors, &context);
    let (found, errors) = enter_all(&entrance, settings, &context, Wanted::All).await?;
    let founded = found_all(settings, &entrance, &found, &errors).await;
    for found in found {
        found.store.close().await;
    }
    founded
}

async fn found_all(
    settings: &Settings,
    entrance: &Entrance,
    found: &[Found],
    errors: &[(usize, StoreError)],
) -> Result<(), StoreError> {
    if let Some(known) = found.iter().find(|found| found.state.membership.record.is_some()) {
        return Err(config(format!(
            "{} is a member of a quorum already, whose members begin to vote by themselves when that is safe; look at it \
             with `lockkeeper quorum show`, and wait for it with `lockkeeper quorum found` without --fresh",
            known.store.url()
        )));
    }
    let mut identity = identify(settings, entrance, found, errors)?;
    identity.ids = identity.ids.iter().map(|empty: &MemberId| empty.next(&empty.label)).collect();
    let links: Vec<Link> = found.iter().map(|found| Link::new(found.member, Arc::default())).collect();
    let changed = |done: bool, link: &Link| match done {
        true => Ok(()),
        false => {
            Err(config(format!("{} was changed by another client at the same time; try again", link.shown())))
        }
    };
    // All have the record before the first one votes: members that are shared with another quorum refuse one of the
    // two.
    for (link, found) in links.iter().zip(found) {
        link.connect(found.store.clone());
        changed(mark(&identity, link, &found.state).await?, link)?;
    }
    let mut states = Vec::new();
    for link in &links {
        let state = link.member()?.state().await?;
        let is_marked = |record: Record| record.quorum == identity && record.own == link.index;
        changed(Record::of(&state.membership).is_some_and(is_marked), link)?;
        states.push(state);
    }
    let since = founding_mark(states.iter());
    for (link, state) in links.iter().zip(&states) {
        changed(vote(&identity, link, &state.membership, since).await?, link)?;
    }
    Ok(())
}
