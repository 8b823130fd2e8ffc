//! The part that the tests of all database servers share: a crew in every trouble, killed holders, swallowed replies,
//! the size of tables, and the deeds of a plain user. The statements, which differ, are the tests' own.

use std::{
    fmt::Debug,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use tokio::task::JoinSet;

use crate::{
    bad_connection::BadConnection,
    dice::Dice,
    history::Report,
    kills::Kills,
    load::{Deck, Load, number, percent, task},
    processes::Task,
    proxy::{Action, Direction, Fault, Proxy},
};

/// A server and the troubles that may befall it. Its crew connects through a proxy.
pub trait Stage {
    /// A trouble that may befall it.
    type Trouble: Copy + Debug;

    /// The URL for the crew, through the proxy.
    fn url(&self) -> String;

    /// The proxy.
    fn proxy(&self) -> &Proxy;

    /// Lets this trouble come, until the crew goes on.
    fn strike(&mut self, load: &mut Load, trouble: Self::Trouble, dice: &mut Dice);
}

/// A crew of the program `worker` in all these troubles, until it has had enough sections (`LOCKKEEPER_SECTIONS`, in the
/// order of `LOCKKEEPER_SEED`). A fence must keep its data right at any time.
///
/// # Panics
/// If it does not, or nobody was killed inside of a section.
pub fn every_trouble<S: Stage>(worker: &str, stage: &mut S, troubles: &[S::Trouble]) -> Report {
    let sections = number("LOCKKEEPER_SECTIONS", 10_000);
    let seed = number("LOCKKEEPER_SEED", 1) as u64;
    let (started, mut dice) = (Instant::now(), Dice::new(seed));
    // So many names that few wait for one whose holder was killed, and so many tasks that most hand on within a process.
    let change = |task| Task { resources: 16, tasks: 12, seed, ..task };
    let mut load = Load::with(worker, &stage.url(), 5, change);
    let mut deck = Deck::new(troubles.to_vec(), seed);
    while load.sections() < sections || deck.rounds() == 0 {
        let trouble = deck.draw().expect("there are some");
        let (before, begun) = (load.sections(), Instant::now());
        stage.strike(&mut load, trouble, &mut dice);
        println!("{trouble:?}: {} sections in {:?}", load.sections() - before, begun.elapsed());
        load.listen(dice.up_to(300));
    }
    // Connections that were not used since then are still to break.
    load.through(|| {
        stage.proxy().cut_all();
        Ok(())
    });
    let report = load.must_be_fenced();
    println!("{:?}", started.elapsed());
    assert!(report.sections >= sections && report.crashed > 0, "{report}");
    report
}

/// Connections break or go silent, and for a while some cannot be made.
pub fn break_connections(proxy: &Proxy, load: &mut Load, dice: &mut Dice) {
    let direction = if dice.chance(700) { Direction::ToClient } else { Direction::ToServer };
    let action = if dice.chance(700) { Action::Cut } else { Action::Swallow };
    proxy.now(Fault { direction, after: dice.below(3000), action });
    if dice.chance(300) {
        proxy.refuse(true);
        load.listen(dice.up_to(500));
        proxy.refuse(false);
    }
    load.through(|| Ok(()));
}

/// Holders of the program `worker` are killed inside of their sections, `LOCKKEEPER_KILLS` of them. Each blocks the others
/// for the rest of its lease, and for `longer` at most.
///
/// # Panics
/// If one of them blocks for longer.
pub fn killed_holders(worker: &str, url: &str, longer: Duration) {
    let folder = tempfile::tempdir().expect("a folder");
    let task = Task { lease: Duration::from_millis(500), ..task(url, &folder) };
    let (started, limit) = (Instant::now(), task.lease + longer);
    let kills = Kills::of_holders(worker, &task, 10, number("LOCKKEEPER_KILLS", 200));
    println!("lease {:?}, {kills}; {:?} in all", task.lease, started.elapsed());
    // The short form runs beside many other tests, which a few waiters may have to wait for.
    let all = if percent().is_some() { limit } else { limit + Duration::from_secs(2) };
    assert!(kills.passed(90) <= limit && kills.passed(100) <= all, "{kills:?}");
}

/// Connections go silent for good within the next `most` bytes, `LOCKKEEPER_SWALLOWED` of them; only the client's own limit
/// ends the wait.
///
/// # Panics
/// If something is left behind, or fewer went silent.
pub async fn swallowed_replies(server: SocketAddr, url: impl Fn(SocketAddr) -> String, most: u64) {
    let (count, started) = (number("LOCKKEEPER_SWALLOWED", 1000), Instant::now());
    let mut pairs = Vec::new();
    for pair in 0..20 {
        pairs.push(BadConnection::new(server, &format!("lost/{pair}"), &url).await);
    }
    let struck = BadConnection::swallow_replies(pairs, count, most).await;
    println!("{struck} connections went silent, in {:?}", started.elapsed());
    assert!(struck >= count, "{struck}");
}

/// Rows are updated in place, so many sections on a few names need no more room than some. `sizes` says how many bytes each
/// table has. See [`room_after_sections`].
///
/// # Panics
/// If the tables have grown with most of the steps of two thousand sections. They may grow in some: while a transaction of the
/// server's own upkeep lasts, no room is used again. On a busy machine that may be seconds, so one such step may be as large as
/// if each section had a row of its own.
pub async fn tables_do_not_grow(url: &str, sizes: impl Fn() -> Vec<(String, u64)>) {
    /// Less than a fifth of the room that two thousand rows need.
    const SOME: u64 = 32 * 1024;
    let measured = room_after_sections(url, sizes).await;
    let mut grown: Vec<u64> = measured.windows(2).map(|pair| pair[1].saturating_sub(pair[0])).collect();
    grown.sort_unstable();
    assert!(grown[grown.len() / 2] <= SOME, "the tables grow with the sections: {measured:?}");
}

/// How many bytes all tables have after a thousand sections on a few names, and after each two thousand more, up to eleven
/// thousand. `sizes` says how many each has. The order of arrival is kept, so each section is a transaction of its own: tasks
/// of one keeper that hand on among themselves would leave the tables alone.
///
/// # Panics
/// If the store fails.
pub async fn room_after_sections(url: &str, sizes: impl Fn() -> Vec<(String, u64)>) -> Vec<u64> {
    let mut keepers = Vec::new();
    for _ in 0..4 {
        keepers.push(lockkeeper::connect(url).await.expect("connected"));
    }
    let (sections, mut measured) = (Arc::new(AtomicUsize::new(0)), Vec::new());
    for most in [1_000, 3_000, 5_000, 7_000, 9_000, 11_000] {
        let (started, mut working) = (Instant::now(), JoinSet::new());
        for task in 0..24 {
            let (keeper, sections) = (keepers[task % keepers.len()].clone(), sections.clone());
            working.spawn(async move {
                let mutex = keeper.mutex(&format!("few/{}", task / 4 % 3)).fifo();
                while sections.fetch_add(1, Ordering::Relaxed) < most {
                    mutex.lock().await.expect("locked").release().await.expect("released");
                }
            });
        }
        working.join_all().await;
        sections.store(most, Ordering::Relaxed);
        let sizes = sizes();
        println!("{most} sections, the last in {:?}: {sizes:?}", started.elapsed());
        assert!(sizes.len() >= 7, "{sizes:?}");
        measured.push(sizes.iter().map(|(_, size)| size).sum::<u64>());
    }
    for keeper in keepers {
        keeper.close().await;
    }
    measured
}

/// Whether the user of this URL may use the store as a member of a quorum.
///
/// # Panics
/// If not.
pub async fn is_member(url: &str) {
    let others = ["a", "b"].map(|name| lockkeeper::memory::MemoryServer::named(&format!("beside-{name}")));
    let quorum = format!("quorum:memory:beside-a,memory:beside-b,{}", url.replace(',', "%2C"));
    lockkeeper::quorum::found_fresh(&quorum).await.expect("it may be a member");
    let members = lockkeeper::quorum::show(&quorum).await.expect("shown");
    assert!(members.iter().all(|member| member.votes), "{members:?}");
    drop(others);
}

/// A user locks, waits, fences and counts. `somebody_waits` looks into the tables.
///
/// # Panics
/// If one of these is refused.
pub async fn uses_everything(url: &str, somebody_waits: impl Fn() -> bool) {
    let keeper = lockkeeper::connect(url).await.expect("it may use the tables");
    let second = lockkeeper::connect(url).await.expect("it may use the tables");
    let guard = keeper.mutex("stock").lock().await.expect("locked");
    let waiter = tokio::spawn(async move { second.mutex("stock").lock().await.map(|guard| guard.token()) });
    while !somebody_waits() {}
    keeper.fence("stock").admit(guard.token()).await.expect("admitted");
    let first = guard.token();
    guard.release().await.expect("released");
    let token =
        tokio::time::timeout(Duration::from_secs(10), waiter).await.expect("in time").expect("no panic");
    assert!(token.expect("locked") > first);
    keeper.latch("gate").create(2).await.expect("allowed");
    keeper.latch("gate").count_down_by(2).await.expect("allowed");
    keeper.latch("gate").delete().await.expect("allowed");
    keeper.close().await;
}
