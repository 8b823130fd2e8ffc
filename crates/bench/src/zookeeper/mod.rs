//! What is measured on ZooKeeper: beside the usual workloads, the requests that arrive at the server, the
//! lock between processes, and the order of waiters. For `zookeeper:` the harness starts a server of its own
//! and has three peers: the lock recipe of the crate `zookeeper-client`, that of Apache Curator, and a bare
//! creation and removal of a node, which is what no lock can do without.

mod curator;
mod peers;
mod processes;
mod requests;
mod ring;
mod waiting;

use std::collections::HashMap;

use lockkeeper_testkit::servers;

use crate::{
    Failure,
    bench::{Bench, Workload},
    rounds::Contestant,
    table::Row,
};
use curator::{Curator, Program};
use peers::{BarePeer, RecipePeer};
pub(crate) use processes::{child, ring_child};

const LOCKKEEPER: &str = "lockkeeper";
const RECIPE: &str = "recipe";
const CURATOR: &str = "Curator";
const BARE: &str = "bare";

/// A server, and the peers on it.
pub(crate) struct ZooKeeper {
    server: servers::ZooKeeper,
    url: String,
    /// Whose sessions are which.
    sessions: HashMap<&'static str, Vec<i64>>,
    recipe: Option<RecipePeer>,
    curator: Option<Curator>,
    /// Why Curator does not take part.
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

    /// Where the server is.
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

    /// What has to be known beside the figures.
    pub(crate) fn remarks(&self) -> String {
        let peer = match &self.without_curator {
            None => String::new(),
            Some(why) => format!(", without Curator ({why})"),
        };
        format!(", one server with forceSync=no for all alike{peer}")
    }

    /// What is measured here beside the usual.
    pub(crate) async fn measure(&self, bench: &Bench, workload: Workload) -> Result<Vec<Row>, Failure> {
        match workload {
            Workload::W1 => self.requests(bench).await,
            Workload::W3p => self.w3p(bench).await,
            Workload::W4 => self.waiting(bench).await,
            Workload::W2 | Workload::W3 | Workload::W4p | Workload::Held | Workload::GivenUp => {
                Ok(Vec::new())
            }
        }
    }
}
