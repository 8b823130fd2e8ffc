//! A store and the model side by side: turns the steps of a plan into requests, and compares both answers to them.

mod requests;
mod settling;
mod views;

use std::{
    collections::{BTreeSet, HashMap, HashSet, VecDeque},
    sync::{Arc, Mutex},
    time::Duration,
};

use lockkeeper_core::{
    ContenderId, KeeperId, Name, StoreError, Token, Units,
    model::{Effects, Model, Now},
    store::{
        Admit, Admitted, Answer, Claim, Context, Count, CountAction, Evict, Evicted, Eviction, GrantNotice,
        Leave, Left, Renew, Renewed, Request, Store, StoreTime, Topic, Verdict, Wake, WakeSink, Watch,
    },
    support,
};

use requests::{Acquisition, later};

use super::{
    Subject, Tally,
    compare::{Compared, Leniency, Numbers},
    plan::{EACH, KEEPERS, LATCHES, LatchAction, RESOURCES, Renewal, Step, TimeMode},
};

/// A store and the model, going through the same steps.
pub(super) struct Pair<'a> {
    subject: &'a Subject,
    keepers: Vec<(KeeperId, Arc<dyn Store>)>,
    watches: Vec<Watch>,
    heard: Arc<Mutex<Vec<(Name, GrantNotice)>>>,
    model: Model,
    /// Notices that the model wants sent.
    made: Vec<(Name, GrantNotice)>,
    names: Vec<Name>,
    latches: Vec<Name>,
    fence: Name,
    /// The fence's first token: it keeps the tokens that earlier runs have shown to it.
    fence_base: u64,
    acquisitions: HashMap<usize, Acquisition>,
    /// Contenders that left, and the time until which their late copies are harmless.
    left: HashMap<ContenderId, Option<StoreTime>>,
    sent: VecDeque<(usize, Vec<Request>)>,
    operations: HashMap<usize, Count>,
    numbers: Numbers,
    next_id: u64,
    /// Moments from which on something is different, beside those in the model's resources.
    moments: BTreeSet<StoreTime>,
    /// The time until which the model has been settled.
    settled: StoreTime,
    tolerance: Duration,
    tally: Tally,
}

/// The permits of the last resource.
const PERMITS: u32 = 3;
/// How long a step keeps away from a moment at which something ends, beside the tolerance: longer than
/// a request usually takes.
const CLEARANCE: Duration = Duration::from_millis(100);
/// How many groups may arrive once more.
const REMEMBERED: usize = 12;
/// How long a store that settles by itself may take for it.
const SETTLE_LIMIT: Duration = Duration::from_secs(5);
/// The longest lease of a claim that may be detached, where a session has to last as long.
const DETACHED: Duration = Duration::from_secs(30);

fn store_failed(error: &StoreError) -> String {
    format!("the store failed: {error}")
}

fn at(lease: StoreTime) -> Now {
    // The wall clock stands still: the model's numbers are 1, 2, 3 and so on.
    Now { lease, wall: 0 }
}

impl<'a> Pair<'a> {
    /// Connects some keepers to the store, under names and ids that no other run has.
    pub(super) async fn connect(subject: &'a Subject, seed: u64) -> Result<Self, String> {
        let unique = KeeperId::random();
        let name = |text: String| Name::new(text).expect("short and plain");
        let mut pair = Self {
            subject,
            keepers: Vec::new(),
            watches: Vec::new(),
            heard: Arc::default(),
            model: Model::default(),
            made: Vec::new(),
            names: (0..RESOURCES).map(|nth| name(format!("refinement/{unique}/{nth}"))).collect(),
            latches: (0..LATCHES).map(|nth| name(format!("refinement/{unique}/latch-{nth}"))).collect(),
            // A fence cannot be removed, so there is one for each seed and not for each run.
            fence: name(format!("refinement/fence-{seed}")),
            fence_base: 1,
            acquisitions: HashMap::new(),
            left: HashMap::new(),
            sent: VecDeque::new(),
            operations: HashMap::new(),
            numbers: Numbers::default(),
            next_id: 0,
            moments: BTreeSet::new(),
            settled: StoreTime(0),
            tolerance: subject.tolerance,
            tally: Tally::default(),
        };
        for _ in 0..KEEPERS {
            pair.connect_keeper().await.map_err(|error| store_failed(&error))?;
        }
        pair.learn_fence().await?;
        Ok(pair)
    }

    async fn connect_keeper(&mut self) -> Result<(), StoreError> {
        let (keeper, heard) = (KeeperId::random(), self.heard.clone());
        let context = Context {
            keeper,
            wakes: WakeSink::new(move |wake| {
                if let Wake::Granted(name, notice) = wake {
                    support::lock(&heard).push((name, notice));
                }
            }),
            background: tokio::runtime::Handle::current(),
            clock: self.subject.clock.clone(),
            request_limit: Duration::from_secs(10),
        };
        let store = (self.subject.connect)()?.connect(context).await?;
        for name in &self.names {
            self.watches.extend(store.watch(&Topic::Grants(name.clone())).await?);
        }
        self.keepers.push((keeper, store));
        Ok(())
    }

    /// Learns the highest token that earlier runs of this seed have shown to the fence.
    async fn learn_fence(&mut self) -> Result<(), String> {
        let least = Token::new(1, 0);
        let admit = Admit { name: self.fence.clone(), token: least, floor: least };
        let highest = match self.store().fence(&admit).await.map_err(|error| store_failed(&error))? {
            Admitted::Yes => least,
            Admitted::Stale { highest } => highest,
        };
        self.fence_base = highest.number();
        self.model.fence(&Admit { token: highest, floor: highest, ..admit });
        Ok(())
    }

    fn store(&self) -> &Arc<dyn Store> {
        &self.keepers[0].1
    }

    /// Returns the counts of comparisons.
    pub(super) fn tally(&self) -> Tally {
        self.tally
    }

    /// The store's time.
    async fn now(&self) -> Result<StoreTime, String> {
        self.store().apply(&[]).await.map(|answers| answers.now).map_err(|error| store_failed(&error))
    }

    fn leniency(&self, more: Duration) -> Leniency {
        Leniency {
            tolerance: self.tolerance + more,
            in_parts: self.in_parts(),
            by_itself: self.subject.by_itself,
        }
    }

    /// Whether the store vouches for a part of a lease at a time.
    fn in_parts(&self) -> bool {
        !self.store().capability().lease_per_claim
    }

    /// The lease that can be asked for.
    fn lease(&self, lease: Duration, detachable: bool) -> Duration {
        let can = self.store().capability();
        let lease = if detachable && self.in_parts() { lease.min(DETACHED) } else { lease };
        lease.clamp(can.min_lease, can.max_lease)
    }

    /// Makes one step in both, and compares answers, notices and views.
    pub(super) async fn step(&mut self, step: &Step) -> Result<(), String> {
        self.keep_clear().await?;
        if self.subject.by_itself {
            self.come_to_rest().await?;
        }
        match step {
            Step::Group { keeper, entries } => {
                let now = self.now().await?;
                let group = self.group(*keeper, entries, now);
                self.sent.push_front((*keeper, group.clone()));
                self.sent.truncate(REMEMBERED);
                self.apply(*keeper, &group).await?;
            }
            Step::Repeat { ago } => {
                let Some((keeper, group)) = self.sent.get(*ago).cloned() else { return Ok(()) };
                let group: Vec<_> =
                    group.into_iter().filter(|request| self.may_come_again(request)).collect();
                self.apply(keeper, &group).await?;
            }
            Step::Renew { keeper, renewals } => self.renew(*keeper, renewals).await?,
            Step::Evict { who, now, wrong, reason } => self.evict(*who, *now, *wrong, *reason).await?,
            Step::Count { latch, operation, again, action, late } => {
                self.count(*latch, *operation, *again, *action, *late).await?;
            }
            Step::Fence { number, below } => self.fence(*number, *below).await?,
            Step::List { limit } => self.list(*limit).await?,
            Step::Pass(length) => (self.subject.pass)(*length).await,
            Step::PassUntilNextEnd => {
                let now = self.now().await?;
                // An end long after the run is not waited for.
                let most = Duration::from_secs(if self.subject.time_mode == TimeMode::Real { 4 } else { 60 });
                if let Some(end) = self.next_end(now).filter(|end| end.since(now) <= most) {
                    (self.subject.pass)(end.since(now)).await;
                }
            }
        }
        self.keep_clear().await?;
        if self.subject.by_itself {
            self.come_to_rest().await?;
            return self.compare_notices();
        }
        self.compare_notices()?;
        self.compare_views().await
    }

    async fn apply(&mut self, keeper: usize, group: &[Request]) -> Compared {
        let answers = self.keepers[keeper].1.apply(group).await.map_err(|error| store_failed(&error))?;
        if answers.each.len() != group.len() {
            return Err(format!("{} requests, {} answers", group.len(), answers.each.len()));
        }
        for (request, answer) in group.iter().zip(&answers.each) {
            let mut effects = Effects::default();
            let expected = self.model.apply(at(answers.now), request, &mut effects);
            self.note(request.name(), effects);
            let leniency = self.leniency(Duration::ZERO);
            let same = self.numbers.answers(request.name(), &expected, answer, leniency);
            same.map_err(|what| format!("{what}\nto {request:?}\nat {:?}", answers.now))?;
            match answer {
                Answer::Claim(Verdict::Granted(_)) => self.tally.granted += 1,
                Answer::Claim(Verdict::Busy { .. }) => self.tally.busy += 1,
                Answer::Claim(Verdict::Stale) => self.tally.stale += 1,
                Answer::Claim(Verdict::Mismatch { .. }) => self.tally.mismatch += 1,
                Answer::Leave(Left::Released | Left::LeftQueue) => self.tally.left += 1,
                _ => {}
            }
        }
        Ok(())
    }

    fn note(&mut self, name: &Name, effects: Effects) {
        self.made.extend(effects.grants.into_iter().map(|grant| (name.clone(), grant)));
    }

    async fn renew(&mut self, keeper: usize, entries: &[Renewal]) -> Compared {
        let mut seen = HashSet::new();
        let entries = entries.iter().filter(|entry| seen.insert(entry.who));
        let leases: Vec<Renew> = entries
            .filter_map(|entry| {
                let claim = &self.acquisitions.get(&entry.who)?.claim;
                let lease = match self.lease(entry.lease, claim.attachment.may_outlive_process()) {
                    _ if entry.lease.is_zero() => entry.lease,
                    // A session stays as long as it was at first.
                    lease if self.in_parts() => lease.max(claim.lease),
                    lease => lease,
                };
                Some(Renew {
                    name: claim.name.clone(),
                    contender: claim.contender,
                    lease,
                    lower_to: entry.lower.then_some(Units::ONE),
                    detach: entry.detach && claim.attachment.may_outlive_process(),
                    at_least: 0,
                })
            })
            .collect();
        let answers = self.keepers[keeper].1.renew(&leases).await.map_err(|error| store_failed(&error))?;
        if answers.each.len() != leases.len() {
            return Err(format!("{} renewals, {} answers", leases.len(), answers.each.len()));
        }
        for (renew, answer) in leases.iter().zip(&answers.each) {
            let mut effects = Effects::default();
            let expected = self.model.renew(at(answers.now), renew, &mut effects);
            self.note(&renew.name, effects);
            let leniency = self.leniency(Duration::ZERO);
            self.numbers
                .renewals(&renew.name, &expected, answer, leniency)
                .map_err(|what| format!("{what}\nto {renew:?}\nat {:?}", answers.now))?;
            match answer {
                Renewed::Held(_) => self.tally.held += 1,
                Renewed::Gone => self.tally.gone += 1,
                Renewed::Evicted(_) => self.tally.refused_renewals += 1,
                Renewed::Unknown => {}
            }
        }
        Ok(())
    }

    async fn evict(&mut self, who: usize, now: bool, wrong: bool, reason: bool) -> Compared {
        let how = if now { Eviction::Immediate } else { Eviction::Graceful };
        let Some(acquisition) = self.acquisitions.get(&who) else { return Ok(()) };
        let (name, contender) = (acquisition.claim.name.clone(), acquisition.claim.contender);
        let holders = self.model.resource(&name).into_iter().flat_map(|resource| &resource.holders);
        let number = holders.into_iter().find(|h| h.contender == contender).map_or(1, |h| h.number);
        // A contender that does not hold has no number; any will do.
        let in_store = self.numbers.of_store(&name, number).unwrap_or(1);
        let wrong = u64::from(wrong);
        let order = Evict {
            name: name.clone(),
            contender,
            number: in_store + wrong,
            how,
            reason: reason.then(|| "a reason, with ü and 'quotes'".into()),
        };
        let before = self.now().await?;
        let answer = self.store().evict(&order).await.map_err(|error| store_failed(&error))?;
        let took = self.now().await?.since(before);
        let mut effects = Effects::default();
        let in_model = Evict { number: number + wrong, ..order.clone() };
        let expected = self.model.evict(at(before), &in_model, &mut effects);
        if !effects.grants.is_empty() {
            // The answer has no time, so nobody knows when exactly these leases begin.
            self.tolerance += took;
        }
        self.note(&name, effects);
        self.tally.evicted += u64::from(answer == Evicted::Done);
        if expected == answer {
            return Ok(());
        }
        Err(format!("eviction: expected {expected:?}, got {answer:?}\nto {order:?}\nat {before:?}"))
    }

    async fn count(
        &mut self,
        latch: usize,
        operation: usize,
        again: bool,
        action: LatchAction,
        late: bool,
    ) -> Compared {
        let now = self.now().await?;
        let known = self.operations.get(&operation).filter(|_| again).cloned();
        let count = known.unwrap_or_else(|| {
            self.next_id += 1;
            Count {
                name: self.latches[latch].clone(),
                op: ContenderId { keeper: self.keepers[0].0, seq: self.next_id },
                not_after: later(now, if late { -1 } else { 5_000 }),
                action: match action {
                    LatchAction::Create(count) => CountAction::Create(count),
                    LatchAction::Down(by) => CountAction::Down(by),
                    LatchAction::Reset => CountAction::Reset,
                    LatchAction::Delete => CountAction::Delete,
                    LatchAction::Read => CountAction::Read,
                },
            }
        });
        self.moments.insert(count.not_after);
        self.operations.insert(operation, count.clone());
        let answers = self.store().count(&count).await.map_err(|error| store_failed(&error))?;
        let expected = self.model.count(at(answers.now), &count);
        self.tally.counted += 1;
        let [answer] = &answers.each[..] else {
            return Err(format!("one operation, {} answers", answers.each.len()));
        };
        let same = self.numbers.counts(&count.name, &expected, answer);
        same.map_err(|what| format!("{what}\nto {count:?}\nat {:?}", answers.now))
    }

    async fn fence(&mut self, number: u64, below: u64) -> Compared {
        let number = self.fence_base + number;
        let admit = Admit {
            name: self.fence.clone(),
            token: Token::new(number, 0),
            floor: Token::new(number.saturating_sub(below).max(1), 0),
        };
        let answer = self.store().fence(&admit).await.map_err(|error| store_failed(&error))?;
        let expected = self.model.fence(&admit);
        self.tally.fenced += 1;
        if expected == answer {
            return Ok(());
        }
        Err(format!("fence: expected {expected:?}, got {answer:?}\nto {admit:?}"))
    }

    /// Takes everything away again, as far as that is possible.
    pub(super) async fn clean_up(&mut self) {
        for (who, acquisition) in self.acquisitions.drain() {
            let Claim { name, contender, .. } = acquisition.claim;
            let leave = Leave { name, contender, tombstone_until: None, hold_at_least: Duration::ZERO };
            drop(self.keepers[who / EACH].1.apply(&[Request::Leave(leave)]).await);
        }
        let now = self.now().await.unwrap_or_default();
        for name in self.latches.clone() {
            self.next_id += 1;
            let op = ContenderId { keeper: self.keepers[0].0, seq: self.next_id };
            let count = Count { name, op, not_after: later(now, 5_000), action: CountAction::Delete };
            drop(self.store().count(&count).await);
        }
        self.watches.clear();
        for (_, store) in &self.keepers {
            store.close().await;
        }
    }
}
