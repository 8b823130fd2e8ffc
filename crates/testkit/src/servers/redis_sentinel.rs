//! One Redis master with two replicas, watched by three sentinels.

use std::{io, net::SocketAddr};

use super::{Answer, Redis, RedisOptions, until};
use crate::proxy::Proxy;

/// The name under which the sentinels know the master.
const NAME: &str = "main";

/// Three servers and three sentinels.
#[derive(Debug)]
pub struct RedisSentinel {
    servers: Vec<Redis>,
    sentinels: Vec<Redis>,
    /// The addresses to which the sentinels send clients, one for each server.
    announced: Vec<SocketAddr>,
    password: Option<String>,
}

impl RedisSentinel {
    /// Starts all six, and waits until the replicas are in step and the sentinels know each other.
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
        let servers: Vec<Redis> = (0..3).map(|_| options.clone().start()).collect::<io::Result<_>>()?;
        let (master, replicas) = (&servers[0], &servers[1..]);
        for replica in replicas {
            replica.follow(master)?;
        }
        // Two of them must agree; each begins with the master that it is told.
        let sentinels = (0..3)
            .map(|_| Redis::start_with("redis-sentinel", "redis-sentinel", RedisOptions::default()))
            .collect::<io::Result<_>>()?;
        let announced = servers.iter().map(Redis::address).collect();
        let all = Self { servers, sentinels, announced, password: options.secret().map(str::to_owned) };
        all.watch(all.announced[0])?;
        Ok(all)
    }

    /// Tells the sentinels where the master is, and waits until all is in order.
    fn watch(&self, master: SocketAddr) -> io::Result<()> {
        for sentinel in &self.sentinels {
            let port = master.port().to_string();
            sentinel.command(["SENTINEL", "MONITOR", NAME, "127.0.0.1", &port, "2"])?;
            for (what, value) in [
                ("auth-pass", self.password.as_deref().unwrap_or_default()),
                ("down-after-milliseconds", "2000"),
                ("failover-timeout", "3000"),
                ("parallel-syncs", "2"),
            ] {
                sentinel.command(["SENTINEL", "SET", NAME, what, value])?;
            }
        }
        self.until_settled()
    }

    /// Puts a proxy in front of each server, in the order of [`servers`](Self::servers): from now on that is where the
    /// sentinels send their clients.
    ///
    /// # Errors
    /// If the servers do not obey.
    pub fn behind_proxies(&mut self) -> io::Result<Vec<Proxy>> {
        let master = self.place(self.master()?.address())?;
        let start = |server: &Redis| Proxy::start(server.address());
        let proxies: Vec<Proxy> = self.servers.iter().map(start).collect::<io::Result<_>>()?;
        self.announced = proxies.iter().map(Proxy::address).collect();
        let ports: Vec<String> = self.announced.iter().map(|place| place.port().to_string()).collect();
        for (server, port) in self.servers.iter().zip(&ports) {
            server.command(["CONFIG", "SET", "replica-announce-port", port])?;
        }
        for (place, server) in self.servers.iter().enumerate().filter(|(place, _)| *place != master) {
            server.command(["REPLICAOF", "127.0.0.1", &ports[master]])?;
            until(&format!("replica {place} is in step"), || {
                let link = server.info("replication", "master_link_status")?;
                Ok(Answer::when(link == "up", link))
            })?;
        }
        for sentinel in &self.sentinels {
            sentinel.command(["SENTINEL", "REMOVE", NAME])?;
        }
        self.watch(self.announced[master])?;
        Ok(proxies)
    }

    /// Cuts a server off from the other servers and from the sentinels, but not from clients that are connected: their
    /// connections stay, and new ones are refused. `proxy` is the one in front of it.
    ///
    /// # Errors
    /// If the server does not obey.
    pub fn cut_off(&self, server: &Redis, proxy: &Proxy) -> io::Result<()> {
        proxy.refuse(true);
        until("replicas and sentinels are cut off", || {
            let clients = server.command(["CLIENT", "LIST"])?;
            let theirs = |line: &&str| line.contains(" name=sentinel-") || line.contains(" flags=S ");
            let ids =
                clients.lines().filter(theirs).filter_map(|line| line.strip_prefix("id=")?.split(' ').next());
            let ids: Vec<&str> = ids.collect();
            for id in &ids {
                // It may be gone by itself.
                server.command(["CLIENT", "KILL", "ID", id]).ok();
            }
            Ok(Answer::when(ids.is_empty(), clients.clone()))
        })
    }

    fn place(&self, address: SocketAddr) -> io::Result<usize> {
        let ours =
            |place: &usize| [self.announced[*place], self.servers[*place].address()].contains(&address);
        (0..self.servers.len())
            .find(ours)
            .ok_or_else(|| io::Error::other(format!("{address} is no server of ours")))
    }

    /// The lockkeeper URL: the sentinels and the master's name.
    pub fn url(&self) -> String {
        let sentinels: Vec<_> =
            self.sentinels.iter().map(|sentinel| sentinel.address().to_string()).collect();
        format!("redis+sentinel://{}{}/{NAME}", self.servers[0].login(), sentinels.join(","))
    }

    /// The servers, master and replicas, in no order.
    pub fn servers(&self) -> &[Redis] {
        &self.servers
    }

    /// The sentinels.
    pub fn sentinels(&self) -> &[Redis] {
        &self.sentinels
    }

    /// The server that the sentinels say is the master.
    ///
    /// # Errors
    /// If no sentinel can be asked.
    pub fn master(&self) -> io::Result<&Redis> {
        Ok(&self.servers[self.place(self.master_by(&self.sentinels[0])?)?])
    }

    fn master_by(&self, sentinel: &Redis) -> io::Result<SocketAddr> {
        let answer = sentinel.command(["SENTINEL", "GET-MASTER-ADDR-BY-NAME", NAME])?;
        let address = answer.lines().collect::<Vec<_>>().join(":");
        address.parse().map_err(|_| io::Error::other(format!("no address: {answer}")))
    }

    /// Has the sentinels make another server the master, and waits until that is so.
    ///
    /// # Errors
    /// If they do not manage.
    pub fn promote(&self) -> io::Result<()> {
        let before = self.master()?.address();
        until("the sentinels begin a failover", || {
            // They refuse while the last one is still going on, or while they see no good replica.
            Ok(match self.sentinels[0].command(["SENTINEL", "FAILOVER", NAME]) {
                Ok(_) => Answer::Yes,
                Err(error) => Answer::No(error.to_string()),
            })
        })?;
        self.until_master_is_not(before)
    }

    /// Waits until all sentinels name another master than this, and it says so itself.
    ///
    /// # Errors
    /// If that does not happen.
    pub fn until_master_is_not(&self, before: SocketAddr) -> io::Result<()> {
        let before = self.place(before)?;
        until("there is a new master", || {
            let named = self
                .sentinels
                .iter()
                .map(|sentinel| self.master_by(sentinel))
                .collect::<io::Result<Vec<_>>>()?;
            let named: Vec<usize> =
                named.into_iter().map(|master| self.place(master)).collect::<io::Result<_>>()?;
            let agreed = named.iter().all(|master| *master == named[0] && *master != before);
            if !agreed {
                return Ok(Answer::No(format!("{named:?}")));
            }
            let role = self.master()?.info("replication", "role")?;
            Ok(Answer::when(role == "master", role))
        })
    }

    /// Waits until one master has two replicas in step, and all sentinels see each other and both replicas.
    ///
    /// # Errors
    /// If that does not happen; also if a server is dead.
    pub fn until_settled(&self) -> io::Result<()> {
        until("all replicas and sentinels are there", || {
            for sentinel in &self.sentinels {
                let state = sentinel.command(["INFO", "sentinel"])?;
                if !state.contains("status=ok,") || !state.contains("slaves=2,sentinels=3") {
                    return Ok(Answer::No(state));
                }
            }
            let master = self.master()?.command(["INFO", "replication"])?;
            let in_step = master.lines().filter(|line| line.contains("state=online")).count();
            Ok(Answer::when(master.contains("role:master") && in_step == 2, master))
        })
    }
}
