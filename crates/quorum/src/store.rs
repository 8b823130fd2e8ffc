//! The `impl Store`: the engine's requests become attempts, which `quorum.rs` runs.

use std::{pin::Pin, sync::Arc, time::Duration};

use lockkeeper_core::{
    Capability, Name, StoreError, StoreErrorKind, Survives,
    clock::BootTime,
    store::{
        Admit, Admitted, Answer, Answers, BoxFuture, Count, Counted, Evict, Evicted, LatchPage, Left,
        ListQuery, Page, Renew, Renewed, Reply, Request, ResourceView, Store, StoreTime, Topic, Verdict,
        Watch,
    },
    support::background::Background,
};
use tokio::sync::futures::Notified;

use crate::{
    Attempt, Ended,
    contest::{Contest, LastAnswer, Outgoing, Renewal},
    quorum::{Departure, Judged, LeftOver, Quorum, UnderWay, as_grant},
};

/// The abilities of a quorum. The longest lease is that of its URL.
pub static CAPABILITY: Capability = {
    let mut can = Capability::new("quorum");
    can.between_processes = true;
    can.pushes = true;
    can.min_lease = Duration::from_millis(200);
    can.max_lease = Duration::from_secs(60);
    can.detachable = true;
    can.counts_permits = false;
    can.group_limit = 256;
    can.requests_at_once = 3;
    can.client_crash = Survives::Fully;
    can.restart = Survives::Fully;
    can.data_loss = Survives::Fully;
    can.clock_jump = Survives::WithFence;
    can
};

/// One keeper's connections to the members of a quorum.
#[derive(Debug)]
pub(crate) struct QuorumStore {
    pub(crate) url: Arc<str>,
    pub(crate) id: String,
    pub(crate) quorum: Arc<Quorum>,
    pub(crate) left_over: Arc<LeftOver>,
    /// Connects members, and has them vote.
    pub(crate) _steward: Background,
}

/// One entry of a group, with the contest that it waits for.
enum Entry {
    Claim(Arc<Contest>),
    UsedUp,
    Leave(Arc<Contest>),
}

impl Entry {
    /// Returns the answer for an entry that failed while others of its group did not.
    fn failed(&self, error: StoreError) -> Answer {
        match self {
            // A waiter asks again. A try is over, and has been given up.
            Self::Claim(contest) if contest.waits() && error.is_passing() => {
                Answer::Claim(Verdict::NotNow(error))
            }
            Self::Claim(_) | Self::UsedUp => Answer::Claim(Verdict::Refused(error.perhaps_applied())),
            Self::Leave(_) => Answer::Leave(Left::NotNow),
        }
    }
}

/// Whether nothing depends on the answers of members that are still under way.
fn is_settled(answer: &Answer) -> bool {
    matches!(answer, Answer::Claim(Verdict::Granted(_)) | Answer::Leave(Left::Released | Left::LeftQueue))
}

impl QuorumStore {
    fn now(&self) -> StoreTime {
        StoreTime(self.quorum.clock.now().0 / 1000)
    }

    async fn apply_group(&self, group: &[Request]) -> Result<Answers<Answer>, StoreError> {
        let (quorum, asked) = (&self.quorum, self.quorum.clock.now());
        if group.is_empty() {
            let there = quorum.links.iter().filter(|link| link.store().is_some()).count();
            if there < quorum.majority.needed() {
                return Err(quorum.unreachable().not_applied());
            }
        }
        let (mut outgoing, at_least) = (Vec::new(), quorum.at_least(asked));
        let mut entries = Vec::with_capacity(group.len());
        for request in group {
            entries.push(match request {
                Request::Claim(claim) => match quorum.claim(claim, at_least, asked) {
                    Some((contest, asks)) => {
                        outgoing.extend(asks);
                        Entry::Claim(contest)
                    }
                    None => Entry::UsedUp,
                },
                Request::Leave(leave) => {
                    let (contest, asks) = quorum.leave(leave);
                    outgoing.extend(asks);
                    Entry::Leave(contest)
                }
            });
        }
        let mut under_way = UnderWay::begin(quorum, self.left_over.take(), quorum.exchanges(outgoing));
        let answers = under_way.poll_until(self.answers(&entries, asked)).await?;
        if answers.each.iter().all(is_settled) {
            self.left_over.put(under_way);
        }
        Ok(answers)
    }

    async fn answers(&self, entries: &[Entry], asked: BootTime) -> Result<Answers<Answer>, StoreError> {
        let mut each = Vec::with_capacity(entries.len());
        let mut failed = Vec::new();
        for entry in entries {
            each.push(match self.answer(entry, asked).await {
                Ok(answer) => answer,
                Err(error) => {
                    failed.push(error.clone());
                    entry.failed(error)
                }
            });
        }
        match failed.pop() {
            Some(error) if failed.len() + 1 == each.len() => Err(error.perhaps_applied()),
            _ => Ok(Answers { now: self.now(), each }),
        }
    }

    async fn answer(&self, entry: &Entry, asked: BootTime) -> Result<Answer, StoreError> {
        match entry {
            Entry::UsedUp => Ok(Answer::Claim(Verdict::Again)),
            Entry::Claim(contest) => self.verdict(contest, asked).await.map(Answer::Claim),
            Entry::Leave(contest) => {
                let left = self.left(contest, asked).await?;
                self.quorum.has_told(contest.contender);
                Ok(Answer::Leave(left))
            }
        }
    }

    /// Waits until something is heard of a contender, or until this time. The timer belongs to the keeper's runtime:
    /// that of the caller may end.
    async fn heard(&self, contest: &Arc<Contest>, changed: Pin<&mut Notified<'_>>, until: BootTime) {
        let _wait = self.quorum.wake_at(contest, until);
        changed.await;
    }

    async fn verdict(&self, contest: &Arc<Contest>, asked: BootTime) -> Result<Verdict, StoreError> {
        loop {
            let mut changed = std::pin::pin!(contest.changed.notified());
            changed.as_mut().enable();
            match self.quorum.judge(contest, asked) {
                Judged::Verdict(verdict) => {
                    if matches!(verdict, Verdict::Busy { .. }) && !contest.waits() {
                        // It left again. The next try must not find it in the way.
                        drop(self.left(contest, asked).await);
                    }
                    return Ok(verdict);
                }
                Judged::Failed(error) => {
                    if !contest.waits() || !error.is_passing() {
                        // Nobody asks for it again, so the grants of some members are given back here.
                        self.quorum.give_up_failed(contest);
                    }
                    return Err(error);
                }
                Judged::Undecided(until) => {
                    self.heard(contest, changed, until).await;
                }
            }
        }
    }

    /// Waits until the result of a leave is known. Leaves without an answer by then are sent in the background.
    async fn left(&self, contest: &Arc<Contest>, asked: BootTime) -> Result<Left, StoreError> {
        loop {
            let mut changed = std::pin::pin!(contest.changed.notified());
            changed.as_mut().enable();
            match self.quorum.judge_left(contest, asked) {
                Departure::Left(left) => return Ok(left),
                Departure::Failed(error) => return Err(error),
                Departure::Undecided(until) => self.heard(contest, changed, until).await,
            }
        }
    }

    async fn renew_group(&self, leases: &[Renew]) -> Result<Answers<Renewed>, StoreError> {
        let (quorum, asked) = (&self.quorum, self.quorum.clock.now());
        let (mut outgoing, mut refused) = (Vec::new(), None);
        let mut entries = Vec::with_capacity(leases.len());
        for renew in leases {
            let Some(contest) = self.renewed_contest(renew) else {
                entries.push(Err(Renewed::Gone));
                continue;
            };
            entries.push(match self.begin_to_renew(&contest, renew, asked) {
                Ok(asks) => {
                    outgoing.extend(asks);
                    Ok(contest)
                }
                Err(error) => {
                    refused = Some(error);
                    Err(Renewed::Unknown)
                }
            });
        }
        quorum.send(outgoing);
        // One that is not confirmed must not keep the answers of the others until their leases are over: a third of
        // them has passed already.
        let shortest = leases.iter().map(|renew| renew.lease).filter(|lease| !lease.is_zero()).min();
        let until =
            asked.after(shortest.map_or(quorum.answer_limit(), |lease| quorum.answer_limit().min(lease / 2)));
        let mut each = Vec::with_capacity(leases.len());
        for entry in entries {
            each.push(match entry {
                Ok(contest) => self.renewed(&contest, asked, until).await,
                Err(renewed) => renewed,
            });
        }
        if !each.is_empty() && each.iter().all(|renewed| *renewed == Renewed::Unknown) {
            return Err(refused.unwrap_or_else(|| quorum.unconfirmed()));
        }
        Ok(Answers { now: self.now(), each })
    }

    fn begin_to_renew(
        &self,
        contest: &Arc<Contest>,
        renew: &Renew,
        now: BootTime,
    ) -> Result<Vec<Outgoing>, StoreError> {
        let mut state = contest.state();
        if renew.lower_to.is_some() && !state.attempt.share(now) {
            let message =
                "too few members show the number of this lock, so that it cannot be shared; release it";
            return Err(StoreError::new(StoreErrorKind::Conflict, message).not_applied());
        }
        let lease = renew.lease.min(self.quorum.identity.max_lease);
        let next = Renewal { lease, lower_to: renew.lower_to, detach: renew.detach };
        state.renewal = state.renewal.followed_by(next);
        if state.renewal.detach {
            state.attempt.begin_to_level();
        }
        (state.renewed, state.touched) = (now, now);
        let mut asks = state.attempt.renew(now);
        asks.retain(|ask| !self.quorum.is_pointless_at(contest, &state, ask.member));
        Ok(contest.outgoing(&mut state, asks))
    }

    /// The contender whose lease is renewed. A number is named only by a keeper that goes on with the lease of another.
    fn renewed_contest(&self, renew: &Renew) -> Option<Arc<Contest>> {
        let quorum = &self.quorum;
        if renew.at_least == 0 {
            return quorum.contest(renew.contender);
        }
        let renewal = Renewal { lease: renew.lease, lower_to: None, detach: renew.detach };
        let attempt = Attempt::adopt(quorum.majority, renew.at_least);
        let (name, members) = (renew.name.clone(), quorum.links.len());
        let contest = Arc::new(Contest::new(name, renew.contender, None, attempt, renewal, members));
        quorum.remember(contest.clone());
        Some(contest)
    }

    async fn renewed(&self, contest: &Arc<Contest>, asked: BootTime, until: BootTime) -> Renewed {
        loop {
            let mut changed = std::pin::pin!(contest.changed.notified());
            changed.as_mut().enable();
            let now = self.quorum.clock.now();
            if let Some(renewed) = self.judge_renewed(contest, asked, now) {
                return renewed;
            }
            if now >= until {
                return Renewed::Unknown;
            }
            self.heard(contest, changed, until).await;
        }
    }

    /// Returns the result of a renewal, once it is known.
    fn judge_renewed(&self, contest: &Contest, asked: BootTime, now: BootTime) -> Option<Renewed> {
        let mut state = contest.state();
        state.attempt.count(now);
        match state.attempt.ended() {
            Some(Ended::Evicted(reason)) => return Some(Renewed::Evicted(reason.clone())),
            // Nobody said that it is gone: its time is over, which the engine knows by itself.
            Some(Ended::Lost)
                if !state.last_answers.iter().any(|last| matches!(last, Some(LastAnswer::Gone))) =>
            {
                return Some(Renewed::Unknown);
            }
            Some(Ended::Lost | Ended::Left) => return Some(Renewed::Gone),
            None => {}
        }
        let hold = state.attempt.hold(now);
        if let Some(hold) = hold.filter(|_| state.attempt.is_confirmed(now)) {
            return Some(Renewed::Held(as_grant(&hold, asked)));
        }
        // The lease of another process is not there. The members that have not answered cannot change that.
        if contest.claim.is_none() && hold.is_none() && state.attempt.is_refuted(now) {
            return Some(Renewed::Gone);
        }
        state.outstanding().next().is_none().then_some(Renewed::Unknown)
    }
}

impl Store for QuorumStore {
    fn capability(&self) -> &Capability {
        &self.quorum.capability
    }

    fn url(&self) -> &Arc<str> {
        &self.url
    }

    fn id(&self) -> &str {
        &self.id
    }

    fn apply<'a>(&'a self, group: &'a [Request]) -> Reply<'a, Answers<Answer>> {
        Box::pin(self.apply_group(group))
    }

    fn renew<'a>(&'a self, leases: &'a [Renew]) -> Reply<'a, Answers<Renewed>> {
        Box::pin(self.renew_group(leases))
    }

    fn watch<'a>(&'a self, topic: &'a Topic) -> Reply<'a, Option<Watch>> {
        Box::pin(self.quorum.watch(topic))
    }

    fn inspect<'a>(&'a self, name: &'a Name) -> Reply<'a, Option<ResourceView>> {
        Box::pin(self.quorum.inspect(name))
    }

    fn list<'a>(&'a self, query: &'a ListQuery) -> Reply<'a, Page> {
        Box::pin(self.quorum.list(query))
    }

    fn latches<'a>(&'a self, _query: &'a ListQuery) -> Reply<'a, LatchPage> {
        Box::pin(async { Ok(LatchPage { latches: Vec::new(), next: None }) })
    }

    fn evict<'a>(&'a self, order: &'a Evict) -> Reply<'a, Evicted> {
        Box::pin(self.quorum.evict(order))
    }

    fn count<'a>(&'a self, _count: &'a Count) -> Reply<'a, Answers<Counted>> {
        Box::pin(async {
            let message = "a quorum has no latches: members would have to agree when one is reset or deleted; use a store \
                           that has them";
            Err(StoreError::new(StoreErrorKind::Unsupported, message))
        })
    }

    fn fence<'a>(&'a self, admit: &'a Admit) -> Reply<'a, Admitted> {
        Box::pin(self.quorum.fence(admit))
    }

    #[cfg(unix)]
    fn life_line(&self) -> Option<std::os::fd::OwnedFd> {
        let stores = self.quorum.links.iter().filter_map(|link| link.store());
        let lines: Vec<_> = stores.filter_map(|store| store.life_line()).collect();
        crate::life_line::join(&lines)
    }

    fn leave_caller(&self) {
        drop(self.left_over.take());
        for store in self.quorum.links.iter().filter_map(|link| link.store()) {
            store.leave_caller();
        }
    }

    fn still_leaves(&self) -> bool {
        self.quorum.still_leaves()
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {
            drop(self.left_over.take());
            self.quorum.all_left().await;
            for store in self.quorum.links.iter().filter_map(|link| link.store()) {
                drop(tokio::time::timeout(self.quorum.member_limit(), store.close()).await);
            }
        })
    }
}
