//! The ends of programs. In real time: a keeper in virtual time has no thread of its own.

use lockkeeper_core::{
    Keeper, KeeperId, Name,
    clock::Clock,
    memory::MemoryServer,
    store::{Context, WakeSink},
};
use tokio::runtime::{Builder, Handle};

use crate::world::{millis, networks, secs};

/// I16: a release is told when a majority has done it. The end of the program waits for the others.
#[test]
fn i16_a_program_that_ends_leaves_nothing_held_at_a_slow_member() {
    for late in 0..3 {
        let user = Builder::new_current_thread().enable_all().build().expect("a runtime");
        let servers: Vec<_> = (0..3).map(|_| MemoryServer::new(Clock::boot())).collect();
        let (networks, url) = (networks(3), "quorum:memory:0,memory:1,memory:2");
        let member = |url: &str| {
            let member: usize = url.trim_start_matches("memory:").parse().expect("a number");
            Ok(networks[member].wrap(servers[member].connector(url)))
        };
        let holds = async || {
            let context = Context {
                keeper: KeeperId::random(),
                wakes: WakeSink::new(drop),
                background: Handle::current(),
                clock: Clock::boot(),
                request_limit: secs(2),
            };
            let store = servers[late].connector("memory:").connect(context).await.expect("connected");
            store.inspect(&Name::new("stock").expect("a name")).await.expect("answered").is_some()
        };
        let keeper = user.block_on(async {
            lockkeeper_quorum::found_fresh(url, member).await.expect("founded");
            let connector = lockkeeper_quorum::connector(url, member).expect("a good URL");
            let keeper = Keeper::builder(connector).connect().await.expect("connected");
            networks[late].delay(millis(60));
            let guard = keeper.mutex("stock").lock().await.expect("granted");
            // The late member has heard of the claim, and not of the leave.
            while !holds().await {
                tokio::task::yield_now().await;
            }
            guard.release().await.expect("released");
            keeper
        });
        // The end of `main` does the same.
        drop(keeper);
        assert!(!user.block_on(holds()), "member {late}");
    }
}
