//! Alarms, evictions, and the console without a mouse.

use std::fs;

use crate::{
    browser::{ENTER, ESCAPE, SPACE, TAB},
    world::{ADMIN, LOOK, World},
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_alarm_appears_and_goes_and_its_limits_are_read_again() {
    let world = World::with(|settings, folder| {
        let file = folder.path().join("alarms.toml");
        fs::write(&file, "[[alarm]]\nnames = 'slow/*'\nheld = '1s'\n").expect("written");
        settings.alarms = Some(file);
    })
    .await;
    let browser = &world.browser;
    world.sign_in(LOOK);
    let guard = world.keeper.mutex("slow/job").label("the job").lock().await.expect("free");
    browser.until("document.querySelector('.badge:not([hidden])')?.innerText.startsWith('1')");
    browser.until("document.querySelector('td.c-name .mark')");
    browser.click("nav a[data-page=alarms]");
    browser.until_text("Held too long");
    assert!(browser.text(".alarms .saw").contains("the job"), "{}", browser.text(".alarms .saw"));
    guard.release().await.expect("held");
    browser.until("document.querySelector('.alarms.past li')");
    browser.until("document.querySelector('.badge').hidden");
    browser.until_text("No alarm.");

    let file = world.folder.path().join("alarms.toml");
    fs::write(&file, "[[alarm]]\nnames = 'slow/*'\nheld = 'never'\n").expect("written");
    browser.until_text("The file cannot be used");
    fs::write(&file, "[[alarm]]\nnames = 'other/*'\nheld = '7m'\n").expect("written");
    browser.until("document.querySelector('.limits').innerText.includes('other/*')");
    assert_eq!(browser.complaints(), Vec::<String>::new());
    world.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_is_evicted_with_a_reason_and_after_a_confirmation() {
    let world = World::start().await;
    let browser = &world.browser;
    let guard = world.keeper.mutex("stuck").lock().await.expect("free");
    world.sign_in(ADMIN);
    world.go("#/lock?name=stuck");
    browser.click("button.evict");
    let said = browser.text("dialog");
    assert!(said.contains("safe with and without fencing"), "{said}");
    browser.click("dialog input[value=now]");
    let said = browser.text("dialog");
    assert!(said.contains("With fencing this is safe") && said.contains("Without fencing"), "{said}");
    // Without a reason and the confirmation nothing happens.
    browser.click("dialog button[type=submit]");
    assert!(guard.is_held() && browser.count("dialog[open]") == 1);
    browser.click("#reason");
    browser.press("its machine is gone");
    browser.click("#sure");
    browser.click("dialog button[type=submit]");
    browser.until("!document.querySelector('dialog')");
    browser.until_text("Free: nobody holds it");
    browser.until("document.querySelector('.lanes .evicted')");
    let title = browser.run("return document.querySelector('.lanes .hold title').textContent");
    assert!(title.as_str().is_some_and(|title| title.contains("by ops: its machine is gone")), "{title}");
    drop(guard);
    assert_eq!(browser.complaints(), Vec::<String>::new());
    world.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_may_only_look_cannot_evict() {
    let world = World::start().await;
    let browser = &world.browser;
    let guard = world.keeper.mutex("safe").lock().await.expect("free");
    world.sign_in(LOOK);
    world.go("#/lock?name=safe");
    browser.until("document.querySelector('.holders li')");
    assert_eq!(browser.count("button.evict"), 0);
    // Nor by hand.
    let status = browser.wait_for(
        "const token = sessionStorage.getItem('lockkeeper-token'); \
         const headers = { Authorization: `Bearer ${token}`, 'Content-Type': 'application/json' }; \
         const body = JSON.stringify({ name: 'safe', reason: 'none' }); \
         return (await fetch('/v1/evict', { method: 'POST', headers, body })).status",
    );
    assert_eq!(status, 403);
    assert!(guard.is_held());
    drop(guard);
    world.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn everything_works_with_the_keyboard_alone() {
    let world = World::start().await;
    let browser = &world.browser;
    let guards = [
        world.keeper.mutex("alpha").lock().await.expect("free"),
        world.keeper.mutex("beta").lock().await.expect("free"),
    ];
    world.sign_in(ADMIN);
    browser.until_text("beta");
    browser.press("/");
    browser.until("document.activeElement.id === 'filter'");
    browser.press("be");
    browser.until("document.querySelectorAll('table.locks tbody tr').length === 1");
    assert!(browser.run("return document.activeElement.id") == "filter", "the focus stays");
    // Past the heads of the columns that sort, to the name.
    let tab_until = |condition: &str| {
        for _ in 0..30 {
            if browser.run(&format!("return Boolean({condition})")) == true {
                return;
            }
            browser.press(TAB);
        }
        panic!("no way to {condition}");
    };
    tab_until("document.activeElement.matches('td.c-name a')");
    browser.press(ENTER);
    browser.until("document.querySelector('h1')?.innerText === 'beta'");
    browser.until("document.querySelector('button.evict')");
    tab_until("document.activeElement.matches('button.evict')");
    browser.press(ENTER);
    browser.until("document.activeElement.id === 'reason'");
    browser.press(ESCAPE);
    browser.until("!document.querySelector('dialog')");
    browser.until("document.activeElement.matches('button.evict')");
    browser.press(ENTER);
    browser.until("document.activeElement.id === 'reason'");
    browser.press("tidied up");
    tab_until("document.activeElement.id === 'sure'");
    browser.press(SPACE);
    tab_until("document.activeElement.matches('dialog button[type=submit]')");
    browser.press(ENTER);
    browser.until("!document.querySelector('dialog')");
    // It may have learned of it already.
    browser.until("/being evicted|Free: nobody/.test(document.body.innerText)");
    drop(guards);
    world.end().await;
}
