//! Checks that somebody is served while any two of five members are in trouble, by seed, in virtual time. Six clients
//! lock all the while. `LOCKKEEPER_SEEDS` sets how many worlds are run, `LOCKKEEPER_SEED` the first one, and
//! `LOCKKEEPER_SPAN` how many seconds each lasts. Ids and pauses are drawn by chance, so a seed is not the same run
//! twice.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use lockkeeper_core::{
    AcquireError, Guard, Keeper, KeeperId,
    store::{Membership, Store},
    testing::{Fate, FateSource, Network},
};
use tokio::{
    task::JoinSet,
    time::{Instant, sleep, timeout},
};

use crate::{
    chance::Dice,
    world::{self, Mood, World, millis, secs},
};

/// How soon a section is to end.
const WINDOW: Duration = secs(2);
const CLIENTS: u128 = 6;
const TASKS: u64 = 12;
const NAMES: u64 = 16;

/// The way to a member and back, and the time until which nothing passes it.
#[derive(Debug)]
struct Way {
    held_until: Mutex<Instant>,
    dice: Dice,
}

impl Way {
    fn span(&self) -> Duration {
        let held = self.held_until.lock().expect("not poisoned").saturating_duration_since(Instant::now());
        held + Duration::from_micros(200 + self.dice.below(1000))
    }
}

impl FateSource for Way {
    fn request(&self) -> Fate {
        Fate { before: self.span(), after: Duration::from_micros(200 + self.dice.below(1000)), ..Fate::GOOD }
    }

    fn wake(&self) -> Vec<Duration> {
        vec![self.span()]
    }
}

/// The troubles that may befall a member for a while.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Trouble {
    /// It starts again, with its data.
    Killed,
    /// It starts again, without its data.
    Emptied,
    /// It is not reached.
    CutOff,
    /// Requests to it arrive when the trouble ends.
    HeldBack,
    /// It answers, and all its rows are locked.
    Locked,
    /// It answers, and refuses all claims for now.
    Refusing,
}

const TROUBLES: [Trouble; 6] = [
    Trouble::Killed,
    Trouble::Emptied,
    Trouble::CutOff,
    Trouble::HeldBack,
    Trouble::Locked,
    Trouble::Refusing,
];

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Well,
    In(Trouble, Instant),
    /// The trouble is over, and it has not been seen to vote since.
    After(Trouble),
}

struct Members {
    world: World,
    ways: Vec<Arc<Way>>,
    stores: Vec<Arc<dyn Store>>,
    states: Vec<State>,
}

impl Members {
    fn begin(&mut self, member: usize, trouble: Trouble, until: Instant) {
        match trouble {
            Trouble::Killed | Trouble::Emptied | Trouble::CutOff => self.world.moods[member].go_down(true),
            Trouble::HeldBack => *self.ways[member].held_until.lock().expect("not poisoned") = until,
            Trouble::Locked => self.be(member, Some(Mood::NotNow)),
            Trouble::Refusing => self.be(member, Some(Mood::Fails)),
        }
        self.states[member] = State::In(trouble, until);
    }

    fn be(&self, member: usize, mood: Option<Mood>) {
        (0..NAMES).for_each(|number| self.world.moods[member].set(&format!("load/{number}"), mood));
    }

    async fn look(&mut self) {
        for member in 0..5 {
            match self.states[member] {
                State::In(trouble, until) if Instant::now() >= until => self.end(member, trouble),
                State::After(_) if self.votes(member).await => self.states[member] = State::Well,
                _ => {}
            }
        }
    }

    fn end(&mut self, member: usize, trouble: Trouble) {
        match trouble {
            Trouble::Killed => self.world.moods[member].start_again(),
            Trouble::Emptied => self.world.servers[member].lose_data(),
            Trouble::Locked | Trouble::Refusing => self.be(member, None),
            Trouble::CutOff | Trouble::HeldBack => {}
        }
        self.world.moods[member].go_down(false);
        self.states[member] = State::After(trouble);
    }

    /// Whether its record says that it votes, in the incarnation that it is in.
    async fn votes(&self, member: usize) -> bool {
        let there = self.stores[member].member().expect("a member");
        let Membership { record, incarnation } = there.state().await.expect("answered").membership;
        let voter = record.as_deref().and_then(|record| record.split(' ').next_back());
        voter.is_some_and(|voter| voter.starts_with('+') && voter.contains(&*incarnation))
    }

    fn strike(&mut self, dice: &Dice) {
        let trouble = TROUBLES[dice.below(TROUBLES.len() as u64) as usize];
        let loses =
            |state: &State| matches!(state, State::In(Trouble::Emptied, _) | State::After(Trouble::Emptied));
        let well: Vec<usize> = (0..5).filter(|member| self.states[*member] == State::Well).collect();
        if well.len() <= 3 || trouble == Trouble::Emptied && self.states.iter().any(loses) {
            return;
        }
        let member = well[dice.below(well.len() as u64) as usize];
        let most = if dice.chance(200) { 6000 } else { 1400 };
        self.begin(member, trouble, Instant::now() + millis(100 + dice.below(most)));
    }
}

/// The times when sections ended, and the longest wait for one.
#[derive(Default)]
struct Log {
    ends: Vec<Instant>,
    longest: Duration,
}

struct Task {
    keeper: Keeper,
    dice: Dice,
    log: Arc<Mutex<Log>>,
}

impl Task {
    async fn work(self) {
        loop {
            let number = self.dice.below(NAMES);
            let (name, lease, keeper) = (format!("load/{number}"), secs(1), &self.keeper);
            match number % 4 {
                1 => self.section(keeper.mutex(&name).lease(lease).fifo().lock()).await,
                2 if self.dice.chance(600) => self.section(keeper.rw_lock(&name).lease(lease).read()).await,
                2 => self.section(keeper.rw_lock(&name).lease(lease).write()).await,
                _ => self.section(keeper.mutex(&name).lease(lease).lock()).await,
            }
        }
    }

    async fn section<M: Send + Sync + 'static>(
        &self,
        acquire: impl Future<Output = Result<Guard<M>, AcquireError>>,
    ) {
        let patience = if self.dice.chance(50) { millis(self.dice.below(50)) } else { secs(3600) };
        let asked = Instant::now();
        let Ok(Ok(guard)) = timeout(patience, acquire).await else {
            return sleep(millis(self.dice.below(20))).await;
        };
        let waited = asked.elapsed();
        let length = if self.dice.chance(2) { 500 + self.dice.below(1000) } else { self.dice.below(100) };
        sleep(millis(length)).await;
        if guard.is_held() {
            let mut log = self.log.lock().expect("not poisoned");
            log.ends.push(Instant::now());
            log.longest = log.longest.max(waited);
        }
        drop(guard.release().await);
    }
}

async fn client(world: &World, ways: &[Arc<Way>], id: u128) -> Keeper {
    let networks: Vec<Network> = ways.iter().map(|way| Network::by(way.clone())).collect();
    let connector = lockkeeper_quorum::connector(&world.url, world.member(&networks)).expect("a URL");
    let keeper = Keeper::builder(connector).test_id(KeeperId::from_u128(id)).outage_limit(secs(600));
    keeper.virtual_time(world.clock.clock()).connect().await.expect("connected")
}

/// Six clients of twelve tasks each, which work until the result is dropped.
async fn crew(world: &World, ways: &[Arc<Way>], seed: u64, dice: &Dice) -> (JoinSet<()>, Arc<Mutex<Log>>) {
    let (log, mut tasks) = (Arc::new(Mutex::new(Log::default())), JoinSet::new());
    for nth in 0..CLIENTS {
        let keeper = client(world, ways, u128::from(seed) * 100 + nth + 1).await;
        for _ in 0..TASKS {
            tasks.spawn(
                Task { keeper: keeper.clone(), dice: Dice::new(dice.next()), log: log.clone() }.work(),
            );
        }
    }
    (tasks, log)
}

/// Returns for how much of a world's time nobody was served for longer than the window.
async fn run(seed: u64, span: Duration) -> Duration {
    let dice = Dice::new(seed);
    let mut world = World::new(5);
    world.url = world.url.replace("quorum:", "quorum:max_lease=2s,lease=1s,");
    let founded = lockkeeper_quorum::found_fresh(&world.url, world.member(&world::networks(5)));
    founded.await.expect("founded");
    let way = |_| Arc::new(Way { held_until: Mutex::new(Instant::now()), dice: Dice::new(dice.next()) });
    let ways: Vec<Arc<Way>> = (0..5).map(way).collect();
    let (_tasks, log) = crew(&world, &ways, seed, &dice).await;
    sleep(secs(1)).await;
    let stores = world.moody_stores().await;
    let mut members = Members { world, ways, stores, states: vec![State::Well; 5] };
    let (begun, ends) = (Instant::now(), Instant::now() + span);
    while Instant::now() < ends {
        sleep(millis(50 + dice.below(100))).await;
        members.look().await;
        if dice.chance(600) {
            members.strike(&dice);
        }
    }
    let log = log.lock().expect("not poisoned");
    let mut times: Vec<Instant> =
        log.ends.iter().copied().filter(|end| (begun..ends).contains(end)).collect();
    times.extend([begun, ends]);
    times.sort_unstable();
    let gaps = times.windows(2).map(|pair| pair[1] - pair[0]);
    let (sections, longest) = (times.len() - 2, gaps.clone().max().unwrap_or_default());
    println!("seed {seed}: {sections} sections, none for {longest:?}, longest wait {:?}", log.longest);
    gaps.map(|gap| gap.saturating_sub(WINDOW)).sum()
}

#[test]
fn somebody_is_served_while_two_of_five_members_are_in_trouble() {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().expect("a number"));
    let first = number("LOCKKEEPER_SEED").unwrap_or(0);
    let seeds = first..first + number("LOCKKEEPER_SEEDS").unwrap_or(2);
    let span = secs(number("LOCKKEEPER_SPAN").unwrap_or(20));
    let (mut late, mut all) = (Duration::ZERO, Duration::ZERO);
    for seed in seeds {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_all().start_paused(true).build().expect("a runtime");
        late += runtime.block_on(run(seed, span));
        all += span;
    }
    let share = 1.0 - late.as_secs_f64() / all.as_secs_f64();
    println!("served within {WINDOW:?} at {:.2} % of all times", share * 100.0);
    assert!(share >= 0.99, "only {:.2} %", share * 100.0);
}
