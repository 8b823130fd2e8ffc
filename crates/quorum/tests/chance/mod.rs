//! Clients of a quorum behind bad networks, by seed, in virtual time: requests are lost, late and doubled, members
//! hang, refuse and lose their data, and clients come, go and are cut off. `LOCKKEEPER_SEEDS` sets how many worlds are
//! run, and `LOCKKEEPER_SEED` the first one. Ids and pauses are drawn by chance, so a seed is not the same run twice.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use lockkeeper_core::{
    Adopted, Capacity, DowngradeError, Guard, Keeper, KeeperId, LeaseClaim, Token, Units,
    store::Kind,
    testing::{Fate, FateSource, Network},
};
use tokio::time::{Instant, sleep, timeout};

use crate::world::{self, Mood, World, millis, secs};

#[derive(Debug)]
pub(crate) struct Dice(Mutex<u64>);

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        let dice = Self(Mutex::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1));
        for _ in 0..5 {
            dice.next();
        }
        dice
    }
    pub(crate) fn next(&self) -> u64 {
        let mut state = self.0.lock().expect("not poisoned");
        *state ^= *state << 13;
        *state ^= *state >> 7;
        *state ^= *state << 17;
        (*state).wrapping_mul(0x2545_F491_4F6C_DD1D) >> 11
    }
    pub(crate) fn below(&self, most: u64) -> u64 {
        if most == 0 { 0 } else { self.next() % most }
    }
    pub(crate) fn chance(&self, of_thousand: u64) -> bool {
        self.below(1000) < of_thousand
    }
}

#[derive(Debug, Clone, Copy, Default)]
struct Faults {
    lost_request: u64,
    lost_reply: u64,
    doubled: u64,
    slow: u64,
    lost_wake: u64,
    usual: u64,
    late: u64,
}

impl Faults {
    fn some(dice: &Dice) -> Self {
        let rate = |most| if dice.chance(500) { dice.below(most) } else { 0 };
        Self {
            lost_request: rate(80),
            lost_reply: rate(100),
            doubled: rate(100),
            slow: rate(150),
            lost_wake: rate(400),
            usual: 1 + rate(20),
            late: 1 + rate(7000),
        }
    }
}

#[derive(Debug)]
struct Chance {
    dice: Dice,
    faults: Mutex<Faults>,
    calm: Arc<AtomicBool>,
}

impl FateSource for Chance {
    fn request(&self) -> Fate {
        let faults = *self.faults.lock().expect("not poisoned");
        if self.calm.load(Ordering::Relaxed) {
            return Fate { before: millis(1), after: millis(1), ..Fate::GOOD };
        }
        let d = &self.dice;
        let span = |slow: bool| millis(d.below(if slow { faults.late } else { faults.usual }));
        let (slow, which) = (d.chance(faults.slow), d.chance(500));
        let lost_reply = d.chance(faults.lost_reply);
        Fate {
            before: millis(1) + span(slow && which),
            arrives: !d.chance(faults.lost_request),
            again: d
                .chance(faults.doubled)
                .then(|| if lost_reply { millis(d.below(faults.late)) } else { millis(0) }),
            after: span(slow && !which),
            answers: !lost_reply,
        }
    }
    fn wake(&self) -> Vec<Duration> {
        let faults = *self.faults.lock().expect("not poisoned");
        if self.calm.load(Ordering::Relaxed) {
            return vec![millis(1)];
        }
        if self.dice.chance(faults.lost_wake) { vec![] } else { vec![millis(self.dice.below(faults.usual))] }
    }
}

type Check = Box<dyn Fn() -> Option<Duration> + Send>;

struct Entry {
    id: u64,
    writes: bool,
    token: Token,
    floor: Token,
    valid: Check,
    what: String,
}

#[derive(Default)]
struct Name {
    held: Vec<Entry>,
    highest_write: Option<Token>,
    highest: Option<Token>,
}

struct Monitor {
    seed: u64,
    begun: Instant,
    names: Vec<Mutex<Name>>,
    next: AtomicU64,
    sections: AtomicU64,
    lost: AtomicU64,
    log: Mutex<Vec<String>>,
    failed: Mutex<Option<String>>,
}

impl Monitor {
    fn say(&self, what: impl std::fmt::Display) {
        let at = self.begun.elapsed();
        self.log.lock().expect("not poisoned").push(format!("{at:?} {what}"));
    }

    fn fail(&self, why: &str) -> ! {
        let log = self.log.lock().expect("not poisoned");
        let tail = log.len().saturating_sub(60);
        let why =
            format!("seed {}: {why} at {:?}\n{}", self.seed, self.begun.elapsed(), log[tail..].join("\n"));
        self.failed.lock().expect("not poisoned").get_or_insert(why.clone());
        panic!("{why}");
    }

    fn enter<M: Send + Sync + 'static>(
        &self,
        nth: usize,
        guard: &Arc<Mutex<Option<Guard<M>>>>,
        writes: bool,
        is_new: bool,
        what: &str,
    ) -> u64
    where
        Guard<M>: Send,
    {
        let (token, floor, held) = {
            let guard = guard.lock().expect("not poisoned");
            let guard = guard.as_ref().expect("it is there");
            (guard.token(), guard.floor(), guard.is_held())
        };
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        self.say(format!(
            "{what} #{id} name {nth} {} {token:?} floor {floor:?} held {held}",
            if writes { "writes" } else { "reads" }
        ));
        if !held {
            return id;
        }
        self.sections.fetch_add(1, Ordering::Relaxed);
        let mut name = self.names[nth].lock().expect("not poisoned");
        name.held.retain(|entry| (entry.valid)().is_some());
        for entry in &name.held {
            if writes || entry.writes {
                let (other, what) = (entry.id, &entry.what);
                self.fail(&format!("two hold: {other} ({what}) and {id}"));
            }
            if entry.floor > token || floor > entry.token {
                self.fail(&format!("floors: {:?} {:?} and {token:?} {floor:?}", entry.token, entry.floor));
            }
        }
        if is_new {
            let below = if writes { name.highest } else { name.highest_write };
            if below.is_some_and(|below| token <= below) {
                self.fail(&format!("token {token:?} after {below:?}"));
            }
        }
        name.highest = name.highest.max(Some(token));
        if writes {
            name.highest_write = name.highest_write.max(Some(token));
        }
        let guard = guard.clone();
        let valid: Check = Box::new(move || {
            let guard = guard.lock().expect("not poisoned");
            guard.as_ref().filter(|guard| guard.is_held()).map(|guard| guard.remaining())
        });
        name.held.push(Entry { id, writes, token, floor, valid, what: what.to_owned() });
        id
    }

    fn leave(&self, nth: usize, id: u64) {
        self.names[nth].lock().expect("not poisoned").held.retain(|entry| entry.id != id);
    }
}

struct Life {
    keeper: Keeper,
    others: Arc<Mutex<Vec<Keeper>>>,
    dice: Dice,
    monitor: Arc<Monitor>,
    who: String,
}

async fn pause(dice: &Dice) {
    let most = if dice.chance(100) { 5000 } else { 200 };
    sleep(millis(dice.below(most))).await;
}

async fn finish<M: Send + Sync + 'static>(
    life: &Life,
    nth: usize,
    id: u64,
    guard: Arc<Mutex<Option<Guard<M>>>>,
) {
    let dice = &life.dice;
    pause(dice).await;
    let lost = !guard.lock().expect("not poisoned").as_ref().expect("it is there").is_held();
    life.monitor.lost.fetch_add(u64::from(lost), Ordering::Relaxed);
    life.monitor.leave(nth, id);
    let guard = guard.lock().expect("not poisoned").take().expect("it is there");
    life.monitor.say(format!("{} ends #{id} lost {lost}", life.who));
    if dice.chance(600) {
        drop(guard.release().await);
    } else {
        drop(guard);
    }
}

fn wrap<T>(guard: T) -> Arc<Mutex<Option<T>>> {
    Arc::new(Mutex::new(Some(guard)))
}

async fn section(life: &Life) {
    let (dice, nth) = (&life.dice, life.dice.below(life.monitor.names.len() as u64) as usize);
    let name = format!("stock/{nth}");
    let lease = millis([500, 1000, 2000, 4000][dice.below(4) as usize]);
    let lock = life.keeper.rw_lock(&name).lease(lease).detachable();
    let lock = if dice.chance(100) { lock.min_hold(millis(dice.below(400))) } else { lock };
    let limit = millis(match dice.below(4) {
        0 => dice.below(100),
        1 => dice.below(3000),
        _ => 20_000,
    });
    let (who, monitor) = (&life.who, &life.monitor);
    match dice.below(8) {
        0..=2 => {
            if let Ok(Ok(guard)) = timeout(limit, lock.write()).await {
                let guard = wrap(guard);
                let id = monitor.enter(nth, &guard, true, true, who);
                finish(life, nth, id, guard).await;
            }
        }
        3 => {
            if let Ok(Ok(Some(guard))) = timeout(limit, lock.try_write()).await {
                let guard = wrap(guard);
                let id = monitor.enter(nth, &guard, true, true, who);
                finish(life, nth, id, guard).await;
            }
        }
        4 => {
            if let Ok(Ok(guard)) = timeout(limit, lock.read()).await {
                let guard = wrap(guard);
                let id = monitor.enter(nth, &guard, false, true, who);
                finish(life, nth, id, guard).await;
            }
        }
        5 => {
            if let Ok(Ok(guard)) = timeout(limit, lock.write()).await {
                let guard = wrap(guard);
                let id = monitor.enter(nth, &guard, true, true, who);
                pause(dice).await;
                monitor.leave(nth, id);
                let guard = guard.lock().expect("not poisoned").take().expect("it is there");
                match guard.downgrade().await {
                    Ok(guard) | Err(DowngradeError::Unknown { guard, .. }) => {
                        let guard = wrap(guard);
                        let id = monitor.enter(nth, &guard, false, false, who);
                        finish(life, nth, id, guard).await;
                    }
                    Err(DowngradeError::Unchanged { guard, .. }) => {
                        let guard = wrap(guard);
                        let id = monitor.enter(nth, &guard, true, false, who);
                        finish(life, nth, id, guard).await;
                    }
                    Err(_) => {}
                }
            }
        }
        6 => {
            if let Ok(Ok(guard)) = timeout(limit, lock.write()).await {
                let guard = wrap(guard);
                let id = monitor.enter(nth, &guard, true, true, who);
                pause(dice).await;
                monitor.leave(nth, id);
                let guard = guard.lock().expect("not poisoned").take().expect("it is there");
                match guard.into_lease().await {
                    Ok(lease) => {
                        monitor.say(format!("{who} detached #{id}"));
                        pause(dice).await;
                        let other = {
                            let others = life.others.lock().expect("not poisoned");
                            others.get(dice.below(others.len() as u64) as usize).cloned()
                        };
                        let Some(other) = other else { return };
                        if let Ok(Adopted::Write(guard)) = other.adopt(&lease).await {
                            let guard = wrap(guard);
                            let id = monitor.enter(nth, &guard, true, false, &format!("{who} adopts {id}"));
                            finish(life, nth, id, guard).await;
                        } else {
                            drop(other.release_lease(&lease).await);
                        }
                    }
                    Err(_) => monitor.say(format!("{who} did not detach #{id}")),
                }
            }
        }
        _ => {
            let mut claim = LeaseClaim::new(Kind::RwLock, Units::All, Capacity::All);
            claim.lease = lease;
            if let Ok(Ok(Some(acquired))) =
                timeout(limit, life.keeper.acquire_lease(&name, &claim, Some(secs(5)))).await
            {
                monitor.say(format!(
                    "{who} leased {nth} {:?} for {:?}",
                    acquired.lease.token(),
                    acquired.remaining
                ));
                if dice.chance(500) {
                    pause(dice).await;
                    drop(life.keeper.release_lease(&acquired.lease).await);
                }
            }
        }
    }
}

async fn client(world: &World, url: &str, networks: &[Network], id: u128) -> Option<Keeper> {
    let connector = lockkeeper_quorum::connector(url, world.member(networks)).expect("a url");
    let keeper =
        Keeper::builder(connector).test_id(KeeperId::from_u128(id)).virtual_time(world.clock.clock());
    keeper.connect().await.ok()
}

async fn run(seed: u64) -> (u64, u64, Duration) {
    let dice = Dice::new(seed);
    let members = if dice.chance(700) { 3 } else { 5 };
    let mut world = World::new(members);
    world.url = world.url.replace("quorum:", "quorum:max_lease=5s,lease=2s,");
    lockkeeper_quorum::found_fresh(&world.url, world.member(&world::networks(members)))
        .await
        .expect("founded");
    let world = Arc::new(world);
    let calm = Arc::new(AtomicBool::new(false));
    let loses_data = dice.chance(400);
    let monitor = Arc::new(Monitor {
        seed,
        begun: Instant::now(),
        names: (0..1 + dice.below(2)).map(|_| Mutex::default()).collect(),
        next: AtomicU64::new(0),
        sections: AtomicU64::new(0),
        lost: AtomicU64::new(0),
        log: Mutex::default(),
        failed: Mutex::default(),
    });
    let others: Arc<Mutex<Vec<Keeper>>> = Arc::default();
    let mut clients = Vec::new();
    for nth in 0..2 + dice.below(4) {
        let (world, calm, monitor, others) = (world.clone(), calm.clone(), monitor.clone(), others.clone());
        let dice = Dice::new(seed * 1000 + nth + 1);
        clients.push(tokio::spawn(async move {
            let mut life_nth = 0;
            while !calm.load(Ordering::Relaxed) {
                life_nth += 1;
                let id = u128::from(seed) * 1_000_000 + u128::from(nth) * 1000 + life_nth + 1;
                let chances: Vec<Arc<Chance>> = (0..members)
                    .map(|_| {
                        let faults = Mutex::new(Faults::some(&dice));
                        Arc::new(Chance { dice: Dice::new(dice.next()), faults, calm: calm.clone() })
                    })
                    .collect();
                let networks: Vec<Network> =
                    chances.iter().map(|chance| Network::by(chance.clone())).collect();
                let Some(keeper) = client(&world, &world.url, &networks, id).await else {
                    sleep(millis(10)).await;
                    continue;
                };
                others.lock().expect("not poisoned").push(keeper.clone());
                let mut tasks = Vec::new();
                for task in 0..1 + dice.below(3) {
                    let life = Life {
                        keeper: keeper.clone(),
                        others: others.clone(),
                        dice: Dice::new(dice.next()),
                        monitor: monitor.clone(),
                        who: format!("{nth}.{life_nth}.{task}"),
                    };
                    let calm = calm.clone();
                    tasks.push(tokio::spawn(async move {
                        while !calm.load(Ordering::Relaxed) {
                            section(&life).await;
                            pause(&life.dice).await;
                        }
                    }));
                }
                let ends = Instant::now() + millis(3000 + dice.below(20_000));
                while Instant::now() < ends && !calm.load(Ordering::Relaxed) {
                    sleep(millis(dice.below(2000))).await;
                    let member = dice.below(members as u64) as usize;
                    match dice.below(6) {
                        0 => {
                            networks[member].cut();
                            sleep(millis(dice.below(4000))).await;
                            networks[member].restore();
                        }
                        1 => *chances[member].faults.lock().expect("not poisoned") = Faults::some(&dice),
                        2 => {
                            *chances[member].faults.lock().expect("not poisoned") =
                                Faults { usual: 2, ..Faults::default() }
                        }
                        3 => {
                            let mood =
                                [None, Some(Mood::NotNow), Some(Mood::Refuses)][dice.below(3) as usize];
                            let name = format!("stock/{}", dice.below(2));
                            world.moods[member].set(&name, mood);
                            sleep(millis(dice.below(800))).await;
                            world.moods[member].set(&name, None);
                        }
                        4 => {
                            world.moods[member].hang(true);
                            sleep(millis(dice.below(3000))).await;
                            world.moods[member].hang(false);
                        }
                        _ => {}
                    }
                }
                let others_there =
                    |others: &mut Vec<Keeper>| others.retain(|other| other.id() != keeper.id());
                others_there(&mut others.lock().expect("not poisoned"));
                if dice.chance(300) {
                    // It is cut off for ever.
                    monitor.say(format!("{nth}.{life_nth} is cut off"));
                    networks.iter().for_each(Network::cut);
                    for task in tasks {
                        sleep(millis(dice.below(300))).await;
                        drop(task);
                    }
                    tokio::spawn(async move { keeper.close().await });
                } else {
                    for task in tasks {
                        task.abort();
                        drop(task.await);
                    }
                    monitor.say(format!("{nth}.{life_nth} closes"));
                    keeper.close().await;
                    monitor.say(format!("{nth}.{life_nth} closed"));
                }
            }
        }));
    }
    let span = 40 + dice.below(40);
    let ends = Instant::now() + secs(span);
    let mut lost_at = Instant::now();
    while Instant::now() < ends {
        sleep(millis(dice.below(4000))).await;
        if let Some(why) = monitor.failed.lock().expect("not poisoned").clone() {
            panic!("{why}");
        }
        if loses_data && lost_at.elapsed() > secs(14) && dice.chance(300) {
            let member = dice.below(members as u64) as usize;
            monitor.say(format!("member {member} loses its data"));
            world.servers[member].lose_data();
            lost_at = Instant::now();
        }
    }
    calm.store(true, Ordering::Relaxed);
    for client in clients {
        match timeout(secs(120), client).await {
            Err(_) => monitor.fail("a client does not end"),
            Ok(Err(error)) => std::panic::resume_unwind(error.into_panic()),
            Ok(Ok(())) => {}
        }
    }
    if let Some(why) = monitor.failed.lock().expect("not poisoned").clone() {
        panic!("{why}");
    }
    world.moods.iter().for_each(|moods| moods.hang(false));
    sleep(secs(30)).await;
    let last = client(&world, &world.url, &world::networks(members), u128::from(seed) * 1_000_000)
        .await
        .expect("all is well");
    let mut longest = Duration::ZERO;
    for nth in 0..monitor.names.len() {
        let begun = Instant::now();
        let lock = last.rw_lock(&format!("stock/{nth}")).lease(secs(1));
        match timeout(secs(60), lock.write()).await {
            Ok(Ok(guard)) => drop(guard.release().await),
            _ => monitor.fail("it is stuck"),
        }
        longest = longest.max(begun.elapsed());
    }
    if longest > secs(1) {
        println!("seed {seed}: {longest:?} at the end, members lost data: {loses_data}");
    }
    last.close().await;
    sleep(secs(30)).await;
    let kept: usize = world.servers.iter().map(|server| server.kept()).sum();
    if kept > 0 {
        println!("seed {seed}: {kept} left");
    }
    (monitor.sections.load(Ordering::Relaxed), monitor.lost.load(Ordering::Relaxed), longest)
}

#[test]
fn by_chance() {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().expect("a number"));
    let first = number("LOCKKEEPER_SEED").unwrap_or(0);
    let seeds = first..first + number("LOCKKEEPER_SEEDS").unwrap_or(20);
    let mut total = (0, 0);
    let count = seeds.end - seeds.start;
    for seed in seeds {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .start_paused(true)
            .build()
            .expect("a runtime");
        let local = runtime.block_on(async { tokio::spawn(run(seed)).await });
        match local {
            Ok((sections, lost, _)) => {
                total.0 += sections;
                total.1 += lost;
            }
            Err(error) => std::panic::resume_unwind(error.into_panic()),
        }
    }
    println!("{count} worlds, {} sections, {} lost", total.0, total.1);
}
