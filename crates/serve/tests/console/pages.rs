//! Addresses of pages, their connections and their focus, and words for screen readers.

use std::time::Duration;

use serde_json::json;

use crate::world::{ADMIN, LOOK, World};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_latch_and_a_lock_of_one_name_are_two_rows() {
    let world = World::start().await;
    let browser = &world.browser;
    world.keeper.latch("x").create(3).await.expect("new");
    let guard = world.keeper.mutex("x").lock().await.expect("free");
    world.sign_in(LOOK);
    browser.until("document.querySelectorAll('table.locks tbody tr').length === 2");
    // Every sample makes another row of the latch.
    for left in (0..3).rev() {
        world.keeper.latch("x").count_down().await.expect("there");
        browser.until_text(&format!("{left} of 3 left to count"));
        assert_eq!(browser.count("table.locks tbody tr"), 2);
    }
    world.go("#/lock?name=x");
    browser.until_text("There is also a latch of this name");
    drop(guard);
    world.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readers_are_told_of_changes_and_not_of_every_second() {
    let world = World::start().await;
    let browser = &world.browser;
    world.sign_in(LOOK);
    browser.until("document.getElementById('told').textContent");
    browser.run(
        "window.told = []; for (const element of document.querySelectorAll('[role=status]')) \
         new MutationObserver(() => told.push(element.textContent)) \
         .observe(element, { childList: true, characterData: true, subtree: true })",
    );
    for turn in 0..20 {
        let guards = [
            world.keeper.mutex(&format!("busy/{turn}")).lock().await.expect("free"),
            world.keeper.mutex(&format!("busier/{turn}")).lock().await.expect("free"),
        ];
        tokio::time::sleep(Duration::from_millis(500)).await;
        drop(guards);
    }
    let told = browser.run("return told");
    assert!(told.as_array().is_some_and(|told| told.len() <= 1), "{told}");
    world.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn controls_show_what_the_address_says() {
    let world = World::start().await;
    let browser = &world.browser;
    let guards = [
        world.keeper.mutex("pay").lock().await.expect("free"),
        world.keeper.mutex("stock").lock().await.expect("free"),
    ];
    world.sign_in(LOOK);
    browser.until_text("stock");
    browser.press("/");
    browser.until("document.activeElement.id === 'filter'");
    browser.press("pay");
    browser.until("document.querySelectorAll('table.locks tbody tr').length === 1");
    browser.click("nav a[data-page=locks]");
    browser.until("document.querySelectorAll('table.locks tbody tr').length === 2");
    assert_eq!(browser.run("return document.getElementById('filter').value"), "");
    // A person who types in the filter and then goes elsewhere stays there.
    browser.run(
        "const filter = document.getElementById('filter'); filter.value = 'st'; \
         filter.dispatchEvent(new Event('input')); location.hash = '#/lock?name=pay'",
    );
    browser.until("document.querySelector('h1')?.innerText === 'pay'");
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(browser.run("return location.hash"), "#/lock?name=pay");

    world.go("#/hot?minutes=60&by=turnover");
    browser.until("document.querySelector('[data-focus=\"60\"][aria-pressed=true]')");
    browser.click("nav a[data-page=hot]");
    browser.until("document.querySelector('[data-focus=\"5\"][aria-pressed=true]')");
    browser.until("document.querySelector('[data-focus=waiting][aria-pressed=true]')");
    drop(guards);
    world.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_page_goes_on_after_an_answer_of_something_between() {
    let world = World::start().await;
    let browser = &world.browser;
    world.sign_in(LOOK);
    browser.run(
        "const real = window.fetch; window.failures = 2; window.fetch = (path, options) => \
         String(path).includes('/v1/console') && window.failures-- > 0 \
         ? Promise.resolve(new Response('gone', { status: 404 })) : real(path, options)",
    );
    world.go("#/store");
    browser.until("document.querySelector('.words dd')");
    browser.until("document.getElementById('banner').hidden");
    assert!(browser.run("return window.failures").as_i64() < Some(1));
    world.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_page_that_nobody_sees_lets_its_connection_go() {
    let world = World::start().await;
    let browser = &world.browser;
    world.sign_in(LOOK);
    browser.run(
        "const real = window.fetch; window.streams = 0; window.ended = 0; window.fetch = (path, options) => { \
         if (String(path).includes('/v1/console')) { streams++; \
         options.signal.addEventListener('abort', () => ended++); } return real(path, options); }",
    );
    world.go("#/hot");
    browser.until("window.streams === 1 && document.querySelector('.nothing:not([hidden])')");
    let hide = "Object.defineProperty(document, 'hidden', { value: arguments[0], configurable: true }); \
                document.dispatchEvent(new Event('visibilitychange'))";
    browser.run_with(hide, &json!([true]));
    browser.until("window.ended === 1");
    assert_eq!(browser.run("return window.streams"), 1);
    let guard = world.keeper.mutex("meanwhile").lock().await.expect("free");
    browser.run_with(hide, &json!([false]));
    browser.until("window.streams === 2");
    world.go("#/locks");
    browser.until_text("meanwhile");
    drop(guard);
    world.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_eviction_says_what_it_means_for_this_holder() {
    let world = World::start().await;
    let browser = &world.browser;
    let renewed = world.keeper.mutex("renewed").lock().await.expect("free");
    let fixed =
        world.keeper.mutex("fixed").expires_after(Duration::from_secs(90)).lock().await.expect("free");
    world.sign_in(ADMIN);
    for (name, soon, now) in [
        ("renewed", "next renewal is refused, within 10s", "up to 30s"),
        ("fixed", "Nobody renews this lease", "up to 1m30s"),
    ] {
        world.go(&format!("#/lock?name={name}"));
        browser.until(&format!("document.querySelector('h1')?.innerText === '{name}'"));
        browser.click("button.evict");
        let said = browser.text("dialog");
        assert!(said.contains(soon), "{said}");
        browser.click("dialog input[value=now]");
        let said = browser.text("dialog");
        assert!(said.contains(now) && said.contains("Without fencing"), "{said}");
        browser.click("dialog button[type=button]");
    }
    // After an eviction the focus does not begin anew at the top of the document.
    world.go("#/lock?name=renewed");
    browser.until("document.querySelector('h1')?.innerText === 'renewed'");
    browser.click("button.evict");
    browser.click("#reason");
    browser.press("stuck");
    browser.click("#sure");
    browser.click("dialog button[type=submit]");
    browser.until("!document.querySelector('dialog') && !document.querySelector('button.evict')");
    assert_ne!(browser.run("return document.activeElement.localName"), "body");
    drop((renewed, fixed));
    world.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leases_are_red_when_the_server_says_that_they_are_late() {
    let world = World::start().await;
    let browser = &world.browser;
    world.sign_in(LOOK);
    let red = |holder: serde_json::Value, more: u64| {
        browser.wait_for(&format!(
            "const {{ leaseBar }} = await import('/console/locks.js'); const bar = leaseBar(); \
             bar.set({holder}, {more}); return `${{bar.root.classList.contains('short')}} ${{bar.root.innerText ?? bar.root.textContent}}`"
        ))
    };
    let healthy =
        json!({ "left_ms": 9000, "lease_ms": 10_000, "held_ms": 60_000, "renewed": true, "late": false });
    // The next sample comes after eight seconds.
    assert_eq!(red(healthy.clone(), 7900), "false 5s");
    let mut late = healthy.clone();
    (late["late"], late["left_ms"]) = (json!(true), json!(3000));
    assert_eq!(red(late, 1000), "true 2s");
    let mut fixed = healthy;
    fixed["renewed"] = json!(false);
    assert_eq!(red(fixed, 8000), "false 1s");
    world.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names_that_look_alike_are_told_apart() {
    let world = World::start().await;
    let browser = &world.browser;
    let mut guards = Vec::new();
    for end in ["", "\u{3164}", "\u{2800}", "\u{a0}", "\u{fe0f}", "\u{34f}", "\u{e0101}"] {
        guards.push(world.keeper.mutex(&format!("prod/deploy{end}")).lock().await.expect("free"));
    }
    world.sign_in(LOOK);
    browser.until("document.querySelectorAll('table.locks tbody tr').length === 7");
    let names =
        browser.run("return [...document.querySelectorAll('td.c-name a')].map((link) => link.innerText)");
    let mut names: Vec<&str> =
        names.as_array().expect("names").iter().filter_map(serde_json::Value::as_str).collect();
    names.sort_unstable();
    let shown =
        ["2800", "3164", "34f", "a0", "e0101", "fe0f"].map(|mark| format!("prod/deploy\\u{{{mark}}}"));
    assert_eq!(names[1..], shown, "{names:?}");
    assert_eq!(names[0], "prod/deploy");
    drop(guards);
    world.end().await;
}
