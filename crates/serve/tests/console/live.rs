//! The page of present locks, while they change.

use std::time::Duration;

use serde_json::json;

use crate::world::{LOOK, World};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn signed_in_by_the_link_one_sees_a_lock_appear_its_queue_grow_and_its_holder_change() {
    let world = World::with(|settings, _| settings.token_file = None).await;
    let browser = &world.browser;
    browser.open(&world.url);
    browser.until_text("Nothing is locked");
    // The token is in this tab only, and not in the address any more.
    assert_eq!(browser.run("return location.hash"), "#/locks");
    assert_eq!(browser.run("return sessionStorage.getItem('lockkeeper-token').length"), 64);
    assert_eq!(browser.run("return document.cookie"), "");

    let guard = world.keeper.mutex("stock/42").label("first").lock().await.expect("free");
    browser.until_text("stock/42");
    browser.until_text("first");
    assert_eq!(browser.text("td.c-kind"), "Mutex");
    // A store tells processes apart by their keepers.
    let waiters: Vec<_> = ["second", "third"]
        .into_iter()
        .map(|label| {
            let mutex = world.keeper.mutex("stock/42").fifo().label(label);
            tokio::spawn(async move { mutex.lock().await.expect("in time") })
        })
        .collect();
    browser.until("document.querySelector('td.c-waiting strong')?.innerText === '2'");
    guard.release().await.expect("held");
    browser.until("/second|third/.test(document.querySelector('tr.moved td.c-held')?.innerText)");
    browser.until("document.querySelector('td.c-waiting strong')?.innerText === '1'");
    for waiter in waiters {
        waiter.abort();
    }
    browser.until_text("Nothing is locked");
    assert_eq!(browser.complaints(), Vec::<String>::new());
    world.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn five_thousand_locks_are_filtered_sorted_and_paged() {
    let world = World::start().await;
    let browser = &world.browser;
    let mut guards = Vec::new();
    for place in 0..5000 {
        guards.push(world.keeper.mutex(&format!("lock/{place:04}")).lock().await.expect("free"));
    }
    let mutex = world.keeper.mutex("lock/3210").fifo();
    let waiter = tokio::spawn(async move { drop(mutex.lock().await) });
    world.sign_in(LOOK);
    browser.run(
        "window.longest = 0; new PerformanceObserver((list) => { for (const entry of list.getEntries()) \
         longest = Math.max(longest, entry.duration) }).observe({ type: 'longtask', buffered: true })",
    );
    browser.until("document.querySelector('.pager')?.innerText.includes('of 5,000')");
    // The one that is waited for comes first.
    browser.until("document.querySelector('td.c-name').innerText === 'lock/3210'");
    browser.click("th.c-name button");
    browser.until("document.querySelector('td.c-name').innerText === 'lock/0000'");
    browser.click("th.c-name button");
    browser.until("document.querySelector('td.c-name').innerText === 'lock/4999'");
    assert_eq!(browser.run("return document.querySelector('th.c-name').ariaSort"), "descending");
    browser.click(".pager button:last-child");
    browser.until("document.querySelector('td.c-name').innerText === 'lock/4949'");
    // Rows light up when something happens to a lock, and not because the reader went somewhere.
    assert_eq!(browser.count("tr.moved"), 0);
    browser.press("/");
    browser.until("document.activeElement.id === 'filter'");
    browser.press("lock/12");
    browser.until("document.querySelector('.pager')?.innerText.includes('of 100')");
    browser.until("document.querySelector('td.c-name').innerText === 'lock/1299'");
    // It goes on living.
    let guard = guards.swap_remove(1299);
    guard.release().await.expect("held");
    browser.until("document.querySelector('td.c-name').innerText === 'lock/1298'");
    browser.press("34x");
    browser.until_text("No lock has a name that starts with");
    println!("the longest task of the page took {} ms", browser.run("return longest"));
    waiter.abort();
    drop(guards);
    world.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_has_a_page_with_its_queue_and_its_timeline() {
    let world = World::start().await;
    let browser = &world.browser;
    let first = world.keeper.mutex("deploy").fifo().label("first").lock().await.expect("free");
    let mutex = world.keeper.mutex("deploy").fifo().label("second");
    let second = tokio::spawn(async move { mutex.lock().await.expect("in time") });
    world.sign_in(LOOK);
    browser.until_text("deploy");
    browser.click("td.c-name a");
    browser.until("document.querySelector('h1').innerText === 'deploy'");
    browser.until("document.querySelector('.queue .who')");
    assert_eq!(browser.text(".holders code"), first.token().to_string());
    browser.until("document.querySelector('.lanes .hold.now') && document.querySelector('.lanes .wait')");
    first.release().await.expect("held");
    browser.until_text("Nobody waits.");
    let second = second.await.expect("it waits");
    browser.until(&format!("document.querySelector('.holders code').innerText === '{}'", second.token()));
    browser.until("document.querySelector('.timeline').innerText.includes('2 holds')");
    // Screen readers get the same as text.
    let label = browser.run("return document.querySelector('.lanes svg').getAttribute('aria-label')");
    assert!(label.as_str().is_some_and(|label| label.contains("2 holds")), "{label}");
    browser.click(".as-table summary");
    browser.until("document.querySelectorAll('.as-table tbody tr').length > 0");
    browser.click(".choice button");
    browser.until("location.hash.includes('minutes=5')");
    browser.until("document.querySelector('.lanes .hold.now')");
    drop(second);
    browser.until_text("Free: nobody holds it");
    assert_eq!(browser.complaints(), Vec::<String>::new());
    world.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn latches_and_elections_are_shown_too() {
    let world = World::start().await;
    let browser = &world.browser;
    world.keeper.latch("ready").create(3).await.expect("new");
    world.keeper.latch("ready").count_down().await.expect("there");
    let leads = world.keeper.election("boss").campaign("10.0.0.7:80").await.expect("free");
    world.sign_in(LOOK);
    browser.until_text("2 of 3 left to count");
    browser.until_text("10.0.0.7:80");
    world.go("#/lock?name=boss");
    browser.until_text("Led by");
    drop(leads);
    world.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_sees_its_own_names_only() {
    let world = World::start().await;
    let browser = &world.browser;
    let guards = [
        world.keeper.mutex("team/a").lock().await.expect("free"),
        world.keeper.mutex("secret").lock().await.expect("free"),
    ];
    world.sign_in("teamlookteamlook");
    browser.until_text("team/a");
    assert!(!browser.text("body").contains("secret"));
    world.go("#/lock?name=secret");
    browser.until_text("your token is only for names that begin with team/");
    drop(guards);
    world.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_server_of_the_store_is_shown() {
    let cluster = lockkeeper_testkit::servers::RedisCluster::start().expect("a cluster");
    let store = cluster.url();
    let world = World::with(|settings, _| settings.store = store).await;
    let browser = &world.browser;
    world.sign_in(LOOK);
    world.go("#/store");
    browser.until("document.querySelectorAll('.servers dt').length === 6");
    let servers = browser.text(".servers");
    for server in cluster.servers() {
        assert!(servers.contains(&server.address().to_string()), "{servers}");
    }
    assert!(servers.contains("master, version") && servers.contains("replica of"), "{servers}");
    world.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_outage_is_shown_and_the_page_goes_on_after_it() {
    let redis = lockkeeper_testkit::servers::Redis::start().expect("redis-server");
    let store = redis.url();
    let world = World::with(|settings, _| settings.store = store).await;
    let browser = &world.browser;
    let guard = world.keeper.mutex("kept").lease(Duration::from_secs(600)).lock().await.expect("free");
    world.sign_in(LOOK);
    browser.until_text("kept");
    redis.process().kill();
    browser.until("!document.getElementById('banner').hidden");
    assert!(browser.text("#banner").contains("The store does not answer"), "{}", browser.text("#banner"));
    assert_eq!(browser.text("td.c-name"), "kept", "what was seen stays");
    browser.until("document.querySelector('.badge:not([hidden])')");
    world.go("#/alarms");
    browser.until_text("Store out of reach");
    redis.start_again().expect("it starts");
    browser.until("document.getElementById('banner').hidden");
    browser.until("document.querySelector('.alarms.past li')");
    world.go("#/locks");
    let other = world.keeper.mutex("after").lock().await.expect("free");
    browser.until_text("after");
    drop((guard, other));
    world.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hot_locks_are_found_by_themselves() {
    let world = World::start().await;
    let browser = &world.browser;
    world.sign_in(LOOK);
    let guard = world.keeper.mutex("hot").fifo().lock().await.expect("free");
    let mutex = world.keeper.mutex("hot").fifo();
    let waiter = tokio::spawn(async move { drop(mutex.lock().await) });
    world.go("#/hot");
    browser.until("document.querySelector('.hot h2 a')?.innerText === 'hot'");
    browser.until("document.querySelector('.hot .curve path')");
    assert!(!browser.text(".hot .helps").is_empty());
    browser.run_with("document.querySelector(arguments[0]).click()", &json!(["[data-focus='turnover']"]));
    browser.until("location.hash.includes('by=turnover')");
    waiter.abort();
    drop(guard);
    world.end().await;
}
