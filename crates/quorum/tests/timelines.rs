//! A quorum of memory members in virtual time: the effects of network delay, pauses, restarts without data and slow or
//! dead members, step by step.

mod chance;
mod claims;
mod liveness;
mod world;

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use lockkeeper_core::{
    StoreErrorKind, Token,
    testing::{Fate, Network},
};
use tokio::time::{Instant, sleep, timeout};

use world::{World, millis, networks, secs};

#[tokio::test(start_paused = true)]
async fn a_lock_excludes_and_tokens_grow() {
    for members in [3, 5, 7] {
        let world = World::founded(members).await;
        let (a, b) = (world.client().await.keeper, world.client().await.keeper);
        let mut last = None;
        for _ in 0..20 {
            let guard = a.mutex("stock").lock().await.expect("granted");
            assert!(b.mutex("stock").try_lock().await.expect("answered").is_none());
            assert!(last < Some(guard.token()));
            last = Some(guard.token());
            let mutex = b.mutex("stock");
            let waiter = tokio::spawn(async move { mutex.lock().await });
            sleep(millis(10)).await;
            guard.release().await.expect("released");
            let next = waiter.await.expect("ended").expect("granted");
            assert!(last < Some(next.token()));
            last = Some(next.token());
            next.release().await.expect("released");
        }
        assert!(a.inspect("stock").await.expect("answered").is_none());
        a.close().await;
        b.close().await;
        assert!(world.servers.iter().all(|server| server.kept() == 0), "something is left");
    }
}

#[tokio::test(start_paused = true)]
async fn waiters_are_served_in_order() {
    let world = World::founded(5).await;
    let mut clients = Vec::new();
    for _ in 0..8 {
        clients.push(world.client().await.keeper);
    }
    let first = clients[0].mutex("stock").lock().await.expect("granted");
    let (sender, mut order) = tokio::sync::mpsc::unbounded_channel();
    for (nth, client) in clients.iter().enumerate().skip(1) {
        let (mutex, sender) = (client.mutex("stock"), sender.clone());
        tokio::spawn(async move {
            let guard = mutex.lock().await.expect("granted");
            sender.send((nth, guard.token())).expect("heard");
            sleep(millis(3)).await;
            guard.release().await.expect("released");
        });
        sleep(millis(5)).await;
    }
    let mut last = first.token();
    first.release().await.expect("released");
    for expected in 1..clients.len() {
        let (nth, token) = timeout(secs(20), order.recv()).await.expect("served").expect("served");
        assert!(nth == expected && token > last, "{nth} instead of {expected}");
        last = token;
    }
}

/// The first timeline of the debate: the client stops after it was granted, and its lease ends meanwhile.
#[tokio::test(start_paused = true)]
async fn a_client_that_stops_after_it_was_granted_is_told_and_has_a_lower_token() {
    let world = World::founded(5).await;
    let (a, b) = (world.client().await, world.client().await);
    let guard = a.keeper.mutex("stock").lease(secs(10)).lock().await.expect("granted");
    // It neither hears nor sends anything, as a stopped process does.
    a.networks.iter().for_each(Network::cut);
    let next = b.keeper.mutex("stock").lock().await.expect("granted");
    assert!(!guard.is_held(), "its deadline was before the end of its leases");
    assert!(next.token() > guard.token(), "so a fence rejects what it still writes");
}

/// Replies are under way for longer than the lease.
#[tokio::test(start_paused = true)]
async fn answers_that_take_longer_than_the_lease_do_not_count() {
    let world = World::founded(3).await;
    let (a, b) = (world.client().await, world.client().await);
    let slow = Fate { after: millis(1500), ..Fate::GOOD };
    for network in &a.networks {
        network.next(slow);
    }
    let mutex = a.keeper.mutex("stock").lease(secs(1));
    let waiter = tokio::spawn(async move { mutex.lock_within(secs(4)).await });
    // While the replies are under way, members hold it for the first, and then they do not any more.
    sleep(millis(1100)).await;
    let next = timeout(secs(20), b.keeper.mutex("stock").lock()).await.expect("in time").expect("granted");
    if let Ok(guard) = waiter.await.expect("ended") {
        assert!(guard.token() < next.token() || !next.is_held(), "both hold it");
        assert!(!(guard.is_held() && next.is_held()), "both hold it");
    }
}

/// A member that restarts without data does not vote, so no second majority comes about with it.
#[tokio::test(start_paused = true)]
async fn a_member_that_lost_its_data_gives_no_second_majority() {
    let world = World::founded(3).await;
    let (a, b) = (world.client().await, world.client().await);
    // The holder reaches two members only.
    a.networks[2].cut();
    let guard = a.keeper.mutex("stock").expires_after(secs(30)).lock().await.expect("granted");
    world.servers[0].lose_data();
    // The other one reaches the empty member, and the one that never heard of the hold.
    b.networks[1].cut();
    let until = Instant::now() + secs(28);
    while Instant::now() < until {
        let tried = b.keeper.mutex("stock").try_lock().await;
        assert!(!matches!(tried, Ok(Some(_))) || !guard.is_held(), "two hold it");
        drop(tried);
        sleep(millis(200)).await;
    }
}

/// It votes again when a client has watched it for the longest lease, and its numbers go on above the others'.
#[tokio::test(start_paused = true)]
async fn a_member_that_lost_its_data_votes_again_later() {
    let world = World::founded(3).await;
    let a = world.client().await;
    let before = a.keeper.mutex("stock").lock().await.expect("granted");
    world.servers[1].lose_data();
    sleep(secs(20)).await;
    assert!(before.is_held(), "the others are a majority");
    let token = before.token();
    before.release().await.expect("released");
    // With one of the others down, the third is needed.
    a.networks[0].cut();
    let refused = a.keeper.mutex("stock").try_lock().await.expect_err("one member does not vote").to_string();
    assert!(refused.contains("does not vote"), "{refused}");
    a.networks[0].restore();
    sleep(secs(90)).await;
    a.networks[0].cut();
    let after = timeout(secs(10), a.keeper.mutex("stock").lock()).await.expect("in time").expect("granted");
    assert!(after.token() > token);
}

/// Of two members that lost their data one is down again. The other one votes all the same.
#[tokio::test(start_paused = true)]
async fn a_member_votes_again_although_another_is_down() {
    for (down, back) in [(0, 1), (1, 0), (4, 2)] {
        let world = World::founded(5).await;
        let client = world.client().await;
        client.keeper.mutex("stock").lock().await.expect("granted").release().await.expect("released");
        world.servers[down].lose_data();
        world.servers[back].lose_data();
        // The client hears of both.
        client.keeper.mutex("stock").lock().await.expect("granted").release().await.expect("released");
        sleep(secs(1)).await;
        client.networks[down].cut();
        sleep(secs(180)).await;
        // One more is down, so that the majority needs the one that came back.
        client.networks[3].cut();
        let granted = timeout(secs(20), client.keeper.mutex("stock").lock()).await.expect("in time");
        let guard = granted.unwrap_or_else(|error| panic!("{back} does not vote: {error}"));
        assert!(guard.is_held());
    }
}

#[tokio::test(start_paused = true)]
async fn a_new_quorum_votes_by_itself() {
    let world = World::new(3);
    let a = world.client().await;
    let refused = a.keeper.mutex("stock").try_lock().await.expect_err("nobody votes").to_string();
    assert!(refused.contains("does not vote"), "{refused}");
    sleep(secs(70)).await;
    let guard = a.keeper.mutex("stock").try_lock().await.expect("answered").expect("granted");
    assert!(guard.is_held());
}

/// A dead member costs its time limit once.
#[tokio::test(start_paused = true)]
async fn a_dead_member_delays_a_lock_once() {
    let world = World::founded(3).await;
    for dead in 0..3 {
        let a = world.client().await;
        a.networks[dead].cut();
        let mut late = 0;
        for nth in 0..20 {
            let begun = Instant::now();
            let guard = a.keeper.mutex(&format!("stock/{nth}")).lock().await.expect("granted");
            let locked = begun.elapsed();
            guard.release().await.expect("released");
            if begun.elapsed() > millis(50) {
                late += 1;
                assert!(begun.elapsed() <= millis(600), "{locked:?} of {:?} at {nth}", begun.elapsed());
            }
        }
        assert!(late <= 1, "{late} locks were late");
        a.networks[dead].restore();
        sleep(secs(70)).await;
    }
}

/// The waiters of a gate turn to another one, with each member as the gate.
#[tokio::test(start_paused = true)]
async fn a_member_that_dies_takes_no_waiters_with_it() {
    for dead in 0..3 {
        let world = World::founded(3).await;
        let mut clients = Vec::new();
        for _ in 0..5 {
            clients.push(world.client().await);
        }
        let first = clients[0].keeper.mutex("stock").lock().await.expect("granted");
        let mut waiters = tokio::task::JoinSet::new();
        for client in &clients[1..] {
            let mutex = client.keeper.mutex("stock");
            waiters.spawn(async move {
                let guard = mutex.lock().await.expect("granted");
                guard.release().await.expect("released");
            });
        }
        sleep(secs(3)).await;
        clients.iter().for_each(|client| client.networks[dead].cut());
        first.release().await.expect("released");
        timeout(secs(60), waiters.join_all())
            .await
            .unwrap_or_else(|_| panic!("all are served without {dead}"));
    }
}

/// A leave gets no answer and is sent again. The second copy is answered, and the first one arrives much later: it must
/// not end a later grant of the same contender.
#[tokio::test(start_paused = true)]
async fn a_leave_that_arrives_late_ends_no_later_grant() {
    for gate in 0..3 {
        let (other, third) = ((gate + 1) % 3, (gate + 2) % 3);
        let world = World::founded(3).await;
        let (holder, waiter, late) = (world.client().await, world.client().await, world.client().await);
        holder.networks[other].cut();
        let first = holder.keeper.mutex("stock").lock().await.expect("granted by two");
        // Its claim is granted by one member, which it leaves because the gate is busy.
        waiter.networks[third].cut();
        waiter.networks[other].next(Fate::GOOD);
        waiter.networks[other].next(Fate::late(secs(9)));
        let mutex = waiter.keeper.mutex("stock");
        let waits = tokio::spawn(async move { mutex.lock().await });
        sleep(secs(5)).await;
        first.release().await.expect("released");
        let second = timeout(secs(30), waits).await.expect("served").expect("ended").expect("granted");
        late.networks[gate].cut();
        let mutex = late.keeper.mutex("stock");
        let third = tokio::spawn(async move { mutex.lock_within(secs(20)).await });
        for _ in 0..2000 {
            assert!(!(second.is_held() && third.is_finished()), "two hold; gate {gate}");
            sleep(millis(10)).await;
        }
        drop(second);
    }
}

/// A contender that waited left some members before it was granted. These answers say nothing about its release.
#[tokio::test(start_paused = true)]
async fn a_release_that_reaches_nobody_fails() {
    let world = World::founded(3).await;
    let (holder, waiter) = (world.client().await, world.client().await);
    let first = holder.keeper.mutex("stock").lock().await.expect("granted");
    let mutex = waiter.keeper.mutex("stock");
    let waits = tokio::spawn(async move { mutex.lock().await });
    sleep(secs(1)).await;
    first.release().await.expect("released");
    let second = waits.await.expect("ended").expect("granted");
    waiter.networks.iter().for_each(Network::cut);
    let error = second.release().await.expect_err("nobody was told");
    assert!(error.to_string().contains("fewer than 2 members"), "{error}");
}

/// It has the gate and reaches no majority, so it must not keep the gate from others.
#[tokio::test(start_paused = true)]
async fn a_client_that_is_half_cut_off_gives_way() {
    let world = World::founded(3).await;
    let (holder, half, other) = (world.client().await, world.client().await, world.client().await);
    for gate in 0..3 {
        let name = (0..100).map(|nth| format!("stock/{gate}/{nth}"));
        for name in name.take(3) {
            let first = holder.keeper.mutex(&name).lock().await.expect("granted");
            let mutex = half.keeper.mutex(&name);
            let waits = tokio::spawn(async move { mutex.lock().await });
            sleep(millis(100)).await;
            (0..3).filter(|member| *member != gate).for_each(|member| half.networks[member].cut());
            first.release().await.expect("released");
            let granted = timeout(secs(20), other.keeper.mutex(&name).lock()).await;
            let guard = granted.unwrap_or_else(|_| panic!("{name} is free")).expect("granted");
            guard.release().await.expect("released");
            half.networks.iter().for_each(Network::restore);
            let late = timeout(secs(60), waits).await.expect("served").expect("ended");
            late.expect("granted").release().await.expect("released");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_starts_with_any_majority_and_not_with_less() {
    let world = World::founded(5).await;
    let some = networks(5);
    some[0].cut();
    some[3].cut();
    let client = world.client_at(&world.url, some).await.expect("three of five are there");
    assert!(client.keeper.mutex("stock").try_lock().await.expect("answered").is_some());
    let few = networks(5);
    few.iter().take(3).for_each(Network::cut);
    let error = world.client_at(&world.url, few).await.map(drop).expect_err("two are too few");
    assert!(error.to_string().contains("fewer than 3 members"), "{error}");
}

/// The URLs of two members lead to one server, under two namespaces. A client notices whenever it reaches both.
#[tokio::test(start_paused = true)]
async fn a_server_is_no_two_members() {
    let world = World::founded(3).await;
    let late = networks(3);
    late[2].cut();
    world.moods[1..].iter().for_each(|moods| moods.be("one"));
    let client = world.client_at(&world.url, late).await.expect("two are there");
    client.networks[2].restore();
    sleep(secs(30)).await;
    client.networks[0].cut();
    let error = client.keeper.mutex("stock").try_lock().await.map(drop).expect_err("one server is left");
    let says = |error: &str| error.contains("are one server (memory:1 and memory:2)");
    assert!(says(&error.to_string()), "{error}");
    let Err(error) = world.client_at(&world.url, networks(3)).await else { panic!("refused") };
    assert!(says(&error.to_string()) && error.kind() == StoreErrorKind::Config, "{error}");
}

#[tokio::test(start_paused = true)]
async fn clients_of_another_quorum_are_refused() {
    let world = World::founded(3).await;
    for (url, word) in [
        ("quorum:max_lease=2m,memory:0,memory:1,memory:2", "max_lease is 1m"),
        ("quorum:memory:1,memory:0,memory:2", "another order"),
        ("quorum:memory:0,memory:0,memory:2", "one server"),
    ] {
        let error = world.client_at(url, networks(3)).await.map(drop).expect_err("refused").to_string();
        assert!(error.contains(word), "{error}");
    }
    let larger = World::founded(5).await;
    let three = "quorum:memory:0,memory:1,memory:2";
    let error = larger.client_at(three, networks(5)).await.map(drop).expect_err("refused").to_string();
    assert!(error.contains("founded with more members; use the same URL"), "{error}");
    // Five servers, of which the first three are a quorum already.
    let larger = World::new(5);
    let founded = lockkeeper_quorum::found_fresh(three, larger.member(&networks(5)));
    founded.await.expect("founded");
    let error = larger.client_at(&larger.url, networks(5)).await.map(drop).expect_err("refused").to_string();
    assert!(error.contains("memory:3 is no member") && error.contains("has fewer members"), "{error}");
    let again = lockkeeper_quorum::found_fresh(&world.url, world.member(&networks(3))).await;
    assert!(again.expect_err("it is founded").to_string().contains("already"));
}

/// Semaphores and latches are refused before anything is sent.
#[tokio::test(start_paused = true)]
async fn permits_are_refused_with_the_reason() {
    let world = World::founded(3).await;
    let a = world.client().await;
    let error = a.keeper.semaphore("gpu", 3).acquire().await.map(drop).expect_err("refused").to_string();
    assert!(error.contains("no semaphores"), "{error}");
    let error = a.keeper.latch("start").create(3).await.map(drop).expect_err("refused").to_string();
    assert!(error.contains("no latches"), "{error}");
    let token = a.keeper.mutex("stock").lock().await.expect("granted").token();
    let error = a.keeper.fence("stock").admit(token).await.expect_err("refused").to_string();
    assert!(error.contains("keep the fence with the data"), "{error}");
}

/// Random faults, one at a time: clients never hold together, tokens grow, and all go on afterwards.
#[tokio::test(start_paused = true)]
async fn clients_never_hold_together_whatever_the_network_does() {
    let seeds = std::env::var("LOCKKEEPER_SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(3);
    for seed in 0..seeds {
        faults(seed).await;
    }
}

/// The number that follows another.
fn next(random: &mut u64) -> u64 {
    *random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *random >> 33
}

/// The holder, and the last token.
#[derive(Default)]
struct Held {
    by: Option<usize>,
    last: Option<Token>,
}

async fn section(
    mutex: &lockkeeper_core::Mutex,
    held: &Mutex<Held>,
    sections: &AtomicU64,
    who: usize,
    length: u64,
) {
    let Ok(guard) = mutex.lock().await else { return };
    {
        let mut held = held.lock().expect("not poisoned");
        if guard.is_held() {
            assert!(held.by.is_none(), "{who} and {:?} hold together", held.by);
            assert!(held.last < Some(guard.token()), "a token fell");
            *held = Held { by: Some(who), last: Some(guard.token()) };
        }
    }
    let ends = Instant::now() + millis(length);
    // A holder whose deadline passes stops at that moment, and not a millisecond later.
    while Instant::now() < ends && guard.is_held() {
        sleep(guard.remaining().min(millis(1))).await;
    }
    {
        let mut held = held.lock().expect("not poisoned");
        if held.by == Some(who) {
            held.by = None;
            sections.fetch_add(1, Ordering::Relaxed);
        }
    }
    drop(guard.release().await);
}

async fn faults(seed: u64) {
    let world = World::founded(3).await;
    let (held, sections) = (Arc::<Mutex<Held>>::default(), Arc::<AtomicU64>::default());
    let (mut clients, mut tasks) = (Vec::new(), Vec::new());
    for who in 0..4 {
        let client = world.client().await;
        let mutex = client.keeper.mutex("stock").lease(secs(5));
        let (held, sections) = (held.clone(), sections.clone());
        tasks.push(tokio::spawn(async move {
            let mut random = seed * 100 + who as u64;
            loop {
                section(&mutex, &held, &sections, who, next(&mut random) % 30).await;
            }
        }));
        clients.push(client);
    }
    let mut random = seed;
    for _ in 0..30 {
        let client = usize::try_from(next(&mut random)).expect("small") % clients.len();
        let member = usize::try_from(next(&mut random)).expect("small") % 3;
        let network = &clients[client].networks[member];
        match next(&mut random) % 4 {
            0 => network.cut(),
            1 => network.delay(millis(next(&mut random) % 900)),
            2 => network.next(Fate::LOST_REPLY),
            _ => network.next(Fate::late(millis(next(&mut random) % 3000))),
        }
        sleep(millis(next(&mut random) % 4000)).await;
        network.restore();
        network.delay(Duration::ZERO);
        sleep(millis(next(&mut random) % 2000)).await;
    }
    let before = sections.load(Ordering::Relaxed);
    sleep(secs(20)).await;
    let after = sections.load(Ordering::Relaxed);
    for task in tasks {
        assert!(!task.is_finished(), "a task failed with seed {seed}");
        task.abort();
    }
    assert!(before > 30 && after > before + 100, "{before} and then {after} sections with seed {seed}");
}

/// The second token was admitted by members 0 and 1. Member 1 loses it, and member 2 never knew it.
#[tokio::test(start_paused = true)]
async fn a_fence_does_not_ask_a_member_that_may_have_forgotten() {
    let world = World::founded(3).await;
    world.moods.iter().for_each(|moods| moods.keep_data());
    let client = world.client().await;
    let token = async || {
        let guard = client.keeper.mutex("stock").lock().await.expect("granted");
        let token = guard.token();
        guard.release().await.expect("released");
        token
    };
    let (first, second) = (token().await, token().await);
    let fence = client.keeper.fence("stock");
    client.networks[2].cut();
    fence.admit(second).await.expect("the latest");
    client.networks[2].restore();
    world.servers[1].lose_data();
    token().await;
    sleep(secs(200)).await;
    client.networks[0].cut();
    let error = fence.admit(first).await.expect_err("it may be stale").to_string();
    assert!(error.contains("fewer than 2 members"), "{error}");
    // Any token that the member has forgotten is older than this.
    let third = token().await;
    fence.admit(third).await.expect("the latest");
    client.networks[0].restore();
    sleep(secs(5)).await;
    fence.admit(second).await.expect_err("stale");
}

/// Nobody uses the quorum when a member loses its data, nor while it is watched.
#[tokio::test(start_paused = true)]
async fn a_member_that_lost_its_data_is_noticed_by_an_idle_client() {
    let world = World::founded(3).await;
    let client = world.client().await;
    sleep(secs(100)).await;
    world.servers[1].lose_data();
    sleep(secs(150)).await;
    client.networks[0].cut();
    let guard = timeout(secs(5), client.keeper.mutex("stock").lock()).await.expect("two members vote");
    guard.expect("granted").release().await.expect("released");
}
