//! Planted bugs: stores that are wrong in one way each, as real ones have been. A checker that
//! does not catch them proves nothing. They are wrappers, so no bug can be switched on in a
//! product.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use lockkeeper_core::{
    ContenderId, Name,
    store::{
        Admit, Admitted, Answer, Answers, Claim, Connector, Context, Count, CountAction, Counted, Evict,
        Evicted, Grant, LatchPage, Leave, ListQuery, Page, Renew, Renewed, Reply, Request, ResourceView,
        Store, StoreTime, Topic, Verdict, Wake, WakeSink, Watch,
    },
    support,
};
use tokio::time::{Instant, sleep};

use crate::wrapper::same_store;

/// A planted bug of a store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Bug {
    /// Nothing.
    None,
    /// A release frees the name, no matter which contender holds it.
    ReleaseByName,
    /// Grant numbers start anew when a resource was free.
    TokenReset,
    /// The rest of a lease is told as if it were counted from when the reply arrives.
    DeadlineAfterReply,
    /// Every answer to a claim tells the longest rest so far, which is the whole lease, instead of the rest now.
    DeadlineByMaximum,
    /// A repeated claim enters the queue once more.
    DoubleEntry,
    /// Late copies of a claim are obeyed, and leaving leaves no tombstone against them.
    GhostClaim,
    /// A position in the queue never ends, though its process is dead.
    ExpiredWaiterKept,
    /// Wakes are lost and asking again tells nothing new.
    LostWakeWithoutPoll,
    /// A renewal revives an ended lease.
    RenewalRevives,
    /// A second holder is let in now and then.
    GrantedTwice,
    /// A leave is answered but not done.
    LeaveForgotten,
    /// Another capacity is taken for a grant.
    MismatchGranted,
    /// A lease stays bound to its process.
    NeverDetached,
    /// An eviction hits any contender that holds the name.
    EvictedByName,
    /// Views show no published value.
    ValueForgotten,
    /// Listings have no order.
    ListedAnyhow,
    /// A count counts twice.
    CountedTwice,
    /// A fence remembers nothing.
    FenceForgets,
    /// A latch operation that arrives again counts again.
    CountedAgain,
    /// An eviction is answered but not done.
    EvictionForgotten,
    /// A listing has no second page.
    OnePageOnly,
    /// A downgrade is answered but not done.
    NeverLowered,
    /// A minimum hold ends with its release.
    MinHoldForgotten,
    /// Notices do not echo the stamp of the claim.
    StampForgotten,
    /// A renewal tells the lease that was asked for, instead of the rest of it.
    FullLeaseTold,
}

impl Bug {
    /// All that break the promises about a single lock: the simulation must reveal them.
    pub const ALL: [Self; 10] = [
        Self::ReleaseByName,
        Self::TokenReset,
        Self::DeadlineAfterReply,
        Self::DeadlineByMaximum,
        Self::DoubleEntry,
        Self::GhostClaim,
        Self::ExpiredWaiterKept,
        Self::LostWakeWithoutPoll,
        Self::RenewalRevives,
        Self::GrantedTwice,
    ];

    /// The others, which the behaviour suite or refinement must reveal.
    pub const OTHERS: [Self; 15] = [
        Self::LeaveForgotten,
        Self::MismatchGranted,
        Self::NeverDetached,
        Self::EvictedByName,
        Self::ValueForgotten,
        Self::ListedAnyhow,
        Self::CountedTwice,
        Self::FenceForgets,
        Self::CountedAgain,
        Self::EvictionForgotten,
        Self::OnePageOnly,
        Self::NeverLowered,
        Self::MinHoldForgotten,
        Self::StampForgotten,
        Self::FullLeaseTold,
    ];
}

/// The store that `connector` connects to, with a bug.
pub fn broken(connector: Connector, bug: Bug) -> Connector {
    if bug == Bug::None {
        return connector;
    }
    Connector::new(move |mut context: Context| {
        if bug == Bug::LostWakeWithoutPoll {
            let sink = context.wakes.clone();
            context.wakes = WakeSink::new(move |wake| {
                if !matches!(wake, Wake::Granted(..)) {
                    sink.wake(wake);
                }
            });
        }
        let connecting = connector.connect(context);
        async move {
            let inner = connecting.await?;
            Ok(Arc::new(BrokenStore { inner, bug, memory: Arc::default() }) as Arc<dyn Store>)
        }
    })
}

#[derive(Debug)]
struct BrokenStore {
    inner: Arc<dyn Store>,
    bug: Bug,
    memory: Arc<Mutex<Memory>>,
}

/// The memory that some bugs need.
#[derive(Debug, Default)]
struct Memory {
    copies: u64,
    undead: HashMap<ContenderId, Claim>,
    held: HashMap<ContenderId, Grant>,
}

impl BrokenStore {
    fn memory(&self) -> MutexGuard<'_, Memory> {
        support::lock(&self.memory)
    }

    /// Spoils a request on its way in.
    async fn spoil(&self, request: &Request) -> Request {
        let mut request = request.clone();
        match (self.bug, &mut request) {
            (Bug::ReleaseByName, Request::Leave(leave)) => {
                let view = self.inner.inspect(&leave.name).await.ok().flatten();
                let waits = |view: &ResourceView| view.waiters.iter().any(|w| w.contender == leave.contender);
                let view = view.filter(|view| !waits(view));
                if let Some(holder) = view.as_ref().and_then(|view| view.holders.first()) {
                    leave.contender = holder.contender;
                }
            }
            (Bug::DoubleEntry, Request::Claim(claim)) if claim.again => {
                let mut memory = self.memory();
                memory.copies += 1;
                claim.contender.seq += (1 << 40) * memory.copies;
            }
            (Bug::GhostClaim, Request::Claim(claim)) => claim.not_after = StoreTime(u64::MAX),
            (Bug::GhostClaim, Request::Leave(leave)) => leave.tombstone_until = None,
            (Bug::ExpiredWaiterKept, Request::Claim(claim)) if claim.queue => self.never_dies(claim),
            (Bug::ExpiredWaiterKept, Request::Leave(Leave { contender, .. })) => {
                self.memory().undead.remove(contender);
            }
            (Bug::LeaveForgotten, Request::Leave(leave)) => leave.contender.seq += 1 << 40,
            (Bug::MinHoldForgotten, Request::Leave(leave)) => leave.hold_at_least = Duration::ZERO,
            (Bug::StampForgotten, Request::Claim(claim)) => claim.stamp = 0,
            _ => {}
        }
        request
    }

    /// Goes on asking for a claim for ever, as a store that forgets nobody would.
    fn never_dies(&self, claim: &Claim) {
        if self.memory().undead.insert(claim.contender, claim.clone()).is_some() {
            return;
        }
        let (inner, memory, id) = (self.inner.clone(), self.memory.clone(), claim.contender);
        tokio::spawn(async move {
            loop {
                sleep(Duration::from_secs(1)).await;
                let claim = support::lock(&memory).undead.get(&id).cloned();
                let Some(claim) = claim else { return };
                let renew = Renew {
                    name: claim.name.clone(),
                    contender: id,
                    lease: Duration::from_secs(5),
                    lower_to: None,
                    detach: false,
                    at_least: 0,
                };
                drop(inner.renew(&[renew]).await);
                let again = Claim { again: true, not_after: StoreTime(u64::MAX), ..claim };
                drop(inner.apply(&[Request::Claim(again)]).await);
            }
        });
    }

    /// Spoils an answer on its way out.
    fn spoil_verdict(&self, claim: &Claim, verdict: Verdict, took: Duration) -> Verdict {
        match (self.bug, verdict) {
            (Bug::TokenReset, Verdict::Granted(grant)) => Verdict::Granted(reset(grant)),
            (Bug::RenewalRevives, Verdict::Granted(grant)) => {
                self.memory().held.insert(claim.contender, grant);
                Verdict::Granted(grant)
            }
            (Bug::DeadlineAfterReply, Verdict::Granted(mut grant)) => {
                grant.remaining += took;
                Verdict::Granted(grant)
            }
            (Bug::DeadlineByMaximum, Verdict::Granted(mut grant)) => {
                grant.remaining = claim.lease;
                Verdict::Granted(grant)
            }
            (Bug::LostWakeWithoutPoll, Verdict::Granted(_)) if claim.again => {
                Verdict::busy(0, Duration::from_secs(1))
            }
            (Bug::GrantedTwice, Verdict::Busy { .. }) if self.sometimes() => granted_anyway(claim),
            (Bug::MismatchGranted, Verdict::Mismatch { .. }) => granted_anyway(claim),
            (_, verdict) => verdict,
        }
    }

    fn sometimes(&self) -> bool {
        let mut memory = self.memory();
        memory.copies += 1;
        memory.copies.is_multiple_of(5)
    }
}

/// The grant with a number that does not grow.
fn reset(grant: Grant) -> Grant {
    let number = 1 + grant.number % 7;
    Grant { number, floor: number, ..grant }
}

/// A grant that the store knows nothing of.
fn granted_anyway(claim: &Claim) -> Verdict {
    let number = claim.stamp / 1000;
    Verdict::Granted(Grant { number, floor: number, remaining: claim.lease })
}

#[deny(clippy::missing_trait_methods)]
impl Store for BrokenStore {
    same_store!();

    fn apply<'a>(&'a self, group: &'a [Request]) -> Reply<'a, Answers<Answer>> {
        Box::pin(async move {
            let mut spoiled = Vec::with_capacity(group.len());
            for request in group {
                spoiled.push(self.spoil(request).await);
            }
            let asked = Instant::now();
            let mut answers = self.inner.apply(&spoiled).await?;
            let took = asked.elapsed();
            answers.each = group
                .iter()
                .zip(answers.each)
                .map(|(request, answer)| match (request, answer) {
                    (Request::Claim(claim), Answer::Claim(verdict)) => {
                        Answer::Claim(self.spoil_verdict(claim, verdict, took))
                    }
                    (_, answer) => answer,
                })
                .collect();
            Ok(answers)
        })
    }

    fn apply_alone<'a>(&'a self, group: &'a [Request]) -> Reply<'a, Answers<Answer>> {
        self.apply(group)
    }

    fn renew<'a>(&'a self, leases: &'a [Renew]) -> Reply<'a, Answers<Renewed>> {
        Box::pin(async move {
            let asked = Instant::now();
            let mut spoiled = leases.to_vec();
            for renew in &mut spoiled {
                renew.detach &= self.bug != Bug::NeverDetached;
                renew.lower_to = renew.lower_to.filter(|_| self.bug != Bug::NeverLowered);
            }
            let mut answers = self.inner.renew(&spoiled).await?;
            for (renew, answer) in leases.iter().zip(&mut answers.each) {
                match (self.bug, &mut *answer) {
                    (Bug::RenewalRevives, Renewed::Held(grant)) => {
                        self.memory().held.insert(renew.contender, *grant);
                    }
                    (Bug::RenewalRevives, Renewed::Gone) => {
                        let held = self.memory().held.get(&renew.contender).copied();
                        // Of a lease that it never knew, it has the number that the behaviour suite made up.
                        let made_up = Grant { number: 9, floor: 9, remaining: renew.lease };
                        *answer = Renewed::Held(Grant { remaining: renew.lease, ..held.unwrap_or(made_up) });
                    }
                    (Bug::TokenReset, Renewed::Held(grant)) => *grant = reset(*grant),
                    (Bug::DeadlineAfterReply, Renewed::Held(grant)) => grant.remaining += asked.elapsed(),
                    (Bug::FullLeaseTold, Renewed::Held(grant)) => grant.remaining = renew.lease,
                    _ => {}
                }
            }
            Ok(answers)
        })
    }

    fn watch<'a>(&'a self, topic: &'a Topic) -> Reply<'a, Option<Watch>> {
        self.inner.watch(topic)
    }

    fn inspect<'a>(&'a self, name: &'a Name) -> Reply<'a, Option<ResourceView>> {
        Box::pin(async move {
            let mut view = self.inner.inspect(name).await?;
            let holders = view.iter_mut().flat_map(|view| &mut view.holders);
            for holder in holders.filter(|_| self.bug == Bug::ValueForgotten) {
                holder.details.value = None;
            }
            Ok(view)
        })
    }

    fn list<'a>(&'a self, query: &'a ListQuery) -> Reply<'a, Page> {
        Box::pin(async move {
            let mut page = self.inner.list(query).await?;
            match self.bug {
                Bug::ListedAnyhow => page.resources.reverse(),
                Bug::OnePageOnly => page.next = None,
                _ => {}
            }
            Ok(page)
        })
    }

    fn latches<'a>(&'a self, query: &'a ListQuery) -> Reply<'a, LatchPage> {
        self.inner.latches(query)
    }

    fn evict<'a>(&'a self, order: &'a Evict) -> Reply<'a, Evicted> {
        Box::pin(async move {
            let mut order = order.clone();
            if self.bug == Bug::EvictionForgotten {
                return Ok(Evicted::Done);
            }
            if self.bug == Bug::EvictedByName
                && let Some(view) = self.inner.inspect(&order.name).await?
                && let Some(holder) = view.holders.first()
            {
                (order.contender, order.number) = (holder.contender, holder.token.number());
            }
            self.inner.evict(&order).await
        })
    }

    fn count<'a>(&'a self, count: &'a Count) -> Reply<'a, Answers<Counted>> {
        Box::pin(async move {
            let mut count = count.clone();
            if let (Bug::CountedTwice, CountAction::Down(by)) = (self.bug, &mut count.action) {
                *by *= 2;
            }
            if self.bug == Bug::CountedAgain {
                let mut memory = self.memory();
                memory.copies += 1;
                count.op.seq += (1 << 40) * memory.copies;
            }
            self.inner.count(&count).await
        })
    }

    fn fence<'a>(&'a self, admit: &'a Admit) -> Reply<'a, Admitted> {
        if self.bug == Bug::FenceForgets {
            return Box::pin(std::future::ready(Ok(Admitted::Yes)));
        }
        self.inner.fence(admit)
    }
}
