//! What a run measures: the store, the pace, the workloads.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use lockkeeper::Keeper;
use lockkeeper_testkit::counting::Requests;

use crate::{
    Failure, crowd, given_up, held,
    judge::Verdict,
    peer::{self, DroppedPeer, KeeperPeer},
    processes, rates, redis,
    rounds::Contestant,
    table::Row,
    waiting,
    zookeeper::ZooKeeper,
};

/// How often a workload is repeated until its rates are conclusive.
const TRIES: usize = 3;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Workload {
    W1,
    W2,
    W3,
    W3p,
    W4,
    W4p,
    Held,
    GivenUp,
}

impl Workload {
    pub(crate) const ALL: [Self; 8] =
        [Self::W1, Self::W2, Self::W3, Self::W3p, Self::W4, Self::W4p, Self::Held, Self::GivenUp];

    /// What it is called, in the table and on the command line.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::W1 => "w1",
            Self::W2 => "w2",
            Self::W3 => "w3",
            Self::W3p => "w3p",
            Self::W4 => "w4",
            Self::W4p => "w4p",
            Self::Held => "held",
            Self::GivenUp => "given_up",
        }
    }
}

/// How much is measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Pace {
    /// Rounds of each contestant.
    pub(crate) rounds: usize,
    /// The length of a round.
    pub(crate) length: Duration,
    /// Rounds of W4, each of which takes long and whose figures are counts or nearly so.
    pub(crate) waits: usize,
    /// How long W4's tasks wait: several of the polls that a waiter makes when no wake comes.
    pub(crate) wait: Duration,
    /// How many locks are held.
    pub(crate) locks: usize,
    /// The lease of each; renewed at a third of it, and watched for the whole of it.
    pub(crate) lease: Duration,
    /// How many tasks wait and give up.
    pub(crate) crowd: usize,
}

impl Pace {
    /// What goals are judged by.
    pub(crate) const FULL: Self = Self {
        rounds: 15,
        length: Duration::from_secs(2),
        waits: 2,
        wait: Duration::from_secs(30),
        locks: 100_000,
        lease: Duration::from_secs(30),
        crowd: 10_000,
    };

    /// Enough to see that everything runs.
    pub(crate) const QUICK: Self = Self {
        rounds: 2,
        length: Duration::from_millis(50),
        waits: 1,
        wait: Duration::from_millis(100),
        locks: 1000,
        lease: Duration::from_millis(500),
        crowd: 100,
    };

    /// Whether rates of this pace may be judged.
    pub(crate) fn is_enough(&self) -> bool {
        self.rounds >= Self::FULL.rounds && self.length >= Self::FULL.length
    }
}

/// A store to measure and how.
pub(crate) struct Bench {
    pub(crate) keeper: Keeper,
    pub(crate) requests: Requests,
    pub(crate) pace: Pace,
    usual: Box<dyn Contestant>,
    dropped: Box<dyn Contestant>,
    fifo: Box<dyn Contestant>,
    peers: Vec<Box<dyn Contestant>>,
    /// Where the files of peers are, on the disk of the store; `None` if it has no file.
    folder: Option<PathBuf>,
    /// The server that was started for this run, and what is measured on it beside the usual.
    zookeeper: Option<ZooKeeper>,
    /// The server, if the store is Redis; started by this program if the URL names none.
    pub(crate) redis: Option<redis::Server>,
}

impl Bench {
    pub(crate) async fn connect(url: &str, pace: Pace) -> Result<Self, Failure> {
        let requests = Requests::default();
        let (redis, mut zookeeper) = (redis::Server::of(url)?, ZooKeeper::for_url(url)?);
        let started = redis.as_ref().map(redis::Server::url).or(zookeeper.as_ref().map(ZooKeeper::url));
        let url = started.unwrap_or(url);
        let connector = requests.of(lockkeeper::url::connector(url)?);
        let keeper = Keeper::builder(connector).connect().await?;
        let folder = peers_folder(url)?;
        let mut usual: Box<dyn Contestant> = Box::new(KeeperPeer::usual(&keeper, &requests));
        let mut dropped: Box<dyn Contestant> = Box::new(DroppedPeer::new(&keeper, &requests));
        let mut fifo: Box<dyn Contestant> = Box::new(KeeperPeer::fifo(&keeper, &requests));
        let mut peers = peer::peers_of(&keeper, folder.as_deref());
        if let Some(server) = &redis {
            [usual, dropped, fifo] = [usual, dropped, fifo].map(|ours| server.metered(ours));
            peers = server.peers().await?;
        }
        if let Some(zookeeper) = &mut zookeeper {
            peers.extend(zookeeper.peers().await?);
        }
        Ok(Self { peers, folder, usual, dropped, fifo, keeper, requests, pace, redis, zookeeper })
    }

    pub(crate) fn folder(&self) -> Option<&Path> {
        self.folder.as_deref()
    }

    /// Which store it was, without secrets, and what has to be known of it.
    pub(crate) fn place(&self) -> String {
        let remarks = self.zookeeper.as_ref().map_or(String::new(), ZooKeeper::remarks);
        format!("`{}`{remarks}", self.keeper.url())
    }

    pub(crate) fn usual(&self) -> &dyn Contestant {
        &*self.usual
    }

    pub(crate) fn dropped(&self) -> &dyn Contestant {
        &*self.dropped
    }

    pub(crate) fn fifo(&self) -> &dyn Contestant {
        &*self.fifo
    }

    /// Whom Lockkeeper is compared with.
    pub(crate) fn peers(&self, workload: Workload) -> impl Iterator<Item = &dyn Contestant> {
        self.peers.iter().map(AsRef::as_ref).filter(move |peer: &&dyn Contestant| peer.takes_part(workload))
    }

    /// Measures a workload, again if its rates were inconclusive, and adds its rows to `rows`. If it fails,
    /// the rows of the attempt before are there.
    pub(crate) async fn run(&self, workload: Workload, rows: &mut Vec<Row>) -> Result<(), Failure> {
        let before = rows.len();
        for attempt in 1..=TRIES {
            eprintln!("{} ({attempt})", workload.word());
            let measured = self.measure(workload).await?;
            let conclusive = measured.iter().all(|row| row.verdict() != Some(Verdict::Inconclusive));
            rows.truncate(before);
            rows.extend(measured);
            if conclusive {
                break;
            }
        }
        Ok(())
    }

    async fn measure(&self, workload: Workload) -> Result<Vec<Row>, Failure> {
        let mut rows = match workload {
            Workload::W1 => rates::w1(self).await,
            Workload::W2 => rates::w2(self).await,
            Workload::W3 => rates::w3(self).await,
            Workload::W3p => match &self.redis {
                Some(server) => redis::w3p(server, &self.pace).await,
                None => processes::w3p(self).await,
            },
            Workload::W4 => waiting::w4(self).await,
            Workload::W4p => crowd::w4p(self).await,
            Workload::Held => held::held(self).await,
            Workload::GivenUp => given_up::given_up(self).await,
        }?;
        if let Some(zookeeper) = &self.zookeeper {
            rows.extend(zookeeper.measure(self, workload).await?);
        }
        Ok(rows)
    }
}

/// A folder of their own for the peers of a store in a file, beside it: on the same disk.
fn peers_folder(url: &str) -> Result<Option<PathBuf>, Failure> {
    let Some(path) = url.strip_prefix("sqlite:") else { return Ok(None) };
    let folder = PathBuf::from(format!("{path}-peers"));
    std::fs::create_dir_all(&folder)?;
    Ok(Some(folder))
}
