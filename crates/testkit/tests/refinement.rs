//! Layer 3 for the memory store: it and the model go through the same random steps, in virtual time;
//! and planted bugs and slips, each of which must be told apart. `LOCKKEEPER_SEEDS` sets how many seeds are run,
//! `LOCKKEEPER_SEED` runs one again.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use lockkeeper_core::{
    Capability, Name,
    memory::MemoryServer,
    store::{
        Admit, Admitted, Answer, Answers, BoxFuture, Connector, Count, Counted, Evict, Evicted, ListQuery,
        Page, Renew, Renewed, Reply, Request, ResourceView, Store, Topic, Watch,
    },
    testing::VirtualClock,
};
use lockkeeper_testkit::{
    broken::{Bug, broken},
    dice::Dice,
    faulty::{Faults, Line, faulty},
    refinement::{Failure, Subject, Tally, check},
};

const STEPS: usize = 200;

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().map(|text| text.parse().expect("a number"))
}

/// Runs one seed in virtual time on a memory store, wrapped by `wrap`, with this tolerance.
fn run(
    seed: u64,
    tolerance: Duration,
    wrap: impl Fn(Connector) -> Connector + Send + Sync + 'static,
) -> Result<Tally, Box<Failure>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    runtime.expect("a runtime without I/O").block_on(async {
        let clock = VirtualClock::new();
        let server = MemoryServer::new(clock.clock());
        let subject = Subject::in_virtual_time(&clock, move || Ok(wrap(server.connector("memory:"))));
        check(&subject.tolerance(tolerance), seed, STEPS).await
    })
}

/// The tolerance for a slow line, which is not exact to the moment.
const SLOW: Duration = Duration::from_millis(1);

/// Requests take a while.
fn slow(seed: u64) -> impl Fn(Connector) -> Connector + Send + Sync + 'static {
    let line = Line::new(Dice::new(seed), Faults { usual: 5, ..Faults::NONE });
    move |connector| faulty(connector, line.clone())
}

#[test]
fn the_memory_store_is_the_model() {
    let seeds = match number("LOCKKEEPER_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("LOCKKEEPER_SEEDS").unwrap_or(300),
    };
    let mut sum = Tally::default();
    for seed in seeds.clone() {
        sum += run(seed, Duration::ZERO, |connector| connector).unwrap_or_else(|failure| panic!("{failure}"));
    }
    println!("{} seeds of {STEPS} steps: {sum:?}", seeds.clone().count());
    let Tally { granted, busy, stale, mismatch, left, held, gone, refused_renewals, .. } = sum;
    let Tally { evicted, counted, fenced, notices, .. } = sum;
    let all = [
        granted,
        busy,
        stale,
        mismatch,
        left,
        held,
        gone,
        refused_renewals,
        evicted,
        counted,
        fenced,
        notices,
    ];
    let enough = seeds.count() as u64 / 10;
    assert!(all.iter().all(|count| *count >= enough), "too little was compared to prove anything: {sum:?}");
}

/// A store that takes its time is no worse: what is compared does not depend on how fast it is.
#[test]
fn a_slow_store_is_no_worse() {
    for seed in 0..30 {
        run(seed, SLOW, slow(seed)).unwrap_or_else(|failure| panic!("{failure}"));
    }
}

#[test]
fn every_planted_bug_is_told_apart() {
    for bug in Bug::ALL {
        // A wrong deadline shows only when an answer takes a while.
        let failure = (0..20).find_map(|seed| match bug {
            Bug::DeadlineAfterReply => {
                let slow = slow(seed);
                run(seed, SLOW, move |connector| broken(slow(connector), bug)).err()
            }
            _ => run(seed, Duration::ZERO, move |connector| broken(connector, bug)).err(),
        });
        let failure = failure.unwrap_or_else(|| panic!("{bug:?} went unseen in 20 seeds"));
        println!("{bug:?}: {failure}\n");
    }
}

/// What a store may get wrong without a lock being held twice.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Slip {
    CountsRepeatedOperations,
    ForgetsTheFence,
    EvictsWhoeverHolds,
    DoesNotEvict,
    ListsOnePageOnly,
    IgnoresDowngrades,
    IgnoresDetaching,
    IgnoresTheMinimumHold,
    SharesAStamp,
    AnswersTheFullLease,
}

const SLIPS: [Slip; 10] = [
    Slip::CountsRepeatedOperations,
    Slip::ForgetsTheFence,
    Slip::EvictsWhoeverHolds,
    Slip::DoesNotEvict,
    Slip::ListsOnePageOnly,
    Slip::IgnoresDowngrades,
    Slip::IgnoresDetaching,
    Slip::IgnoresTheMinimumHold,
    Slip::SharesAStamp,
    Slip::AnswersTheFullLease,
];

#[test]
fn every_slip_is_told_apart() {
    for slip in SLIPS {
        let failure = (0..50).find_map(|seed| {
            run(seed, Duration::ZERO, move |connector| {
                Connector::new(move |context| async move {
                    let inner = connector.connect(context).await?;
                    Ok(Arc::new(Slipping { inner, slip, operations: AtomicU64::new(1 << 40) })
                        as Arc<dyn Store>)
                })
            })
            .err()
        });
        let failure = failure.unwrap_or_else(|| panic!("{slip:?} went unseen in 50 seeds"));
        println!("{slip:?}: {failure}\n");
    }
}

#[derive(Debug)]
struct Slipping {
    inner: Arc<dyn Store>,
    slip: Slip,
    operations: AtomicU64,
}

impl Slipping {
    fn spoil(&self, request: &Request) -> Request {
        let mut request = request.clone();
        match (self.slip, &mut request) {
            (Slip::SharesAStamp, Request::Claim(claim)) => claim.stamp = 7,
            (Slip::IgnoresTheMinimumHold, Request::Leave(leave)) => leave.hold_at_least = Duration::ZERO,
            _ => {}
        }
        request
    }
}

impl Store for Slipping {
    fn capability(&self) -> &Capability {
        self.inner.capability()
    }

    fn url(&self) -> &Arc<str> {
        self.inner.url()
    }

    fn id(&self) -> &str {
        self.inner.id()
    }

    fn server_of(&self, name: &Name) -> usize {
        self.inner.server_of(name)
    }

    fn apply<'a>(&'a self, group: &'a [Request]) -> Reply<'a, Answers<Answer>> {
        Box::pin(async move {
            let spoiled: Vec<_> = group.iter().map(|request| self.spoil(request)).collect();
            self.inner.apply(&spoiled).await
        })
    }

    fn renew<'a>(&'a self, leases: &'a [Renew]) -> Reply<'a, Answers<Renewed>> {
        Box::pin(async move {
            let mut spoiled = leases.to_vec();
            for renew in &mut spoiled {
                match self.slip {
                    Slip::IgnoresDowngrades => renew.lower_to = None,
                    Slip::IgnoresDetaching => renew.detach = false,
                    _ => {}
                }
            }
            let mut answers = self.inner.renew(&spoiled).await?;
            for (renew, answer) in leases.iter().zip(&mut answers.each) {
                if let (Slip::AnswersTheFullLease, Renewed::Held { remaining }) = (self.slip, answer) {
                    *remaining = renew.lease;
                }
            }
            Ok(answers)
        })
    }

    fn watch<'a>(&'a self, topic: &'a Topic) -> Reply<'a, Option<Watch>> {
        self.inner.watch(topic)
    }

    fn inspect<'a>(&'a self, name: &'a Name) -> Reply<'a, Option<ResourceView>> {
        self.inner.inspect(name)
    }

    fn list<'a>(&'a self, query: &'a ListQuery) -> Reply<'a, Page> {
        Box::pin(async move {
            let mut page = self.inner.list(query).await?;
            if self.slip == Slip::ListsOnePageOnly {
                page.next = None;
            }
            Ok(page)
        })
    }

    fn evict<'a>(&'a self, order: &'a Evict) -> Reply<'a, Evicted> {
        Box::pin(async move {
            let mut order = order.clone();
            match self.slip {
                Slip::DoesNotEvict => return Ok(Evicted::Done),
                Slip::EvictsWhoeverHolds => {
                    let view = self.inner.inspect(&order.name).await?;
                    if let Some(holder) = view.as_ref().and_then(|view| view.holders.first()) {
                        (order.contender, order.number) = (holder.contender, holder.token.number());
                    }
                }
                _ => {}
            }
            self.inner.evict(&order).await
        })
    }

    fn count<'a>(&'a self, count: &'a Count) -> Reply<'a, Answers<Counted>> {
        Box::pin(async move {
            let mut count = count.clone();
            if self.slip == Slip::CountsRepeatedOperations {
                count.op.seq = self.operations.fetch_add(1, Ordering::Relaxed);
            }
            self.inner.count(&count).await
        })
    }

    fn fence<'a>(&'a self, admit: &'a Admit) -> Reply<'a, Admitted> {
        match self.slip {
            Slip::ForgetsTheFence => Box::pin(std::future::ready(Ok(Admitted::Yes))),
            _ => self.inner.fence(admit),
        }
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        self.inner.close()
    }
}
