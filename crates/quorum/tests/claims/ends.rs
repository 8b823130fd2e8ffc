//! The ends of programs. In real time: a keeper in virtual time has no thread of its own.

use lockkeeper_core::{
    Keeper, KeeperId, Name, StoreErrorKind,
    clock::Clock,
    memory::MemoryServer,
    store::{Context, WakeSink},
};
use tokio::runtime::{Builder, Handle};

use crate::world::{Moods, millis, networks, secs};

/// Whether anybody holds at one member.
async fn is_held_at(member: &MemoryServer) -> bool {
    let context = Context {
        keeper: KeeperId::random(),
        wakes: WakeSink::new(drop),
        background: Handle::current(),
        clock: Clock::boot(),
        request_limit: secs(2),
    };
    let store = member.connector("memory:").connect(context).await.expect("connected");
    store.inspect(&Name::new("stock").expect("a name")).await.expect("answered").is_some()
}

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
        let keeper = user.block_on(async {
            lockkeeper_quorum::found_fresh(url, member).await.expect("founded");
            let connector = lockkeeper_quorum::connector(url, member).expect("a good URL");
            let keeper = Keeper::builder(connector).connect().await.expect("connected");
            networks[late].delay(millis(60));
            let guard = keeper.mutex("stock").lock().await.expect("granted");
            // The late member has heard of the claim, and not of the leave.
            while !is_held_at(&servers[late]).await {
                tokio::task::yield_now().await;
            }
            guard.release().await.expect("released");
            keeper
        });
        // The end of `main` does the same.
        drop(keeper);
        assert!(!user.block_on(is_held_at(&servers[late])), "member {late}");
    }
}

/// I16: a request in flight fails if its runtime ends, so the member is suspected just when the program ends.
#[test]
fn i16_a_program_that_ends_waits_for_a_member_that_failed_a_moment_ago() {
    for failed in 0..3 {
        let user = Builder::new_current_thread().enable_all().build().expect("a runtime");
        let servers: Vec<_> = (0..3).map(|_| MemoryServer::new(Clock::boot())).collect();
        let (moods, url) = (Moods::default(), "quorum:memory:0,memory:1,memory:2");
        let member = |url: &str| {
            let member: usize = url.trim_start_matches("memory:").parse().expect("a number");
            let connector = servers[member].connector(url);
            Ok(if member == failed { moods.wrap(connector) } else { connector })
        };
        let keeper = user.block_on(async {
            lockkeeper_quorum::found_fresh(url, member).await.expect("founded");
            let connector = lockkeeper_quorum::connector(url, member).expect("a good URL");
            let keeper = Keeper::builder(connector).connect().await.expect("connected");
            let guard = keeper.mutex("stock").lock().await.expect("granted");
            while !is_held_at(&servers[failed]).await {
                tokio::task::yield_now().await;
            }
            moods.deny(Some(StoreErrorKind::Unreachable));
            let asked = moods.groups();
            drop(guard);
            while moods.groups() == asked {
                tokio::task::yield_now().await;
            }
            moods.deny(None);
            keeper
        });
        drop(keeper);
        assert!(!user.block_on(is_held_at(&servers[failed])), "member {failed}");
    }
}
