//! The views and orders of operators: members are asked side by side, and the state that a majority shows counts.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use lockkeeper_core::{
    ContenderId, GrantNumber, Name, StoreError, StoreErrorKind, Survives,
    store::{
        Admit, Admitted, BoxFuture, Evict, Evicted, Eviction, HolderView, Leave, ListQuery, Membership, Page,
        Request, ResourceView, Store, StoreTime, Topic, WaiterView, Watch,
    },
};
use tokio::task::JoinSet;

use crate::{member_ids::MemberIds, quorum::Quorum, record::Vote};

/// The answer of one member.
struct Told<T> {
    member: usize,
    answer: T,
}

impl Quorum {
    /// Asks all members. Waits for those that are not suspected; fewer than a majority is an error.
    async fn ask_all<T: Send + 'static>(
        &self,
        ask: impl Fn(Arc<dyn Store>, usize) -> BoxFuture<'static, Result<T, StoreError>>,
    ) -> Result<Vec<Told<T>>, StoreError> {
        let mut asked = JoinSet::new();
        for link in &self.links {
            let Some(store) = link.store() else { continue };
            let (member, answer) = (link.index, ask(store.clone(), link.index));
            asked.spawn_on(async move { (member, answer.await) }, &self.background);
        }
        let (mut told, mut failed, now) = (Vec::new(), None, self.clock.now());
        let needed = self.majority.needed();
        while !asked.is_empty() {
            let suspected = self.links.iter().filter(|link| link.is_suspect()).count();
            let enough = told.len() >= needed && told.len() >= self.links.len() - suspected;
            let limit = if told.len() >= needed { self.member_limit() } else { self.request_limit };
            let left = limit.saturating_sub(self.clock.now().since(now));
            if enough || left.is_zero() {
                break;
            }
            match tokio::time::timeout(left, asked.join_next()).await {
                Ok(Some(Ok((member, Ok(answer))))) => told.push(Told { member, answer }),
                Ok(Some(Ok((member, Err(error))))) => {
                    // A refusal to a user says nothing about claims.
                    if error.is_passing() {
                        self.links[member].failed(&error, self.clock.now());
                    }
                    failed = Some(error);
                }
                _ => {}
            }
        }
        // Requests that go on without being waited for may still take effect.
        asked.detach_all();
        if told.len() >= needed {
            return Ok(told);
        }
        match failed {
            Some(error) if !error.is_passing() => Err(error),
            _ => Err(self.unreachable()),
        }
    }

    pub(crate) async fn watch(&self, topic: &Topic) -> Result<Option<Watch>, StoreError> {
        let watches = self.ask_all(|store, _| {
            let topic = topic.clone();
            Box::pin(async move { store.watch(&topic).await })
        });
        let watches: Vec<Watch> = watches.await?.into_iter().filter_map(|told| told.answer).collect();
        Ok((!watches.is_empty()).then(|| Watch::new(watches)))
    }

    async fn views(&self, name: &Name) -> Result<Vec<Told<Option<ResourceView>>>, StoreError> {
        let asked = self.ask_all(|store, _| {
            let name = name.clone();
            Box::pin(async move { store.inspect(&name).await })
        });
        asked.await
    }

    pub(crate) async fn inspect(&self, name: &Name) -> Result<Option<ResourceView>, StoreError> {
        let mut views = self.views(name).await?;
        self.sort(name, &mut views);
        let views =
            views.into_iter().filter_map(|Told { member, answer }| Some(Told { member, answer: answer? }));
        Ok(self.merged(name, views.collect()))
    }

    /// Puts the gate's view first.
    fn sort<T>(&self, name: &Name, views: &mut [Told<T>]) {
        let order: Vec<usize> = self.gates(name).collect();
        views.sort_by_key(|told| order.iter().position(|member| *member == told.member));
    }

    /// Merges the views of members into the resource that a majority shows.
    fn merged(&self, name: &Name, views: Vec<Told<ResourceView>>) -> Option<ResourceView> {
        let (capacity, gate) = (views.first()?.answer.capacity, self.gate(name));
        let mut held: BTreeMap<ContenderId, Vec<HolderView>> = BTreeMap::new();
        let (mut waiters, mut at_gate): (Vec<WaiterView>, Vec<ContenderId>) = Default::default();
        for Told { member, answer: view } in views {
            for holder in view.holders {
                at_gate.extend((member == gate).then_some(holder.contender));
                held.entry(holder.contender).or_default().push(holder);
            }
            for waiter in view.waiters {
                if !waiters.iter().any(|known| known.contender == waiter.contender) {
                    waiters.push(waiter);
                }
            }
        }
        let mut holders = Vec::new();
        for (contender, shown) in held {
            if shown.len() < self.majority.needed() {
                // It is on its way in. If the gate does not show it, it is on its way out, or in nobody's way.
                let is_next = at_gate.contains(&contender);
                let known = waiters.iter().any(|waiter| waiter.contender == contender);
                waiters.extend(shown.first().filter(|_| is_next && !known).map(as_waiter));
                continue;
            }
            waiters.retain(|waiter| waiter.contender != contender);
            holders.extend(self.merged_holder(shown));
        }
        holders.sort_by_key(|holder| holder.token);
        let view = ResourceView { name: name.clone(), capacity, holders, waiters };
        (!view.holders.is_empty() || !view.waiters.is_empty()).then_some(view)
    }

    fn merged_holder(&self, shown: Vec<HolderView>) -> Option<HolderView> {
        // Members that do not answer have shown the same number to the holder, or a lower one that it has raised.
        let token = self.majority.smallest_possible(shown.iter().map(|holder| holder.token))?;
        let remaining =
            self.majority.largest(shown.iter().map(|holder| holder.remaining.unwrap_or_default()));
        let evicted = shown.iter().any(|holder| holder.evicted);
        // A majority knows of a detach when it is answered, and the others a little later. A member that frees crashed
        // processes beside members that do not is told that every hold is detached, so one of them alone says nothing.
        let detached = shown.iter().filter(|holder| holder.detached).count() >= self.majority.needed();
        let renewed = shown.iter().any(|holder| holder.renewed);
        let first = shown.into_iter().next()?;
        Some(HolderView { token, remaining, evicted, detached, renewed, ..first })
    }

    pub(crate) async fn list(&self, query: &ListQuery) -> Result<Page, StoreError> {
        let pages = self.ask_all(|store, _| {
            let query = query.clone();
            Box::pin(async move { store.list(&query).await })
        });
        let pages = pages.await?;
        // Of names after the shortest page, some members have not told.
        let next = pages.iter().filter_map(|told| told.answer.next.clone()).min();
        let mut views: BTreeMap<Name, Vec<Told<ResourceView>>> = BTreeMap::new();
        for Told { member, answer } in pages {
            for view in answer.resources {
                if next.as_ref().is_none_or(|next| view.name <= *next) {
                    views.entry(view.name.clone()).or_default().push(Told { member, answer: view });
                }
            }
        }
        let mut resources = Vec::new();
        for (name, mut views) in views {
            self.sort(&name, &mut views);
            resources.extend(self.merged(&name, views));
        }
        let limit = query.limit.max(1);
        if resources.len() > limit {
            resources.truncate(limit);
            let next = resources.last().map(|last| last.name.clone());
            return Ok(Page { resources, next });
        }
        Ok(Page { resources, next })
    }

    /// Takes a lock back, from each member with the number that it has there. The contender alone identifies the hold:
    /// it is used for one acquisition, and members' numbers differ.
    pub(crate) async fn evict(&self, order: &Evict) -> Result<Evicted, StoreError> {
        let views = self.views(&order.name).await?;
        let holder = |told: &Told<Option<ResourceView>>| {
            let holders = told.answer.clone().into_iter().flat_map(|view| view.holders);
            let mut holders = holders.filter(|holder| holder.contender == order.contender);
            Some((told.member, holders.next()?))
        };
        let shown: BTreeMap<usize, HolderView> = views.iter().filter_map(holder).collect();
        let (members, needed) = (self.links.len(), self.majority.needed());
        let missing = members - views.len();
        if shown.len() + missing < needed || !self.may_have(order.number, &shown, missing) {
            return Ok(Evicted::NotHeld);
        }
        let sent = self.clock.now();
        let told = self.ask_all(|store, member| {
            let number = shown.get(&member).map_or(order.number, |holder| holder.token.number());
            // Late claims must not bring it back.
            let tombstone_until = Some(self.links[member].not_after(sent));
            Box::pin(evict_at(store, Evict { number, ..order.clone() }, tombstone_until))
        });
        let told = told.await?;
        let done = told.iter().filter(|told| told.answer == Evicted::Done).count();
        let missing = members - told.len();
        if missing > 0 && (order.how == Eviction::Immediate || done < needed && done + missing >= needed) {
            let message = "some members did not answer, and the lock may come back there; evict it again";
            return Err(StoreError::new(StoreErrorKind::Unreachable, message));
        }
        Ok(if done >= needed { Evicted::Done } else { Evicted::NotHeld })
    }

    /// Whether a holder that members show so may have been told this number. Members show it or a higher one, but for
    /// those that were away. All of those that keep a detached lease may have been raised above it.
    fn may_have(&self, number: GrantNumber, shown: &BTreeMap<usize, HolderView>, missing: usize) -> bool {
        let numbers = || shown.values().map(|holder| holder.token.number());
        let detached = shown.values().filter(|holder| holder.detached).count();
        let may_be_lower = missing > 0 || detached >= self.majority.needed();
        numbers().max() >= Some(number) && (may_be_lower || numbers().min() <= Some(number))
    }

    /// Shows a token to the fences of all members. A rejection is final. A member counts only for tokens above the mark
    /// with which it began to vote: if it has lost its data, the tokens that it has forgotten are not above that.
    pub(crate) async fn fence(&self, admit: &Admit) -> Result<Admitted, StoreError> {
        if !self.capability.fences {
            let message = "members of this quorum may lose their data, and a fence that forgets admits what it rejected; \
                           keep the fence with the data, such as with lockkeeper::Fence";
            return Err(StoreError::new(StoreErrorKind::Unsupported, message));
        }
        let told = self.ask_all(|store, _| Box::pin(fence_at(store, admit.clone())));
        let told = told.await?;
        let stale = told.iter().filter_map(|told| match told.answer.0 {
            Admitted::Stale { highest } => Some(highest),
            Admitted::Yes => None,
        });
        if let Some(highest) = stale.max() {
            return Ok(Admitted::Stale { highest });
        }
        // Contenders learn of member ids on the keeper's thread, so here they are learned for this answer only.
        let ids = MemberIds::new(self.identity.identity());
        for Told { answer: (_, membership), .. } in &told {
            ids.learn(membership);
        }
        let knows = |told: &&Told<(Admitted, Membership)>| matches!(ids.vote(told.member, &told.answer.1), Vote::Since(mark) if admit.token.number() > mark);
        match told.iter().filter(knows).count() >= self.majority.needed() {
            true => Ok(Admitted::Yes),
            false => Err(self.too_few_that("know whether a later token was admitted")),
        }
    }
}

/// Shows a token to the fence of one member. Its membership is read after its answer.
async fn fence_at(store: Arc<dyn Store>, admit: Admit) -> Result<(Admitted, Membership), StoreError> {
    let admitted = store.fence(&admit).await?;
    let lacking = || StoreError::new(StoreErrorKind::Unsupported, "it cannot be a member of a quorum");
    let membership = store.member().ok_or_else(lacking)?.apply(&[]).await?.membership;
    Ok((admitted, membership))
}

/// Takes a lock back from one member.
async fn evict_at(
    store: Arc<dyn Store>,
    order: Evict,
    tombstone_until: Option<StoreTime>,
) -> Result<Evicted, StoreError> {
    let evicted = store.evict(&order).await?;
    if order.how == Eviction::Immediate {
        let (name, contender, hold_at_least) = (order.name, order.contender, Duration::ZERO);
        let leave = Leave { name, contender, tombstone_until, hold_at_least };
        store.apply(&[Request::Leave(leave)]).await?;
    }
    Ok(evicted)
}

/// Whether a member keeps its data when it restarts.
pub(crate) fn is_durable(store: &dyn Store) -> bool {
    store.capability().restart == Survives::Fully
}

fn as_waiter(holder: &HolderView) -> WaiterView {
    WaiterView {
        contender: holder.contender,
        units: holder.units,
        details: holder.details.clone(),
        since: holder.since,
    }
}
