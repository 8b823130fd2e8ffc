//! Founding a quorum by hand, for those who vouch that its servers are unused.

use std::{sync::Arc, time::Duration};

use lockkeeper_core::{
    KeeperId, StoreError,
    clock::Clock,
    store::{Connector, Context, WakeSink},
};
use tokio::runtime::Handle;

use crate::{
    connect::{Entrance, Found, Wanted, enter_all, identify},
    link::Link,
    settings::{Settings, config},
    steward::{founding_mark, mark, vote},
};

/// How long a member may take.
const LIMIT: Duration = Duration::from_secs(10);

/// Founds the quorum at once. All members must be there, and none may have a record.
pub(crate) async fn found_fresh(settings: &Settings, connectors: Vec<Connector>) -> Result<(), StoreError> {
    let context = Context {
        keeper: KeeperId::random(),
        wakes: WakeSink::new(|_| {}),
        background: Handle::current(),
        clock: Clock::boot(),
        request_limit: LIMIT,
    };
    let connectors: Arc<[Connector]> = connectors.into();
    let entrance = Entrance::new(&connectors, &context);
    let (found, errors) = enter_all(&entrance, settings, &context, Wanted::All).await?;
    let founded = found_all(settings, &found, &errors).await;
    for found in found {
        found.store.close().await;
    }
    founded
}

async fn found_all(
    settings: &Settings,
    found: &[Found],
    errors: &[(usize, StoreError)],
) -> Result<(), StoreError> {
    if let Some(known) = found.iter().find(|found| found.state.membership.record.is_some()) {
        return Err(config(format!(
            "{} is a member of a quorum already, whose members begin to vote by themselves when that is safe",
            known.store.url()
        )));
    }
    let identity = identify(settings, found, errors)?;
    let links: Vec<Link> = found.iter().map(|found| Link::new(found.member)).collect();
    let changed = |done: bool, link: &Link| match done {
        true => Ok(()),
        false => {
            Err(config(format!("{} was changed by another client at the same time; try again", link.shown())))
        }
    };
    // All have the record before the first one votes: members that are shared with another quorum refuse one of the two.
    for (link, found) in links.iter().zip(found) {
        link.connect(found.store.clone());
        changed(mark(&identity, link, &found.state).await?, link)?;
    }
    let mut states = Vec::new();
    for link in &links {
        states.push(link.member()?.state().await?);
    }
    let since = founding_mark(states.iter());
    for (link, state) in links.iter().zip(&states) {
        changed(vote(&identity, link, &state.membership, since).await?, link)?;
    }
    Ok(())
}
