//! The store of all worlds: the real model of `lockkeeper_core`, on a clock that ticks, with the parts that a checker
//! needs beside it (equality, a hash, and a memory of the numbers given).

use std::{
    collections::BTreeMap,
    hash::{Hash, Hasher},
    sync::{Arc, LazyLock},
    time::Duration,
};

use lockkeeper_core::{
    ContenderId, GrantNumber, KeeperId, Name,
    clock::BootTime,
    model::{Effects, HighWater, Holder, Model, Now, Resource},
    store::{Answer, Claim, GrantNotice, Leave, Left, Renew, Renewed, Request, StoreTime, Verdict},
    testing,
};

static NAME: LazyLock<Name> = LazyLock::new(|| Name::new("lock").expect("a good name"));
static CLAIM: LazyLock<Claim> = LazyLock::new(|| testing::claim(&NAME, contender(0, 0)));

/// The time of the client's clock when the store's stood at zero: the two share no origin.
const OFFSET: Duration = Duration::from_secs(1_000_000);

/// The time of a world: how many ticks have passed, and how long one is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Time {
    pub(crate) ticks: u32,
    pub(crate) tick: Duration,
}

impl Time {
    pub(crate) fn zero(tick: Duration) -> Self {
        Self { ticks: 0, tick }
    }

    /// The time on the client's clock.
    pub(crate) fn boot(self) -> BootTime {
        BootTime(0).after(OFFSET).after(self.tick * self.ticks)
    }

    /// The time on the store's clock.
    pub(crate) fn store(self) -> StoreTime {
        StoreTime(0).after(self.tick * self.ticks)
    }

    /// The wall clock stands still: numbers have to grow without it.
    fn now(self) -> Now {
        Now { lease: self.store(), wall: 0 }
    }
}

/// The moment at which the client's clock shows the time that the store's clock calls `moment`.
pub(crate) fn on_the_clients_clock(moment: StoreTime) -> BootTime {
    BootTime(0).after(OFFSET).after(moment.since(StoreTime(0)))
}

/// The contender number `seq` of keeper `keeper`.
pub(crate) fn contender(keeper: u8, seq: u64) -> ContenderId {
    ContenderId { keeper: KeeperId::from_u128(u128::from(keeper)), seq }
}

/// A claim for the whole resource, to be filled in.
pub(crate) fn claim(contender: ContenderId, lease: Duration, sent: Time) -> Claim {
    Claim { contender, lease, stamp: sent.boot().0, ..CLAIM.clone() }
}

/// One resource of a real model, and a memory of its numbers. Shared by all states that have not touched it.
#[derive(Clone, PartialEq, Hash, Debug)]
pub(crate) struct Store(Arc<Kept>);

#[derive(Clone, Debug)]
struct Kept {
    model: Model,
    /// The tombstones of contenders that left, as the model keeps them: it does not show them.
    marks: BTreeMap<ContenderId, StoreTime>,
    /// The largest number given, and whether a later one was not larger.
    highest: GrantNumber,
    fell: bool,
}

impl Store {
    pub(crate) fn new() -> Self {
        Self(Arc::new(Kept { model: Model::default(), marks: BTreeMap::new(), highest: 0, fell: false }))
    }

    pub(crate) fn resource(&self) -> Option<&Resource> {
        self.0.resource()
    }

    /// Everybody who has a hold that has not ended.
    pub(crate) fn holders(&self, now: Time) -> impl Iterator<Item = &Holder> {
        let holders = self.resource().into_iter().flat_map(|resource| &resource.holders);
        holders.filter(move |holder| holder.expires > now.store())
    }

    /// Everybody who has a hold or a position in the queue, ended or not.
    pub(crate) fn everybody(&self) -> impl Iterator<Item = ContenderId> {
        self.resource().into_iter().flat_map(|resource| {
            let holders = resource.holders.iter().map(|holder| holder.contender);
            holders.chain(resource.queue.iter().map(|waiter| waiter.contender))
        })
    }

    /// Whether some grant had a number that was not above all before it.
    pub(crate) fn numbers_fell(&self) -> bool {
        self.0.fell
    }

    /// Marks whose time has passed make no difference any more, so they need not tell states apart.
    pub(crate) fn forget_old_marks(&mut self, now: Time) {
        if self.0.marks.values().any(|until| *until < now.store()) {
            Arc::make_mut(&mut self.0).marks.retain(|_, until| *until >= now.store());
        }
    }

    /// A mistake: the next number is the first one again.
    pub(crate) fn forget_numbers(&mut self) {
        Arc::make_mut(&mut self.0).model.high_water = HighWater::default();
    }

    pub(crate) fn claim(&mut self, now: Time, claim: Claim) -> (Verdict, Vec<GrantNotice>) {
        let (answer, grants) =
            self.step(|model, effects| model.apply(now.now(), &Request::Claim(claim), effects));
        let Answer::Claim(verdict) = answer else { unreachable!("a claim was asked") };
        (verdict, grants)
    }

    pub(crate) fn leave(
        &mut self,
        now: Time,
        contender: ContenderId,
        tombstone_until: Option<StoreTime>,
    ) -> (Left, Vec<GrantNotice>) {
        if let Some(until) = tombstone_until {
            let mark = Arc::make_mut(&mut self.0).marks.entry(contender).or_insert(until);
            *mark = until.max(*mark);
        }
        let leave = Leave { name: NAME.clone(), contender, tombstone_until, hold_at_least: Duration::ZERO };
        let (answer, grants) =
            self.step(|model, effects| model.apply(now.now(), &Request::Leave(leave), effects));
        let Answer::Leave(left) = answer else { unreachable!("a leave was asked") };
        (left, grants)
    }

    pub(crate) fn renew(
        &mut self,
        now: Time,
        contender: ContenderId,
        lease: Duration,
    ) -> (Renewed, Vec<GrantNotice>) {
        let renew =
            Renew { name: NAME.clone(), contender, lease, lower_to: None, detach: false, at_least: 0 };
        self.step(|model, effects| model.renew(now.now(), &renew, effects))
    }

    fn step<T>(&mut self, act: impl FnOnce(&mut Model, &mut Effects) -> T) -> (T, Vec<GrantNotice>) {
        let numbers = |model: &Model| -> Vec<GrantNumber> {
            let holders = model.resource(&NAME).map(|resource| &resource.holders);
            holders.into_iter().flatten().map(|holder| holder.number).collect()
        };
        let kept = Arc::make_mut(&mut self.0);
        let before = numbers(&kept.model);
        let mut effects = Effects::default();
        let answer = act(&mut kept.model, &mut effects);
        for number in numbers(&kept.model).into_iter().filter(|number| !before.contains(number)) {
            kept.fell |= number <= kept.highest;
            kept.highest = kept.highest.max(number);
        }
        (answer, effects.grants)
    }
}

impl Kept {
    fn resource(&self) -> Option<&Resource> {
        self.model.resource(&NAME)
    }
}

/// Two stores are the same if nothing that they will ever do differs.
impl PartialEq for Kept {
    fn eq(&self, other: &Self) -> bool {
        self.resource() == other.resource()
            && self.model.high_water == other.model.high_water
            && (&self.marks, self.highest, self.fell) == (&other.marks, other.highest, other.fell)
    }
}

impl Hash for Kept {
    fn hash<H: Hasher>(&self, state: &mut H) {
        for holder in self.resource().into_iter().flat_map(|resource| &resource.holders) {
            let Holder { contender, number, granted, expires, confirmed, .. } = holder;
            (contender, number, granted, expires, confirmed).hash(state);
        }
        for waiter in self.resource().into_iter().flat_map(|resource| &resource.queue) {
            (waiter.contender, waiter.stamp, waiter.asked).hash(state);
        }
        (&self.marks, self.model.high_water.0, self.highest, self.fell).hash(state);
    }
}
