//! Sixteen processes, one name: how often the lock passes from one process to another. They stay from round
//! to round, because a Java program is slow at first.

use std::{
    io::{Write as _, stdin, stdout},
    time::{Duration, Instant},
};

use lockkeeper_testkit::counting::RequestCounter;
use tokio::task::{block_in_place, spawn_blocking};

use super::{BARE, CURATOR, LOCKKEEPER, RECIPE, ZooKeeper, curator::Program, peers::RecipePeer, ring::Ring};
use crate::{
    Failure,
    bench::Bench,
    judge::{self, Limit, Median, Verdict},
    peer::{Lock, Peer},
    peers::DroppedPeer,
    processes::{ChildProcess, Dialogue, PROCESSES, ProcessRound, now, runtime},
    table::Row,
    workload::Workload,
};

/// How often Lockkeeper's lock passes on, as a multiple of another one. The recipe is as fast as its client can be: it
/// lives in the runtime of the task that waits, while Lockkeeper's session lives on a thread of its own.
fn faster_than(who: &str) -> Option<Limit> {
    match who {
        RECIPE => Some(Limit::AtLeast(1.0)),
        CURATOR => Some(Limit::AtLeast(1.3)),
        _ => None,
    }
}

/// The processes of one contestant.
struct Team {
    who: &'static str,
    members: Vec<Dialogue>,
    rounds: Vec<Race>,
}

/// The figures of a round.
struct Race {
    passed: ProcessRound,
    hand_offs: f64,
    /// Per acquisition, as the server counts them; with the signs of life of everybody.
    requests: f64,
}

impl Team {
    fn start(who: &'static str, start: impl Fn(usize) -> Result<Dialogue, Failure>) -> Result<Self, Failure> {
        let mut members = (0..PROCESSES).map(start).collect::<Result<Vec<_>, _>>()?;
        for member in &mut members {
            member.receive()?;
        }
        Ok(Self { who, members, rounds: Vec::new() })
    }

    fn race(&mut self, length: Duration) -> Result<ProcessRound, Failure> {
        for member in &mut self.members {
            member.send(&format!("pass {}", length.as_millis()))?;
        }
        let times = self.members.iter_mut().map(Dialogue::receive_times).collect::<Result<Vec<_>, _>>()?;
        ProcessRound::of(&times, length)
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
    pub(crate) async fn w3p(&self, bench: &Bench) -> Result<Vec<Row>, Failure> {
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
            let limit = faster_than(peer.who);
            let judged = limit.map(|limit| match pace.is_enough() {
                true => (limit, limit.judge_rate(&ratio)),
                false => (limit, Verdict::TooShort),
            });
            let row = Row::median(Workload::W3p, LOCKKEEPER, what, ratio);
            rows.push(match judged {
                Some((limit, verdict)) => row.goal(limit, verdict),
                None => row,
            });
        }
        Ok(rows)
    }
}

/// Returns the contestants: Lockkeeper first, and the bare ring last.
fn teams(url: &str, servers: &str, program: Option<&Program>) -> Result<Vec<Team>, Failure> {
    let own = |who, url| move |_| Dialogue::new(ChildProcess::start(&["zookeeper", who, url])?);
    let mut teams =
        vec![Team::start(LOCKKEEPER, own(LOCKKEEPER, url))?, Team::start(RECIPE, own(RECIPE, servers))?];
    if let Some(program) = program {
        teams.push(Team::start(CURATOR, |_| program.run(servers, true))?);
    }
    let folder = Ring::new_folder();
    let ring =
        |own: usize| Dialogue::new(ChildProcess::start(&["ring", servers, &folder, &own.to_string()])?);
    teams.push(Team::start(BARE, ring)?);
    Ok(teams)
}

/// A process of this program that takes part as `who`.
pub(crate) fn child(who: &str, url: &str) -> Result<(), Failure> {
    runtime()?.block_on(async {
        if who == LOCKKEEPER {
            let keeper = lockkeeper::connect(url).await?;
            take_part(DroppedPeer::new(&keeper, &RequestCounter::default())).await?;
            keeper.close().await;
        } else {
            take_part(RecipePeer::connect(url).await?).await?;
        }
        Ok(())
    })
}

/// A process of this program that is number `own` of a ring.
pub(crate) fn ring_child(servers: &str, folder: &str, own: usize) -> Result<(), Failure> {
    runtime()?.block_on(async {
        let mut ring = Ring::join(servers, folder, own).await?;
        println!("ready");
        while let Some(length) = next_length().await? {
            print_times(&ring.pass(length).await?)?;
        }
        Ok(())
    })
}

/// How long the next round is; `None` if there is none.
async fn next_length() -> Result<Option<Duration>, Failure> {
    // Not on this thread, which keeps the session alive.
    let line = spawn_blocking(|| {
        let mut line = String::new();
        stdin().read_line(&mut line).map(|_| line)
    });
    let line = line.await??;
    let millis = line.trim_end().strip_prefix("pass ").map(str::parse).transpose()?;
    Ok(millis.map(Duration::from_millis))
}

fn print_times(times: &[(u64, u64)]) -> Result<(), Failure> {
    let lines: String = times.iter().map(|(granted, released)| format!("{granted} {released}\n")).collect();
    stdout().write_all(lines.as_bytes())?;
    println!("end");
    Ok(())
}

async fn take_part<P: Peer>(peer: P) -> Result<(), Failure> {
    let lock = peer.lock("w3p");
    println!("ready");
    while let Some(length) = next_length().await? {
        let (started, mut times) = (Instant::now(), Vec::new());
        loop {
            let held = lock.acquire().await?;
            let (granted, over) = (now(), started.elapsed() > length);
            let released = now();
            P::Lock::release(held).await?;
            if over {
                break;
            }
            times.push((granted, released));
        }
        print_times(&times)?;
    }
    Ok(())
}
