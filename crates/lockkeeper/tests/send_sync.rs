//! Every public type and every public future can be moved between threads and shared: checked by
//! the compiler, so that a change that breaks it does not build.

use std::time::Duration;

use lockkeeper::{
    AcquireError, Election, Error, Fence, Guard, Keeper, KeeperBuilder, Latch, Leadership, Lease, Lost,
    Mutex, Owner, Permit, ReadGuard, ReleaseError, RwLock, Segmented, Semaphore, StoreError, Token,
    WriteGuard, all, blocking,
    error::{FenceError, LatchError, LeaseError},
    lock::{All, AllGuard, Observer, StoredFence},
    store::{Capability, Eviction, Name},
    telemetry::Stats,
};

fn sendable<T: Send + 'static>() {}
fn shareable<T: Send + Sync + 'static>() {}
fn future<F: Future + Send>(_: F) {}
fn owned_future<F: Future + Send + Sync + 'static>(_: F) {}

#[test]
fn all_types_can_be_shared_between_threads() {
    shareable::<Keeper>();
    sendable::<KeeperBuilder>();
    shareable::<(Mutex, RwLock, Semaphore, Latch, Election, Segmented, StoredFence, All, Owner)>();
    shareable::<(Guard, ReadGuard, WriteGuard, Permit, Leadership, AllGuard)>();
    shareable::<(Fence, Lease, Token, Name, Lost, Stats, Capability)>();
    shareable::<(AcquireError, ReleaseError, LeaseError, LatchError, FenceError, StoreError, Error)>();
    sendable::<Observer>();
    shareable::<blocking::Keeper>();
    shareable::<(blocking::Mutex, blocking::RwLock, blocking::Semaphore, blocking::Latch, blocking::Election)>(
    );
    shareable::<blocking::Guard>();
}

/// The futures are made and dropped without being run.
#[tokio::test]
async fn all_futures_can_be_sent_to_another_thread() -> Result<(), Error> {
    let second = Duration::from_secs(1);
    future(lockkeeper::connect("memory:"));
    future(lockkeeper::builder("memory:")?.connect());
    let keeper = lockkeeper::connect("memory:").await?;

    future(keeper.inspect("name"));
    future(keeper.list("", None, 1));
    future(keeper.close());

    let (mutex, owner) = (keeper.mutex("mutex"), keeper.owner());
    future(mutex.lock());
    future(mutex.try_lock());
    future(mutex.lock_within(second));
    future(mutex.lock_as(&owner));
    let guard = mutex.lock().await?;
    owned_future(guard.lost());
    future(guard.run(async {}));
    future(guard.extend(second));
    let view = keeper.inspect("mutex").await?.expect("held");
    future(keeper.evict("mutex", view.holders[0].contender, guard.token(), Eviction::Graceful));
    future(guard.release());
    let lease = keeper.mutex("detached").detachable().lock().await?.into_lease();
    future(lease);
    let lease = keeper.mutex("adopted").detachable().lock().await?.into_lease().await?;
    future(keeper.adopt(&lease));

    let lock = keeper.rw_lock("rw");
    future(lock.read());
    future(lock.try_read());
    future(lock.read_within(second));
    future(lock.read_as(&owner));
    future(lock.write());
    future(lock.try_write());
    future(lock.write_within(second));
    future(lock.write_as(&owner));
    future(lock.write().await?.downgrade());

    let semaphore = keeper.semaphore("semaphore", 2);
    future(semaphore.acquire());
    future(semaphore.try_acquire());
    future(semaphore.acquire_within(second));
    future(semaphore.acquire_many(2));
    future(semaphore.try_acquire_many(2));
    future(semaphore.acquire_many_within(2, second));

    let latch = keeper.latch("latch");
    future(latch.create(1));
    future(latch.count_down());
    future(latch.count_down_by(2));
    future(latch.reset());
    future(latch.delete());
    future(latch.state());
    future(latch.wait());
    future(latch.wait_within(second));

    let election = keeper.election("election");
    future(election.campaign("value"));
    future(election.try_campaign("value"));
    future(election.campaign_within("value", second));
    future(election.leader());
    future(election.campaign("value").await?.resign());
    let mut observer = election.observe();
    future(observer.next());

    let several = all([&keeper.mutex("a"), &keeper.mutex("b")]);
    future(several.lock());
    future(several.try_lock());
    future(several.lock_within(second));
    let both = several.lock().await?;
    owned_future(both.lost());
    future(both.run(async {}));
    future(both.release());

    let fence = keeper.fence("fence");
    let token = keeper.mutex("token").lock().await?.token();
    future(fence.admit(token));
    future(fence.admit_shared(token, token));
    Ok(())
}
