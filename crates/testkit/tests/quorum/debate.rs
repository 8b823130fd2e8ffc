//! The arguments against RedLock, on real servers: a clock that jumps at one node, and a node that is replaced by its
//! replica. Pauses, late replies and restarts without data are in virtual time, in `crates/quorum/tests/timelines.rs`.

use std::{io, time::Duration};

use lockkeeper::Keeper;
use lockkeeper_testkit::{
    processes::FencedCounter,
    proxy::Proxy,
    servers::{Redis, RedisOptions},
};
use tokio::time::{Instant, sleep, timeout};

use crate::{millis, secs};

/// A client with a network of its own to each member.
struct Client {
    keeper: Keeper,
    proxies: Vec<Proxy>,
}

impl Client {
    async fn connect(servers: &[Redis]) -> Self {
        let proxies = servers.iter().map(|server| Proxy::start(server.address()));
        let proxies: Vec<Proxy> = proxies.collect::<io::Result<_>>().expect("started");
        let urls: Vec<String> = proxies.iter().map(|proxy| format!("redis://{}", proxy.address())).collect();
        let url = format!("quorum:max_lease=3s,{}", urls.join(","));
        let keeper = lockkeeper::connect(&url).await.expect("connected");
        Self { keeper, proxies }
    }

    /// Cuts the keeper off from these members.
    fn lose(&self, members: &[usize]) {
        for proxy in members.iter().map(|member| &self.proxies[*member]) {
            proxy.refuse(true);
            proxy.cut_all();
        }
    }
}

async fn found(servers: &[Redis]) {
    let urls: Vec<String> = servers.iter().map(Redis::url).collect();
    let url = format!("quorum:max_lease=3s,{}", urls.join(","));
    lockkeeper::quorum::found_fresh(&url).await.expect("founded");
}

/// Longer than a client needs to turn to other members.
const SOON: Duration = secs(20);

/// The first client reaches A, B and C, and holds. The clock of C jumps, so C forgets the hold. The second client reaches C, D
/// and E, and is granted. So two hold for a moment: the first is told with its next renewal, and its token is the lower one.
#[tokio::test(flavor = "multi_thread")]
async fn a_clock_jump_at_one_member_is_noticed_by_a_renewal_and_by_a_fence() {
    let servers = (0..5).map(|_| RedisOptions::default().movable_clock().start());
    let servers: Vec<Redis> = servers.collect::<io::Result<_>>().expect("started");
    found(&servers).await;
    let (first, second) = (Client::connect(&servers).await, Client::connect(&servers).await);
    first.lose(&[3, 4]);
    let old = timeout(SOON, first.keeper.mutex("stock").lease(secs(3)).lock()).await;
    let old = old.expect("in time").expect("granted by three");
    second.lose(&[0, 1]);
    servers[2].shift_clock(3600).expect("shifted");
    let jumped = Instant::now();
    let new = timeout(SOON, second.keeper.mutex("stock").lock()).await.expect("in time").expect("granted");
    assert!(new.token() > old.token(), "{} after {}", new.token(), old.token());
    timeout(secs(10), old.lost()).await.expect("it is told");
    println!("told {:?} after the jump", jumped.elapsed());
    let folder = tempfile::tempdir().expect("a folder");
    let mut data = FencedCounter::open(&folder.path().join("data")).expect("opened");
    let mut write = |token: lockkeeper::Token| {
        let token = token.as_i64().unsigned_abs();
        data.admit(token, token).expect("asked").1
    };
    assert_eq!((write(new.token()), write(old.token())), (true, false), "the fence rejects the first one");
}

/// A replica that has not heard of a hold takes the place of its master. It is another run of a server, so it does not vote,
/// and gives nobody a second majority.
#[tokio::test(flavor = "multi_thread")]
async fn a_replica_that_takes_over_gives_no_second_majority() {
    let servers: Vec<Redis> = (0..3).map(|_| Redis::start()).collect::<io::Result<_>>().expect("started");
    found(&servers).await;
    let (first, second) = (Client::connect(&servers).await, Client::connect(&servers).await);
    let replica = Redis::start().expect("started");
    replica.follow(&servers[0]).expect("in step");
    // From now on it hears nothing.
    replica.promote().expect("promoted");
    first.lose(&[2]);
    let held = timeout(SOON, first.keeper.mutex("stock").lease(secs(3)).lock()).await;
    let held = held.expect("in time").expect("granted by two");
    second.lose(&[1]);
    servers[0].process().kill();
    for client in [&first, &second] {
        client.proxies[0].lead_to(replica.address());
        client.proxies[0].cut_all();
    }
    let mutex = second.keeper.mutex("stock");
    while held.is_held() {
        let granted = matches!(mutex.try_lock().await, Ok(Some(_)));
        assert!(!granted || !held.is_held(), "two hold it");
        sleep(millis(20)).await;
    }
    second.proxies[1].refuse(false);
    let next = timeout(SOON, mutex.lock()).await.expect("in time").expect("two others vote");
    assert!(next.token() > held.token(), "{} after {}", next.token(), held.token());
}
