//! Redis' part: its server, which is asked for its work, its peers, and its goals.

mod peers;
mod pings;
mod python;

use std::{
    collections::HashSet,
    sync::{Arc, Mutex},
    time::Duration,
};

use lockkeeper::support;
use lockkeeper_testkit::servers;

use self::{
    peers::{BarePeer, RslockPeer},
    python::PythonPeer,
};
pub(crate) use self::{
    peers::{CLAIM, RELEASE},
    pings::{barest, ping, w3p},
};
use crate::{
    Failure,
    judge::{Limit, Median, Verdict},
    metered::Metered,
    rounds::{Contestant, Raced, Round, Served},
    table::Row,
    workload::{Pace, Workload},
};

/// The goals of waiting and draining.
pub(crate) const WAITING_GOALS: [(&str, Limit); 3] = [
    ("client CPU while 64 wait, % of a core", Limit::Below(0.5)),
    ("requests/s while 64 wait", Limit::AtMost(1.0)),
    ("drain of 64 waiters, ms", Limit::AtMost(20.0)),
];

/// The commands that scripts call on the server: they are counted there like commands that came to it.
const INSIDE: [&str; 25] = [
    "time", "mget", "get", "getrange", "set", "del", "type", "setrange", "lrange", "lindex", "lpos", "llen",
    "lset", "linsert", "lrem", "ltrim", "lpop", "rpush", "rename", "pexpire", "persist", "pttl", "publish",
    "spublish", "info",
];

/// One server, and a connection to ask it for its work.
#[derive(Clone)]
pub(crate) struct Server(Arc<Inner>);

struct Inner {
    url: String,
    connection: Mutex<redis::Connection>,
    /// Ends it when dropped.
    _own: Option<servers::Redis>,
}

impl Server {
    /// The server that `url` names, a new one if it is `redis:`, and none if the store is another.
    pub(crate) fn of(url: &str) -> Result<Option<Self>, Failure> {
        let own = if url == "redis:" { Some(servers::Redis::start()?) } else { None };
        let url = own.as_ref().map_or_else(|| url.to_owned(), servers::Redis::url);
        if !url.starts_with("redis://") {
            return Ok(None);
        }
        let connection = Mutex::new(redis::Client::open(plain(&url))?.get_connection()?);
        Ok(Some(Self(Arc::new(Inner { url, connection, _own: own }))))
    }

    pub(crate) fn url(&self) -> &str {
        &self.0.url
    }

    /// The same contestant, with the server's work in each round.
    pub(crate) fn metered(&self, inner: Box<dyn Contestant>) -> Box<dyn Contestant> {
        let server = self.clone();
        Box::new(Metered { inner, served: Box::new(move || server.served()) })
    }

    /// The peers that Lockkeeper is compared with.
    pub(crate) async fn peers(&self) -> Result<Vec<Box<dyn Contestant>>, Failure> {
        let url = plain(self.url());
        let mut peers = vec![
            self.metered(Box::new(BarePeer::connect(&url).await?)),
            self.metered(Box::new(RslockPeer::connect(&url)?)),
        ];
        match PythonPeer::find(&url) {
            Ok(python) => peers.push(self.metered(Box::new(python))),
            Err(error) => eprintln!("redis-py is missing, so nothing is compared with it: {error}"),
        }
        Ok(peers)
    }

    fn info(&self, section: &str) -> Result<String, Failure> {
        let mut connection = support::lock(&self.0.connection);
        Ok(redis::cmd("INFO").arg(section).query(&mut connection)?)
    }

    /// Removes the keys that a peer does not remove itself.
    fn forget(&self, keys: &[&str]) -> Result<(), Failure> {
        let mut connection = support::lock(&self.0.connection);
        Ok(redis::cmd("DEL").arg(keys).query(&mut connection)?)
    }

    /// Commands that came to it so far, and how long it worked on them.
    pub(crate) fn served(&self) -> Result<Served, Failure> {
        served_in(&self.info("commandstats")?).ok_or_else(|| "the server does not count its commands".into())
    }

    /// How often this command came to it so far.
    pub(crate) fn calls(&self, command: &str) -> Result<u64, Failure> {
        let info = self.info("commandstats")?;
        let fields = info.lines().find_map(|line| line.strip_prefix("cmdstat_")?.strip_prefix(command));
        let calls = fields.and_then(|fields| fields.strip_prefix(":calls=")?.split(',').next());
        Ok(calls.map_or(Ok(0), str::parse)?)
    }

    /// CPU time of its process so far.
    pub(crate) fn cpu(&self) -> Result<Duration, Failure> {
        let info = self.info("cpu")?;
        let seconds = |name: &str| {
            let line = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            line.and_then(|seconds| seconds.trim().parse::<f64>().ok())
        };
        let both = seconds("used_cpu_sys").zip(seconds("used_cpu_user"));
        let (sys, user) = both.ok_or("the server does not tell its CPU time")?;
        Ok(Duration::from_secs_f64(sys + user))
    }
}

/// The URL without Lockkeeper's own options.
fn plain(url: &str) -> String {
    url.split('?').next().unwrap_or(url).to_owned()
}

/// Reads lines such as `cmdstat_evalsha:calls=2,usec=9,...`. The time of a script includes the commands that it calls.
fn served_in(info: &str) -> Option<Served> {
    let inside: HashSet<&str> = INSIDE.into();
    let (mut commands, mut micros) = (0, 0);
    for line in info.lines() {
        let Some((name, fields)) = line.strip_prefix("cmdstat_").and_then(|line| line.split_once(':')) else {
            continue;
        };
        if inside.contains(name) {
            continue;
        }
        let field = |name: &str| {
            let field = fields.split(',').find_map(|field| field.strip_prefix(name)?.strip_prefix('='));
            field.and_then(|number| number.trim().parse::<u64>().ok())
        };
        commands += field("calls")?;
        micros += field("usec")?;
    }
    Some(Served { commands: Some(commands), busy: Duration::from_micros(micros) })
}

/// The goals of an acquisition and its release where nobody waits: the client's CPU and the server's time as multiples
/// of the bare scripts', and how many commands.
fn cost_goals(workload: Workload) -> Option<(Option<Limit>, Limit, Option<Limit>)> {
    match workload {
        Workload::W1 => Some((Some(Limit::AtMost(1.25)), Limit::AtMost(2.5), Some(Limit::AtMost(2.0)))),
        Workload::W2 => Some((None, Limit::AtMost(1.1), None)),
        _ => None,
    }
}

/// The rows, with those that compare costs with the bare scripts', if these took part.
pub(crate) fn judged(workload: Workload, rows: Vec<Row>, results: &[Raced<'_>], pace: &Pace) -> Vec<Row> {
    let bare = results.iter().find(|(contestant, _)| contestant.name() == peers::BARE);
    let (Some((_, bare)), Some((first, ours)), Some((client, server, commands))) =
        (bare, results.first(), cost_goals(workload))
    else {
        return rows;
    };
    let ratio = |what: &str, figure: fn(&Round) -> f64, limit: Option<Limit>| {
        let ratio = Median::of(ours.iter().zip(bare).map(|(ours, bare)| figure(ours) / figure(bare)));
        let row = Row::median(workload, first.name(), format!("{what} / {}", peers::BARE), ratio);
        match limit {
            Some(limit) if !pace.is_enough() => row.goal(limit, Verdict::TooShort),
            Some(limit) => row.goal(limit, limit.judge_rate(&ratio)),
            None => row,
        }
    };
    let commands: Vec<_> = commands.into_iter().map(|limit| ("commands each", limit)).collect();
    let mut rows: Vec<Row> = rows.into_iter().map(|row| row.held_to(first.name(), &commands)).collect();
    rows.push(ratio("client CPU", Round::cpu_micros, client));
    rows.push(ratio("server µs", |round| round.server_micros().unwrap_or(f64::NAN), Some(server)));
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_inside_of_scripts_are_not_counted() {
        let info = "# Commandstats\r\ncmdstat_evalsha:calls=4,usec=20,usec_per_call=5.00,rejected_calls=0\r\n\
                    cmdstat_set:calls=9,usec=3,usec_per_call=0.33\r\ncmdstat_client|id:calls=1,usec=2\r\n";
        let served = served_in(info).expect("lines of a server");
        assert_eq!((served.commands, served.busy), (Some(5), Duration::from_micros(22)));
        assert!(served_in("cmdstat_evalsha:calls=x").is_none());
    }
}
