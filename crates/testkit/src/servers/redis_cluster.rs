//! A Redis cluster of three masters with one replica each.

use std::{
    collections::HashMap,
    io,
    sync::Mutex,
    thread,
    time::{Duration, Instant},
};

use lockkeeper_core::support;

use super::{Answer, Redis, RedisOptions, until};
use crate::{port::Port, proxy::Proxy};

const MASTERS: usize = 3;
const SLOTS: usize = 16_384;
/// Longer than a busy machine may let a healthy server wait.
const NODE_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a server remembers the votes of its last election (of 7.0.15). Told to stand again earlier, it takes them
/// for new ones. Then it is a master for a tenth of a second. No other server believes in it, and its answers are lost.
const VOTES_LAST: Duration = Duration::from_secs(4 * NODE_TIMEOUT.as_secs() + 1);

/// Six servers that share the slots between them.
#[derive(Debug)]
pub struct RedisCluster {
    servers: Vec<Redis>,
    ids: Vec<String>,
    /// Those on which the servers talk among themselves.
    bus_ports: Vec<Port>,
    /// When each server was last elected.
    elected: Mutex<HashMap<usize, Instant>>,
}

/// A member of the cluster as a server describes it.
struct Member {
    id: String,
    master: bool,
    /// The master that it follows, or a dash.
    follows: String,
    slots: Vec<(u16, u16)>,
}

impl RedisCluster {
    /// Starts all six and joins them, and waits until all slots are served and all replicas in step.
    ///
    /// # Errors
    /// If a program is missing, or they do not find each other.
    pub fn start() -> io::Result<Self> {
        Self::start_with(&RedisOptions::default())
    }

    /// Starts all six, with servers that are set up so.
    ///
    /// # Errors
    /// If a program is missing, or they do not find each other.
    pub fn start_with(options: &RedisOptions) -> io::Result<Self> {
        let ports: Vec<Port> = (0..2 * MASTERS).map(|_| Port::free()).collect::<io::Result<_>>()?;
        let start = |port: &Port| {
            let member = options.clone().setting("cluster-enabled yes");
            let member = member.setting(format!("cluster-node-timeout {}", NODE_TIMEOUT.as_millis()));
            // Each replica stays with its master.
            let member = member.setting("cluster-allow-replica-migration no");
            member.setting(format!("cluster-port {}", port.number())).start()
        };
        let servers: Vec<Redis> = ports.iter().map(start).collect::<io::Result<_>>()?;
        let ids =
            servers.iter().map(|server| server.command(["CLUSTER", "MYID"])).collect::<io::Result<_>>()?;
        let cluster = Self { servers, ids, bus_ports: ports, elected: Mutex::default() };
        cluster.join()?;
        Ok(cluster)
    }

    fn join(&self) -> io::Result<()> {
        for (place, server) in self.servers.iter().enumerate() {
            // Different from the start, so that nobody has to yield.
            server.command(["CLUSTER", "SET-CONFIG-EPOCH", &(place + 1).to_string()])?;
            if place < MASTERS {
                let (from, to) = (place * SLOTS / MASTERS, (place + 1) * SLOTS / MASTERS - 1);
                server.command(["CLUSTER", "ADDSLOTSRANGE", &from.to_string(), &to.to_string()])?;
            }
            let (first, port) = (&self.servers[0].address(), &self.bus_ports[0]);
            server.command([
                "CLUSTER",
                "MEET",
                "127.0.0.1",
                &first.port().to_string(),
                &port.number().to_string(),
            ])?;
        }
        self.until_all(
            "knows all members",
            |server| server.command(["CLUSTER", "INFO"]),
            |info| info.contains("cluster_known_nodes:6") && info.contains("cluster_state:ok"),
        )?;
        for (place, replica) in self.servers.iter().enumerate().skip(MASTERS) {
            replica.command(["CLUSTER", "REPLICATE", &self.ids[place - MASTERS]])?;
        }
        self.until_settled()
    }

    /// Waits until every server that runs sees all slots served by masters that each have a replica, and every
    /// replica is in step.
    ///
    /// # Errors
    /// If that does not happen.
    pub fn until_settled(&self) -> io::Result<()> {
        for server in self.servers.iter().filter(|server| server.process().id().is_some()) {
            until(&format!("{} is settled in its cluster", server.address()), || {
                let Ok(info) = server.command(["CLUSTER", "INFO"]) else {
                    return Ok(Answer::No("no answer".into()));
                };
                let members = server.command(["CLUSTER", "NODES"])?;
                let roles = server.command(["INFO", "replication"])?;
                let known = parse(&members);
                let has_replica = |id: &String| known.iter().any(|member| member.follows == *id);
                let masters = known.iter().filter(|member| member.master && !member.slots.is_empty());
                let masters = masters.filter(|member| has_replica(&member.id)).count();
                let in_step = roles.contains("role:master") || roles.contains("master_link_status:up");
                let settled = info.contains("cluster_state:ok") && masters == MASTERS && in_step;
                Ok(Answer::when(settled, format!("{info}\n{members}\n{roles}")))
            })?;
        }
        Ok(())
    }

    fn until_all(
        &self,
        what: &str,
        ask: impl Fn(&Redis) -> io::Result<String>,
        good: impl Fn(&str) -> bool,
    ) -> io::Result<()> {
        for server in &self.servers {
            until(&format!("{} {what}", server.address()), || {
                let answer = ask(server)?;
                Ok(Answer::when(good(&answer), answer))
            })?;
        }
        Ok(())
    }

    /// Puts a proxy in front of each server, in the order of [`servers`](Self::servers): from now on that is where
    /// the servers send their clients.
    ///
    /// # Errors
    /// If the servers do not obey.
    pub fn behind_proxies(&self) -> io::Result<Vec<Proxy>> {
        let start = |server: &Redis| {
            let proxy = Proxy::start(server.address())?;
            let port = proxy.address().port().to_string();
            server.command(["CONFIG", "SET", "cluster-announce-port", &port])?;
            Ok(proxy)
        };
        let proxies: Vec<Proxy> = self.servers.iter().map(start).collect::<io::Result<_>>()?;
        let places = proxies.iter().map(|proxy| format!("{}@", proxy.address())).collect::<Vec<_>>();
        self.until_all(
            "knows all proxies",
            |server| server.command(["CLUSTER", "NODES"]),
            |members| places.iter().all(|place| members.contains(place)),
        )?;
        Ok(proxies)
    }

    /// The lockkeeper URL: some of the servers.
    pub fn url(&self) -> String {
        let servers: Vec<_> =
            self.servers.iter().take(MASTERS).map(|server| server.address().to_string()).collect();
        format!("redis+cluster://{}{}", self.servers[0].login(), servers.join(","))
    }

    /// All servers: first those that started as masters, then, in the same order, their replicas.
    pub fn servers(&self) -> &[Redis] {
        &self.servers
    }

    fn living(&self) -> io::Result<&Redis> {
        let living = self.servers.iter().find(|server| server.command(["PING"]).is_ok());
        living.ok_or_else(|| io::Error::other("no server of the cluster answers"))
    }

    /// The place in [`servers`](Self::servers) of the master of a slot.
    ///
    /// # Errors
    /// If the slot is not served.
    pub fn master_of(&self, slot: u16) -> io::Result<usize> {
        let members = parse(&self.living()?.command(["CLUSTER", "NODES"])?);
        let has = |member: &&Member| {
            member.master && member.slots.iter().any(|(from, to)| (*from..=*to).contains(&slot))
        };
        let id = members.iter().find(has).map(|member| &member.id);
        let place = id.and_then(|id| self.ids.iter().position(|other| other == id));
        place.ok_or_else(|| io::Error::other(format!("slot {slot} is not served")))
    }

    /// The slot of a key.
    ///
    /// # Errors
    /// If no server can be asked.
    pub fn slot_of(&self, key: &str) -> io::Result<u16> {
        let answer = self.living()?.command(["CLUSTER", "KEYSLOT", key])?;
        answer.parse().map_err(|_| io::Error::other(format!("no slot: {answer}")))
    }

    /// Begins to move a slot: from now on keys that its old master does not have are asked for at the new one.
    ///
    /// # Errors
    /// If the servers do not obey.
    pub fn begin_move(&self, slot: u16, to: usize) -> io::Result<()> {
        let from = self.master_of(slot)?;
        let slot = slot.to_string();
        self.servers[to].command(["CLUSTER", "SETSLOT", &slot, "IMPORTING", &self.ids[from]])?;
        self.servers[from].command(["CLUSTER", "SETSLOT", &slot, "MIGRATING", &self.ids[to]]).map(drop)
    }

    /// Moves up to `most` keys of a slot whose move has begun; says how many that were.
    ///
    /// # Errors
    /// If the servers do not obey.
    pub fn move_keys(&self, slot: u16, to: usize, most: usize) -> io::Result<usize> {
        let from = &self.servers[self.master_of(slot)?];
        let keys = from.command(["CLUSTER", "GETKEYSINSLOT", &slot.to_string(), &most.to_string()])?;
        let keys: Vec<&str> = keys.lines().filter(|key| !key.is_empty()).collect();
        if keys.is_empty() {
            return Ok(0);
        }
        let port = self.servers[to].address().port().to_string();
        let mut command = vec!["MIGRATE", "127.0.0.1", &port, "", "0", "5000", "KEYS"];
        command.extend(&keys);
        from.command(command)?;
        Ok(keys.len())
    }

    /// Ends a move: the slot belongs to its new master.
    ///
    /// # Errors
    /// If the servers do not obey, or keys are left.
    pub fn end_move(&self, slot: u16, to: usize) -> io::Result<()> {
        let from = self.master_of(slot)?;
        let masters =
            [to, from].into_iter().chain((0..self.servers.len()).filter(|place| ![to, from].contains(place)));
        for place in masters {
            let server = &self.servers[place];
            if server.info("replication", "role")? == "master" {
                server.command(["CLUSTER", "SETSLOT", &slot.to_string(), "NODE", &self.ids[to]])?;
            }
        }
        Ok(())
    }

    /// Moves a slot with all its keys, while others may use it.
    ///
    /// # Errors
    /// If the servers do not obey.
    pub fn move_slot(&self, slot: u16, to: usize) -> io::Result<()> {
        self.begin_move(slot, to)?;
        while self.move_keys(slot, to, 10)? > 0 {}
        self.end_move(slot, to)
    }

    /// Makes a replica of a slot's master take its place, and gives the place of the new one. Without `force` the old
    /// master is asked first and nothing is lost; with it, writes that it had not sent yet are.
    ///
    /// # Errors
    /// If there is no replica, or it does not become the master.
    pub fn promote(&self, slot: u16, force: bool) -> io::Result<usize> {
        let old = self.master_of(slot)?;
        let listed = self.servers[old].command(["CLUSTER", "REPLICAS", &self.ids[old]])?;
        let replica = self.ids.iter().position(|id| listed.contains(id.as_str()) && *id != self.ids[old]);
        let new = replica.ok_or_else(|| io::Error::other(format!("no replica: {listed}")))?;
        let mut elected = support::lock(&self.elected);
        if let Some(last) = elected.get(&new).filter(|_| !force) {
            thread::sleep(VOTES_LAST.saturating_sub(last.elapsed()));
        }
        let order: &[&str] =
            if force { &["CLUSTER", "FAILOVER", "TAKEOVER"] } else { &["CLUSTER", "FAILOVER"] };
        let mut ordered: Option<Instant> = None;
        until(&format!("{} is a master", self.servers[new].address()), || {
            // An order lapses after five seconds; masters do not vote twice in ten about one of them.
            if ordered.is_none_or(|at| at.elapsed() > Duration::from_secs(6)) {
                self.servers[new].command(order)?;
                ordered = Some(Instant::now());
            }
            let role = self.servers[new].info("replication", "role")?;
            Ok(Answer::when(role == "master", role))
        })?;
        elected.insert(new, Instant::now());
        drop(elected);
        self.until_all_agree(slot, new).map_err(|error| {
            let logs = [old, new].map(|place| self.servers[place].process().end_of_log());
            io::Error::new(
                error.kind(),
                format!("{error}\nthe old one:\n{}\nthe new one:\n{}", logs[0], logs[1]),
            )
        })?;
        Ok(new)
    }

    /// Waits until every server that runs knows this one as the master of the slot.
    fn until_all_agree(&self, slot: u16, master: usize) -> io::Result<()> {
        for server in self.servers.iter().filter(|server| server.process().id().is_some()) {
            until(&format!("{} knows the new master", server.address()), || {
                let text = server.command(["CLUSTER", "NODES"])?;
                let of =
                    |member: &Member| member.slots.iter().any(|(from, to)| (*from..=*to).contains(&slot));
                let agreed = parse(&text).iter().any(|member| member.id == self.ids[master] && of(member));
                Ok(Answer::when(agreed, text))
            })?;
        }
        Ok(())
    }
}

/// Reads the answer to `CLUSTER NODES`: id, address, flags, master, ping, pong, epoch, link, slots.
fn parse(text: &str) -> Vec<Member> {
    let member = |line: &str| {
        let words: Vec<&str> = line.split(' ').collect();
        // A slot on the move stands in brackets, after those that are served.
        let slots = words.get(8..).unwrap_or_default().iter().filter(|word| !word.starts_with('['));
        let range = |word: &&str| {
            let (from, to) = word.split_once('-').unwrap_or((word, word));
            Some((from.parse().ok()?, to.trim_end().parse().ok()?))
        };
        let flags = words.get(2)?;
        Some(Member {
            id: words[0].to_owned(),
            master: flags.contains("master") && !flags.contains("fail"),
            follows: words.get(3)?.to_string(),
            slots: slots.filter_map(range).collect(),
        })
    };
    text.lines().filter_map(member).collect()
}
