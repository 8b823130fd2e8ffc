//! Sixteen processes, one name: how often the lock passes from one process to another. They stay from round
//! to round, because a Java program is slow at first.

use std::{
    io::{Write as _, stdin, stdout},
    time::{Duration, Instant},
};

use lockkeeper_testkit::counting::Requests;
use tokio::task::{block_in_place, spawn_blocking};

use super::{
    CURATOR, LOCKKEEPER, RECIPE, ZooKeeper,
    curator::{Program, Talk},
    peers::RecipePeer,
};
use crate::{
    Failure,
    bench::{Bench, Workload},
    judge::{self, Limit, Median, Verdict},
    peer::{DroppedPeer, Lock, Peer},
    processes::{Hand, PROCESSES, Passed, now},
    table::Row,
};

/// How much more often Lockkeeper's lock passes on than another one.
const FASTER: Limit = Limit::AtLeast(1.5);

/// The processes of one contestant.
struct Team {
    who: &'static str,
    members: Vec<Talk>,
    rounds: Vec<Race>,
}

/// What a round brought.
struct Race {
    passed: Passed,
    hand_offs: f64,
    /// Per acquisition, as the server counts them; with the signs of life of everybody.
    requests: f64,
}

impl Team {
    fn start(who: &'static str, start: impl Fn() -> Result<Talk, Failure>) -> Result<Self, Failure> {
        let mut members = (0..PROCESSES).map(|_| start()).collect::<Result<Vec<_>, _>>()?;
        for member in &mut members {
            member.hear()?;
        }
        Ok(Self { who, members, rounds: Vec::new() })
    }

    fn race(&mut self, length: Duration) -> Result<Passed, Failure> {
        for member in &mut self.members {
            member.tell(&format!("pass {}", length.as_millis()))?;
        }
        let times = self.members.iter_mut().map(Talk::hear_times).collect::<Result<Vec<_>, _>>()?;
        Passed::of(&times, length)
    }

    fn rows(&self) -> Vec<Row> {
        let row = |what: &str, figure: &dyn Fn(&Race) -> f64| {
            Row::median(Workload::W3p, self.who, what, Median::of(self.rounds.iter().map(figure)))
        };
        let fairness = self.rounds.iter().map(|race| judge::jain(&race.passed.shares)).fold(1.0, f64::min);
        vec![
            row("lock+release/s", &|race| race.passed.rate),
            row("passed to another process/s", &|race| race.hand_offs),
            row("hand-off p50, µs", &|race| race.passed.hand_offs.value_at_quantile(0.5) as f64 / 1e3),
            row("hand-off p99, µs", &|race| race.passed.hand_offs.value_at_quantile(0.99) as f64 / 1e3),
            row("requests at the server each", &|race| race.requests),
            Row::new(Workload::W3p, self.who, "Jain's index, lowest of all rounds", fairness),
        ]
    }
}

impl ZooKeeper {
    pub(super) async fn w3p(&self, bench: &Bench) -> Result<Vec<Row>, Failure> {
        let pace = bench.pace;
        let (url, servers) = (self.url.clone(), self.address());
        let program = self.curator.as_ref().map(|curator| curator.program().clone());
        let program = program.as_ref();
        let mut teams = block_in_place(|| teams(&url, &servers, program))?;
        // The first is thrown away.
        for round in 0..=pace.rounds {
            for team in &mut teams {
                let before: u64 = self.received()?.values().sum();
                let passed = block_in_place(|| team.race(pace.length))?;
                let received = self.received()?.values().sum::<u64>().saturating_sub(before);
                if round > 0 {
                    let acquired: u64 = passed.shares.iter().sum();
                    let hand_offs = passed.hand_offs.len() as f64 / pace.length.as_secs_f64();
                    let requests = received as f64 / acquired as f64;
                    team.rounds.push(Race { passed, hand_offs, requests });
                }
            }
        }
        let mut rows: Vec<Row> = teams.iter().flat_map(Team::rows).collect();
        let (ours, peers) = teams.split_at(1);
        for peer in peers {
            let pairs = ours[0].rounds.iter().zip(&peer.rounds);
            let ratio = Median::of(pairs.map(|(ours, theirs)| ours.hand_offs / theirs.hand_offs));
            let what = format!("passed to another process / {}", peer.who);
            let verdict = if pace.is_enough() { FASTER.judge_rate(&ratio) } else { Verdict::TooShort };
            rows.push(Row::median(Workload::W3p, LOCKKEEPER, what, ratio).goal(FASTER, verdict));
        }
        Ok(rows)
    }
}

/// Lockkeeper first.
fn teams(url: &str, servers: &str, program: Option<&Program>) -> Result<Vec<Team>, Failure> {
    let own = |who, place| move || Talk::begin(Hand::start(&["zookeeper", who, place])?);
    let mut teams =
        vec![Team::start(LOCKKEEPER, own(LOCKKEEPER, url))?, Team::start(RECIPE, own(RECIPE, servers))?];
    if let Some(program) = program {
        teams.push(Team::start(CURATOR, || program.run(servers, true))?);
    }
    Ok(teams)
}

/// A process of this program that takes part.
pub(crate) fn child(who: &str, place: &str) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        if who == LOCKKEEPER {
            let keeper = lockkeeper::connect(place).await?;
            take_part(DroppedPeer::new(&keeper, &Requests::default())).await?;
            keeper.close().await;
        } else {
            take_part(RecipePeer::connect(place).await?).await?;
        }
        Ok(())
    })
}

async fn take_part<P: Peer>(peer: P) -> Result<(), Failure> {
    let lock = peer.lock("w3p");
    println!("ready");
    loop {
        // Not on this thread, which keeps the session alive.
        let order = spawn_blocking(|| {
            let mut line = String::new();
            stdin().read_line(&mut line).map(|_| line)
        });
        let order = order.await??;
        let Some(millis) = order.trim_end().strip_prefix("pass ") else { return Ok(()) };
        let length = Duration::from_millis(millis.parse()?);
        let mut lines = String::new();
        let started = Instant::now();
        loop {
            let held = lock.acquire().await?;
            let (granted, over) = (now(), started.elapsed() > length);
            let released = now();
            P::Lock::release(held).await?;
            if over {
                break;
            }
            lines.push_str(&format!("{granted} {released}\n"));
        }
        stdout().write_all(lines.as_bytes())?;
        println!("end");
    }
}
