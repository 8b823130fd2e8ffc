//! The quorum's part: five Redis servers that the harness starts, its peers, and its goals.

mod peers;
mod processes;
mod waiting;

use std::time::Duration;

use self::{
    peers::{FanOutPeer, RedlockPeer},
    waiting::Watched,
};
pub(crate) use self::{
    processes::{redlock, w3p},
    waiting::WAITING,
};
use crate::{
    Failure,
    judge::{Limit, Median, Verdict},
    metered::Metered,
    redis::Server,
    rounds::{Contestant, Raced, Round, Served},
    table::Row,
    workload::{Pace, Workload},
};

/// How many members there are.
const MEMBERS: usize = 5;

/// A claim and a release at each member.
const COMMANDS: Limit = Limit::AtMost(2.0 * MEMBERS as f64);
/// How long a free lock takes, as a multiple of the bare fan-out.
const LATENCY: Limit = Limit::AtMost(1.5);

/// The members, each with a connection to ask it for its work.
#[derive(Clone)]
pub(crate) struct Members(Vec<Server>);

impl Members {
    /// Starts servers, and founds a quorum of them, if `url` asks for it.
    pub(crate) async fn for_url(url: &str) -> Result<Option<Self>, Failure> {
        if url != "quorum:" {
            return Ok(None);
        }
        let servers = (0..MEMBERS).filter_map(|_| Server::of("redis:").transpose());
        let members = Self(servers.collect::<Result<_, _>>()?);
        lockkeeper::quorum::found_fresh(&members.url()).await?;
        Ok(Some(members))
    }

    fn urls(&self) -> Vec<&str> {
        self.0.iter().map(Server::url).collect()
    }

    pub(crate) fn url(&self) -> String {
        format!("quorum:{}", self.urls().join(","))
    }

    /// The same contestant, with the work of all members in each round, and the commands to each while it waited.
    pub(crate) fn metered(&self, inner: Box<dyn Contestant>) -> Box<dyn Contestant> {
        let members = self.clone();
        let inner = Box::new(Watched { inner, members: self.clone() });
        Box::new(Metered { inner, served: Box::new(move || members.served()) })
    }

    /// The peers that Lockkeeper is compared with.
    pub(crate) async fn peers(&self) -> Result<Vec<Box<dyn Contestant>>, Failure> {
        let (bare, redlock) = (FanOutPeer::connect(&self.urls()).await?, RedlockPeer::connect(&self.urls())?);
        Ok(vec![self.metered(Box::new(bare)), self.metered(Box::new(redlock))])
    }

    /// The work of all members together so far.
    fn served(&self) -> Result<Served, Failure> {
        let (mut commands, mut busy) = (0, Duration::ZERO);
        for member in &self.0 {
            let served = member.served()?;
            commands += served.commands.unwrap_or_default();
            busy += served.busy;
        }
        Ok(Served { commands: Some(commands), busy })
    }
}

/// The rows, with those that compare a free lock with the bare fan-out.
pub(crate) fn judged(workload: Workload, rows: Vec<Row>, results: &[Raced<'_>], pace: &Pace) -> Vec<Row> {
    let bare = results.iter().find(|(contestant, _)| contestant.name() == peers::BARE);
    let (Some((_, bare)), Some((first, ours)), Workload::W1) = (bare, results.first(), workload) else {
        return rows;
    };
    let commands = [("commands each", COMMANDS)];
    let mut rows: Vec<Row> = rows.into_iter().map(|row| row.held_to(first.name(), &commands)).collect();
    let p50 = |round: &Round| round.micros_at(0.5);
    let ratio = Median::of(ours.iter().zip(bare).map(|(ours, bare)| p50(ours) / p50(bare)));
    let verdict = if pace.is_enough() { LATENCY.judge_rate(&ratio) } else { Verdict::TooShort };
    let what = format!("p50 / {}", peers::BARE);
    rows.push(Row::median(workload, first.name(), what, ratio).goal(LATENCY, verdict));
    rows
}
