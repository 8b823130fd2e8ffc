//! Measurements on ZooKeeper: beside the usual workloads, the requests that arrive at the server, the lock between
//! processes, and the order of waiters. For `zookeeper:` the harness starts a server of its own and has three peers:
//! the lock recipe of the crate `zookeeper-client`, that of Apache Curator, and a bare creation and removal of a node,
//! which no lock can do without.

mod curator;
mod peers;
pub(crate) mod processes;
mod requests;
mod ring;
mod waiting;

use std::{collections::HashMap, io};

use lockkeeper_testkit::servers;

use crate::{Failure, rounds::Contestant};
use curator::{Curator, Program};
use peers::{BarePeer, RecipePeer};

const LOCKKEEPER: &str = "lockkeeper";
const RECIPE: &str = "recipe";
const CURATOR: &str = "Curator";
const BARE: &str = "bare";

/// A server, and the peers on it.
pub(crate) struct ZooKeeper {
    server: servers::ZooKeeper,
    url: String,
    /// The sessions of each contestant.
    sessions: HashMap<&'static str, Vec<i64>>,
    recipe: Option<RecipePeer>,
    curator: Option<Curator>,
    /// The reason why Curator does not take part.
    without_curator: Option<String>,
}

impl ZooKeeper {
    /// Starts a server if `url` asks for one.
    pub(crate) fn for_url(url: &str) -> Result<Option<Self>, Failure> {
        if url != "zookeeper:" {
            return Ok(None);
        }
        let server = servers::ZooKeeper::start()?;
        let url = server.url();
        let (sessions, without_curator) = (HashMap::new(), None);
        Ok(Some(Self { server, url, sessions, recipe: None, curator: None, without_curator }))
    }

    /// The URL of the server.
    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// The server as its own clients write it.
    fn address(&self) -> String {
        self.server.nodes()[0].address().to_string()
    }

    /// Lets the peers in, after Lockkeeper: the sessions that are there by now are its own.
    pub(crate) async fn peers(&mut self) -> Result<Vec<Box<dyn Contestant>>, Failure> {
        let ours = self.received()?.into_keys().collect();
        let recipe = RecipePeer::connect(&self.address()).await?;
        let bare = BarePeer::connect(&self.address()).await?;
        self.sessions = HashMap::from([
            (LOCKKEEPER, ours),
            (RECIPE, vec![recipe.session()]),
            (BARE, vec![bare.session()]),
        ]);
        self.recipe = Some(recipe.clone());
        let mut peers: Vec<Box<dyn Contestant>> = vec![Box::new(bare), Box::new(recipe)];
        match Program::compile() {
            Ok(program) => {
                let curator = Curator::start(program, &self.address())?;
                self.sessions.insert(CURATOR, vec![curator.session()]);
                peers.push(Box::new(curator.clone()));
                self.curator = Some(curator);
            }
            Err(why) => {
                eprintln!("Curator takes no part: {why}");
                self.without_curator = Some(why);
            }
        }
        Ok(peers)
    }

    /// Remarks that readers of the figures need.
    pub(crate) fn remarks(&self) -> String {
        let peer = match &self.without_curator {
            None => String::new(),
            Some(why) => format!(", without Curator ({why})"),
        };
        format!(", one server with forceSync=no for all alike{peer}")
    }
    /// The number of requests that the server has received so far, by session.
    pub(super) fn received(&self) -> io::Result<HashMap<i64, u64>> {
        Ok(received_in(&self.server.nodes()[0].ask("cons")?))
    }

    /// The number of requests that the server has received from `who` so far.
    pub(super) fn received_of(&self, who: &str) -> io::Result<u64> {
        let received = self.received()?;
        let sessions = self.sessions.get(who).into_iter().flatten();
        Ok(sessions.filter_map(|session| received.get(session)).sum())
    }

    /// All whose requests are counted.
    pub(super) fn counted(&self) -> impl Iterator<Item = &'static str> {
        [LOCKKEEPER, RECIPE, CURATOR, BARE].into_iter().filter(|who| self.sessions.contains_key(who))
    }
}

/// Reads the answer to `cons`: a line for each connection, with its session unless it has none.
fn received_in(answer: &str) -> HashMap<i64, u64> {
    let field = |line: &str, name: &str| {
        let (_, rest) = line.split_once(name)?;
        rest.split([',', ')']).next().map(str::to_owned)
    };
    let connection = |line: &str| {
        let session = field(line, "sid=0x")?;
        let session = u64::from_str_radix(&session, 16).ok()?.cast_signed();
        Some((session, field(line, "recved=")?.parse().ok()?))
    };
    answer.lines().filter_map(connection).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_of_sessions_are_counted() {
        let answer = "\
 /127.0.0.1:41734[1](queued=0,recved=12,sent=13,sid=0x10000f7e0a80000,lop=PING,est=1,to=10000,lcxid=0x0)
 /127.0.0.1:41740[1](queued=0,recved=7,sent=7,sid=0xffff000000000001,lop=GETC)
 /127.0.0.1:41736[0](queued=0,recved=1,sent=0)
";
        let received = received_in(answer);
        assert_eq!(received.len(), 2);
        assert_eq!(received.get(&0x10000f7e0a80000), Some(&12));
        assert_eq!(received.get(&0xffff000000000001_u64.cast_signed()), Some(&7));
    }
}
