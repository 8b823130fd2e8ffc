//! Members that lose their data, and names that lead to other servers, in virtual time, and the votes of these members.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use lockkeeper_core::{
    Keeper, StoreError,
    memory::MemoryServer,
    store::Connector,
    testing::{Network, VirtualClock},
};
use tokio::time::{Instant, sleep, timeout};

const URL: &str = "quorum:memory:0,memory:1,memory:2";

fn secs(count: u64) -> Duration {
    Duration::from_secs(count)
}

/// Names of servers, and the servers that they lead new connections to.
struct World {
    clock: VirtualClock,
    servers: Arc<Mutex<Vec<MemoryServer>>>,
}

struct Client {
    keeper: Keeper,
    networks: Vec<Network>,
}

impl World {
    fn new(members: usize) -> Self {
        let clock = VirtualClock::new();
        let servers = (0..members).map(|_| MemoryServer::new(clock.clock())).collect();
        Self { clock, servers: Arc::new(Mutex::new(servers)) }
    }

    async fn founded() -> Self {
        let world = Self::new(4);
        lockkeeper_quorum::found_fresh(URL, world.member(&[])).await.expect("founded");
        world
    }

    fn server(&self, name: usize) -> MemoryServer {
        self.servers.lock().expect("not poisoned")[name].clone()
    }

    /// From now on this name leads to another, empty server, with another id.
    fn leads_elsewhere(&self, name: usize) {
        self.servers.lock().expect("not poisoned")[name] = MemoryServer::new(self.clock.clock());
    }

    fn member(&self, networks: &[Network]) -> impl Fn(&str) -> Result<Connector, StoreError> + use<> {
        let (servers, networks) = (self.servers.clone(), networks.to_vec());
        move |url| {
            let name: usize = url.trim_start_matches("memory:").parse().expect("a number");
            let connector = servers.lock().expect("not poisoned")[name].connector(url);
            Ok(networks.get(name).map_or(connector.clone(), |network| network.wrap(connector)))
        }
    }

    async fn connect(&self, url: &str) -> Result<Client, StoreError> {
        let networks: Vec<Network> = (0..4).map(|_| Network::new()).collect();
        let connector = lockkeeper_quorum::connector(url, self.member(&networks))?;
        let keeper = Keeper::builder(connector).virtual_time(self.clock.clock()).connect().await?;
        Ok(Client { keeper, networks })
    }

    async fn client(&self) -> Client {
        self.connect(URL).await.expect("connected")
    }
}

async fn can_lock(client: &Client, name: &str) -> bool {
    match client.keeper.mutex(name).try_lock().await {
        Ok(Some(guard)) => guard.release().await.is_ok(),
        _ => false,
    }
}

/// A member that restarts without data is another server for all that is known. It comes back with a new member id.
#[tokio::test(start_paused = true)]
async fn a_member_that_comes_back_empty_with_another_id_votes_again_for_all_clients() {
    let world = World::founded().await;
    // The name leads to an empty server with another id, also for those who start now.
    world.leads_elsewhere(2);
    let during = world.client().await;
    let guard = during.keeper.mutex("stock").lock().await.expect("two vote");
    sleep(secs(90)).await;
    assert!(guard.is_held(), "a majority has it all the while");
    let token = guard.token();
    guard.release().await.expect("released");
    let after = world.client().await;
    after.networks[0].cut();
    let guard =
        timeout(secs(10), after.keeper.mutex("stock").lock()).await.expect("in time").expect("granted");
    assert!(guard.token() > token);
}

/// Clients that reach different empty servers at one place do not keep both from voting.
#[tokio::test(start_paused = true)]
async fn two_empty_servers_behind_one_name_do_not_take_turns_for_ever() {
    let world = World::founded().await;
    let old = world.client().await;
    world.server(2).lose_data();
    world.leads_elsewhere(2);
    let new = world.client().await;
    let mut votes = false;
    for _ in 0..40 {
        sleep(secs(5)).await;
        for client in [&old, &new] {
            client.networks[0].cut();
            votes |= can_lock(client, "stock").await;
            client.networks[0].restore();
        }
    }
    assert!(votes, "one of them voted");
}

/// A name leads some clients to another, empty server, while others still reach the one from before. They must not be
/// two voters for one place.
#[tokio::test(start_paused = true)]
async fn two_servers_behind_one_name_are_never_two_members() {
    let world = World::founded().await;
    let old = world.client().await;
    world.leads_elsewhere(2);
    let new = world.client().await;
    // One has members 0 and the old 2, the other one has members 1 and the new 2, and both hold on for long.
    old.networks[1].cut();
    new.networks[0].cut();
    let until = Instant::now() + secs(400);
    let (clients, mut granted) = ([&old, &new], [0, 0]);
    for nth in 0.. {
        if Instant::now() >= until {
            break;
        }
        let mut held = Vec::new();
        for client in [nth % 2, (nth + 1) % 2] {
            let tried = clients[client].keeper.mutex("stock").lease(secs(60)).try_lock().await;
            if let Ok(Some(guard)) = tried {
                granted[client] += 1;
                held.push(guard);
            }
        }
        assert!(held.iter().filter(|guard| guard.is_held()).count() < 2, "two hold it");
        // Both see all members from time to time, so that they can do their work on member ids.
        let looks = Instant::now().duration_since(until - secs(400)).as_secs() % 20 < 5;
        for (network, cut) in [(&old.networks[1], !looks), (&new.networks[0], !looks)] {
            if cut { network.cut() } else { network.restore() }
        }
        drop(held);
        sleep(Duration::from_millis(700)).await;
    }
    assert!(granted.iter().all(|count| *count > 10), "{granted:?}: nobody is shut out for good");
}

/// A holder that hears of another server at a place must not count the one before, although that answers as ever.
#[tokio::test(start_paused = true)]
async fn a_hold_by_a_server_that_lost_its_place_ends_in_time() {
    let world = World::founded().await;
    let old = world.client().await;
    // Members 0 and 2 grant.
    old.networks[1].cut();
    let guard = old.keeper.mutex("stock").lease(secs(60)).lock().await.expect("granted");
    world.leads_elsewhere(2);
    let new = world.client().await;
    let began = Instant::now();
    let mutex = new.keeper.mutex("stock");
    let next =
        tokio::spawn(async move { mutex.lock_within(secs(300)).await.map(|guard| (guard, Instant::now())) });
    while Instant::now() < began + secs(200) {
        assert!(!(guard.is_held() && next.is_finished()), "two hold it");
        sleep(Duration::from_millis(100)).await;
    }
    assert!(!guard.is_held(), "a majority of others has another server at that place");
    drop(next.await.expect("ended").expect("granted"));
}

/// A server that many clients still use comes back when its name leads to it again.
#[tokio::test(start_paused = true)]
async fn a_server_that_lost_its_place_by_mistake_gets_it_back() {
    let world = World::founded().await;
    let server = world.server(2);
    world.leads_elsewhere(2);
    let other = world.client().await;
    sleep(secs(5)).await;
    other.keeper.close().await;
    drop(other);
    world.servers.lock().expect("not poisoned")[2] = server;
    let client = world.client().await;
    sleep(secs(200)).await;
    client.networks[0].cut();
    assert!(can_lock(&client, "stock").await, "members 1 and 2 vote");
}

/// A member that may have lost its data gets a member id only while a majority of others vote, or all are there.
#[tokio::test(start_paused = true)]
async fn too_few_voters_give_nobody_an_id() {
    let world = World::founded().await;
    let client = world.client().await;
    client.networks[0].cut();
    world.server(2).lose_data();
    sleep(secs(300)).await;
    assert!(!can_lock(&client, "stock").await, "one member votes");
    client.networks[0].restore();
    sleep(secs(5)).await;
    assert!(can_lock(&client, "stock").await, "two vote");
    sleep(secs(90)).await;
    client.networks[0].cut();
    assert!(can_lock(&client, "stock").await, "the one that lost its data votes again");
}

/// Clients that found a quorum at the same time come to the same member ids.
#[tokio::test(start_paused = true)]
async fn clients_found_a_quorum_together() {
    let world = World::new(4);
    let mut clients = Vec::new();
    for _ in 0..5 {
        let client = world.client().await;
        for (nth, network) in client.networks.iter().enumerate() {
            network.delay(Duration::from_millis(3 + nth as u64));
        }
        clients.push(client);
    }
    sleep(secs(150)).await;
    for client in &clients {
        assert!(can_lock(client, "stock").await);
    }
}

/// All members lose their data, and clients that were there before as well as new ones go on together.
#[tokio::test(start_paused = true)]
async fn a_quorum_that_lost_everything_is_founded_anew() {
    let world = World::founded().await;
    let before = world.client().await;
    let token = before.keeper.mutex("stock").lock().await.expect("granted").token();
    for name in 0..3 {
        world.server(name).lose_data();
    }
    let after = world.client().await;
    assert!(!can_lock(&before, "stock").await && !can_lock(&after, "stock").await);
    sleep(secs(90)).await;
    for client in [&before, &after] {
        let guard = client.keeper.mutex("stock").try_lock().await.expect("answered").expect("granted");
        assert!(guard.token() > token);
        guard.release().await.expect("released");
    }
}
