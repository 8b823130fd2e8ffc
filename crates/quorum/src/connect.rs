//! Connects a keeper to the members of a quorum, as soon as a majority is there.

use std::{sync::Arc, time::Duration};

use lockkeeper_core::{
    Capability, StoreError, StoreErrorKind,
    store::{Connector, Context, Store},
    support::background::Background,
};
use tokio::{sync::Notify, task::JoinSet};

use crate::{
    entrance::{Entrance, Found, one_server},
    link::Link,
    member_ids::{MemberIds, Standing, standing},
    outbox::Outbox,
    quorum::{self, Quorum, fnv},
    record::{Identity, MemberId, Record},
    settings::{Settings, config},
    steward::{self, Steward},
    store::{CAPABILITY, QuorumStore},
    views::is_durable,
};

pub(crate) fn connector(settings: Settings, members: Vec<Connector>) -> Connector {
    let lease = settings.lease;
    let (settings, members) = (Arc::new(settings), Arc::<[Connector]>::from(members));
    let connector = Connector::new(move |context| {
        let (settings, members) = (settings.clone(), members.clone());
        async move { Ok(Arc::new(open(&settings, &members, context).await?) as Arc<dyn Store>) }
    });
    connector.with_lease(lease)
}

async fn open(
    settings: &Settings,
    connectors: &Arc<[Connector]>,
    context: Context,
) -> Result<QuorumStore, StoreError> {
    let entrance = Entrance::new(connectors, &context);
    let (found, errors) = enter_all(&entrance, settings, &context, Wanted::Majority).await?;
    let urls: Vec<String> = (0..connectors.len())
        .map(|member| {
            let found = found.iter().find(|found| found.member == member);
            found.map_or_else(|| "…".to_owned(), |found| found.store.url().to_string())
        })
        .collect();
    let quorum = assemble(settings, &entrance, found, errors, &context)?;
    let steward = Steward::new(entrance, &quorum);
    let tended = steward::tend_always(Arc::downgrade(&quorum), steward);
    let id = format!("quorum {:x}", quorum.identity.identity().name);
    Ok(QuorumStore {
        url: format!("quorum:{}", urls.join(",")).into(),
        id,
        _steward: Background::spawn(&context.background, tended),
        quorum,
        left_over: Arc::default(),
    })
}

/// The quorum of members that were reached.
pub(crate) fn assemble(
    settings: &Settings,
    entrance: &Entrance,
    found: Vec<Found>,
    errors: Vec<(usize, StoreError)>,
    context: &Context,
) -> Result<Arc<Quorum>, StoreError> {
    let identity = identify(settings, entrance, &found, &errors)?;
    let mut capability = CAPABILITY.clone();
    capability.max_lease = settings.max_lease;
    limit(&mut capability, settings, &found);
    let (suspected, members) = (Arc::new(Notify::new()), 0..settings.members.len());
    let quorum = Arc::new(Quorum {
        identity: MemberIds::new(identity),
        majority: settings.majority,
        links: members.clone().map(|member| Link::new(member, suspected.clone())).collect(),
        outboxes: members.map(|_| Outbox::default()).collect(),
        capability,
        clock: context.clock.clone(),
        background: context.background.clone(),
        wakes: context.wakes.clone(),
        request_limit: context.request_limit,
        suspected,
        stewards: Notify::new(),
        state: quorum::State::default(),
    });
    entrance.leads_to(&quorum);
    for (member, error) in errors {
        quorum.links[member].failed(&error, quorum.clock.now());
    }
    for found in found {
        steward::greet(&quorum, found);
    }
    Ok(quorum)
}

/// How many members are waited for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// A majority, and the others for as long as a member may take.
    Majority,
    All,
    /// The members that are there.
    Any,
}

/// The members that were reached, and the errors of the others.
type Entered = (Vec<Found>, Vec<(usize, StoreError)>);

/// Connects members side by side, on the caller's runtime. A store keeps its connection there if it can.
pub(crate) async fn enter_all(
    entrance: &Entrance,
    settings: &Settings,
    context: &Context,
    wanted: Wanted,
) -> Result<Entered, StoreError> {
    let (count, needed) = (settings.members.len(), settings.majority.needed());
    let mut entering = JoinSet::new();
    for member in 0..count {
        let entered = entrance.clone().enter(member);
        let limited = async move {
            let entered = Box::pin(entered);
            (member, entered.await)
        };
        entering.spawn(limited);
    }
    let (mut found, mut errors, begun) = (Vec::new(), Vec::new(), context.clock.now());
    while !entering.is_empty() {
        let enough = wanted == Wanted::Majority && found.len() >= needed;
        let limit = if enough { context.request_limit / 4 } else { context.request_limit };
        let left = limit.saturating_sub(context.clock.now().since(begun));
        match tokio::time::timeout(left, entering.join_next()).await {
            Ok(Some(Ok((_, Ok(one))))) => found.push(one),
            Ok(Some(Ok((member, Err(error))))) => errors.push((member, error)),
            Ok(_) => {}
            Err(_) => break,
        }
    }
    found.sort_by_key(|found| found.member);
    for member in 0..count {
        let is_known = found.iter().any(|found| found.member == member)
            || errors.iter().any(|(failed, _)| *failed == member);
        if !is_known {
            errors.push((member, StoreError::new(StoreErrorKind::Unreachable, "it is too slow")));
        }
    }
    refuse_duplicates(&found)?;
    let wanted = match wanted {
        Wanted::Majority => needed,
        Wanted::All => count,
        Wanted::Any => 0,
    };
    if found.len() < wanted {
        return Err(unreached(&errors, wanted));
    }
    Ok((found, errors))
}

fn refuse_duplicates(found: &[Found]) -> Result<(), StoreError> {
    for (nth, one) in found.iter().enumerate() {
        // Two namespaces of one server are two stores, and one failure takes both.
        let is_same =
            |other: &&Found| other.store.id() == one.store.id() || other.state.server == one.state.server;
        if let Some(other) = found[nth + 1..].iter().find(is_same) {
            return Err(one_server((one.member, one.store.url()), (other.member, other.store.url())));
        }
    }
    Ok(())
}

/// The error if too few members could be reached.
fn unreached(errors: &[(usize, StoreError)], wanted: usize) -> StoreError {
    if let Some((_, error)) = errors.iter().find(|(_, error)| !error.is_passing()) {
        return error.clone();
    }
    let each: Vec<String> =
        errors.iter().map(|(member, error)| format!("member {}: {error}", member + 1)).collect();
    let message = format!("fewer than {wanted} members of the quorum could be reached; {}", each.join("; "));
    StoreError::new(StoreErrorKind::Unreachable, message).not_applied()
}

/// Returns the identity of the quorum, with the owners of its places: from the records of the members, or from the
/// members themselves if it was not founded yet.
pub(crate) fn identify(
    settings: &Settings,
    entrance: &Entrance,
    found: &[Found],
    errors: &[(usize, StoreError)],
) -> Result<Identity, StoreError> {
    let records: Vec<Record> = found.iter().filter_map(|found| Record::of(&found.state.membership)).collect();
    let mut identity = match records.first() {
        Some(record) => record.quorum.clone(),
        None if found.len() == settings.members.len() => unfounded(settings, found),
        None => return Err(unreached(errors, settings.members.len())),
    };
    for record in &records {
        if record.quorum.is_same_quorum(&identity) {
            identity.join(&record.quorum);
        }
    }
    let named = Identity { max_lease: settings.max_lease, ..identity.clone() };
    for found in found {
        let label = entrance.label(&identity, found.member, found.store.url());
        if let Standing::Refused(why) = standing(&named, found.member, &label, &found.state.membership) {
            return Err(config(format!("{} is no member: {why}", found.store.url())));
        }
    }
    match identity.ids.len() == settings.members.len() {
        true => Ok(named),
        false => Err(config("the quorum was founded with more members; use the same URL everywhere")),
    }
}

/// Returns the identity of a quorum that nobody has founded yet. Everybody comes to the same name.
fn unfounded(settings: &Settings, found: &[Found]) -> Identity {
    let ids: Vec<&str> = found.iter().map(|found| found.store.id()).collect();
    Identity {
        name: fnv(&ids.join(" ")),
        max_lease: settings.max_lease,
        ids: found.iter().map(|found| MemberId::empty(found.store.url())).collect(),
    }
}

/// Limits the capability of the quorum to that of each of its members.
fn limit(capability: &mut Capability, settings: &Settings, found: &[Found]) {
    capability.frees_crashed_at_once = true;
    for Found { store, .. } in found {
        let member = store.capability();
        capability.between_processes &= member.between_processes;
        capability.pushes &= member.pushes;
        capability.detachable &= member.detachable;
        capability.frees_crashed_at_once &= member.frees_crashed_at_once;
        capability.min_lease = capability.min_lease.max(member.min_lease);
        capability.group_limit = capability.group_limit.min(member.group_limit);
        capability.fences &= is_durable(store.as_ref());
    }
    // A member that was never seen may be of any kind.
    capability.fences &= found.len() == settings.members.len();
    capability.max_lease = capability.max_lease.max(Duration::from_millis(1));
}
