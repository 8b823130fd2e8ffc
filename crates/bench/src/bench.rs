//! The store of a run, and the contestants on it: Lockkeeper in its variants, and the peers of the store.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use lockkeeper::Keeper;
use lockkeeper_testkit::counting::RequestCounter;

use crate::{
    Failure,
    files::{FileLockPeer, FlockPeer, RowPeer},
    peers::{DroppedPeer, KeeperPeer, TokioPeer},
    quorum, redis,
    rounds::Contestant,
    sql,
    workload::{Pace, Workload},
    zookeeper::ZooKeeper,
};

/// A store to measure and how.
pub(crate) struct Bench {
    pub(crate) keeper: Keeper,
    pub(crate) requests: RequestCounter,
    pub(crate) pace: Pace,
    usual: Box<dyn Contestant>,
    dropped: Box<dyn Contestant>,
    fifo: Box<dyn Contestant>,
    peers: Vec<Box<dyn Contestant>>,
    /// The folder of the peers' files, on the disk of the store; `None` if it has no file.
    folder: Option<PathBuf>,
    /// The server that was started for this run, with the measurements that only ZooKeeper has.
    pub(crate) zookeeper: Option<ZooKeeper>,
    /// The server, if the store is Redis; started by this program if the URL names none.
    pub(crate) redis: Option<redis::Server>,
    /// The servers that were started for a quorum.
    pub(crate) quorum: Option<quorum::Members>,
    /// The PostgreSQL or MariaDB server that was started for this run.
    pub(crate) sql: Option<Sql>,
}

/// A database, and Lockkeeper on it with everything counted that goes there.
pub(crate) struct Sql {
    pub(crate) server: sql::Server,
    pub(crate) relayed: sql::Relayed,
}

impl Bench {
    pub(crate) async fn connect(url: &str, mut pace: Pace) -> Result<Self, Failure> {
        let requests = RequestCounter::default();
        let (redis, mut zookeeper) = (redis::Server::of(url)?, ZooKeeper::for_url(url)?);
        let database = sql::Server::for_url(url)?;
        let quorum = quorum::Members::for_url(url).await?;
        let of_quorum = quorum.as_ref().map(quorum::Members::url);
        let of_database = database.as_ref().map(sql::Server::url);
        let started = redis.as_ref().map(redis::Server::url).or(zookeeper.as_ref().map(ZooKeeper::url));
        let url = started.or(of_database.as_deref()).or(of_quorum.as_deref()).unwrap_or(url);
        if sql::Kind::of(url).is_some() {
            pace.locks = pace.locks.min(sql::HELD);
        }
        let connector = requests.of(lockkeeper::url::connector(url)?);
        let keeper = Keeper::builder(connector).connect().await?;
        let folder = peers_folder(url)?;
        let mut usual: Box<dyn Contestant> = Box::new(KeeperPeer::usual(&keeper, &requests));
        let mut dropped: Box<dyn Contestant> = Box::new(DroppedPeer::new(&keeper, &requests));
        let mut fifo: Box<dyn Contestant> = Box::new(KeeperPeer::fifo(&keeper, &requests));
        let mut peers = peers_of(&keeper, folder.as_deref());
        if let Some(server) = &redis {
            [usual, dropped, fifo] = [usual, dropped, fifo].map(|ours| server.metered(ours));
            peers = server.peers().await?;
        }
        if let Some(zookeeper) = &mut zookeeper {
            peers.extend(zookeeper.peers().await?);
        }
        if let Some(members) = &quorum {
            [usual, dropped, fifo] = [usual, dropped, fifo].map(|ours| members.metered(ours));
            peers = members.peers().await?;
        }
        let mut sql = None;
        if let Some(server) = database {
            [usual, dropped, fifo] = [usual, dropped, fifo].map(|ours| server.metered(ours));
            peers = server.peers();
            sql = Some(Sql { relayed: sql::Relayed::connect(&server).await?, server });
        }
        Ok(Self {
            peers,
            folder,
            usual,
            dropped,
            fifo,
            keeper,
            requests,
            pace,
            redis,
            zookeeper,
            quorum,
            sql,
        })
    }

    pub(crate) fn folder(&self) -> Option<&Path> {
        self.folder.as_deref()
    }

    /// Describes the store, without secrets, with the remarks that readers of the figures need.
    pub(crate) fn description(&self) -> String {
        let remarks = self.zookeeper.as_ref().map_or(String::new(), ZooKeeper::remarks);
        format!("`{}`{remarks}", self.keeper.url())
    }

    /// How many locks a full run holds.
    pub(crate) fn full_locks(&self) -> usize {
        if sql::Kind::of(self.keeper.url()).is_some() { sql::HELD } else { Pace::FULL.locks }
    }

    /// CPU time of the server so far, if it tells.
    pub(crate) fn server_cpu(&self) -> Result<Option<Duration>, Failure> {
        match (&self.redis, &self.sql) {
            (Some(server), _) => server.cpu().map(Some),
            (None, Some(sql)) => sql.server.cpu().map(Some),
            (None, None) => Ok(None),
        }
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

    /// The peers that Lockkeeper is compared with in this workload.
    pub(crate) fn peers(&self, workload: Workload) -> impl Iterator<Item = &dyn Contestant> {
        self.peers.iter().map(AsRef::as_ref).filter(move |peer: &&dyn Contestant| peer.takes_part(workload))
    }
}

/// A folder of their own for the peers of a store in a file, beside it: on the same disk.
fn peers_folder(url: &str) -> Result<Option<PathBuf>, Failure> {
    let Some(path) = url.strip_prefix("sqlite:") else { return Ok(None) };
    let folder = PathBuf::from(format!("{path}-peers"));
    std::fs::create_dir_all(&folder)?;
    Ok(Some(folder))
}

/// The peers that Lockkeeper is compared with on this store. A store that comes with peers adds them here.
fn peers_of(keeper: &Keeper, folder: Option<&Path>) -> Vec<Box<dyn Contestant>> {
    match (keeper.capability().store, folder) {
        ("memory", _) => vec![Box::new(TokioPeer::default())],
        ("sqlite", Some(folder)) => vec![
            Box::new(FlockPeer { folder: folder.to_owned() }),
            Box::new(FileLockPeer { folder: folder.to_owned() }),
            Box::new(RowPeer { file: folder.join("rows.db") }),
        ],
        _ => Vec::new(),
    }
}
