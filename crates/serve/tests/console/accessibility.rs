//! Pictures of every page, light, dark and narrow, and axe-core's judgement of them.

use std::path::PathBuf;

use serde_json::json;

use crate::world::{ADMIN, World};

/// Returns the script of axe-core, which `./test` fetches.
fn axe() -> String {
    let file = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../target/axe/package/axe.min.js");
    std::fs::read_to_string(&file)
        .unwrap_or_else(|error| panic!("{}: {error}; run ./test tools", file.display()))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_page_is_whole_and_accessible_in_every_shape() {
    let axe = axe();
    let world = World::with(|settings, _| settings.demo = true).await;
    let browser = &world.browser;
    world.sign_in(ADMIN);
    let pages = [
        ("locks", "#/locks", "table.locks tbody tr"),
        ("lock", "#/lock?name=deploy%2Fproduction", ".lanes .hold"),
        ("lost", "#/lock?name=scheduler%2Fleader", ".lanes .lost"),
        ("evicted", "#/lock?name=report%2Fmonthly", ".lanes .evicted"),
        ("hot", "#/hot", ".hot .curve path"),
        ("alarms", "#/alarms", ".alarms li"),
        ("store", "#/store", ".words dd"),
    ];
    for (shape, scheme, width) in [("light", "light", 1360), ("dark", "dark", 1360), ("narrow", "light", 390)]
    {
        browser.prefer(scheme);
        browser.resize(width, 1000);
        for (page, address, shows) in pages {
            world.go(address);
            browser.until(&format!("document.querySelector({})", json!(shows)));
            let wide = browser.run("return document.documentElement.scrollWidth - innerWidth");
            assert_eq!(wide, 0, "{page} is too wide when {shape}");
            browser.picture(&format!("{page}-{shape}"));
            judge(browser, &axe, &format!("{page}, {shape}"));
        }
        world.go("#/lock?name=billing%2Finvoices");
        browser.click("button.evict");
        browser.until("document.querySelector('dialog[open]')");
        browser.picture(&format!("evict-{shape}"));
        judge(browser, &axe, &format!("evict, {shape}"));
        browser.click("dialog button[type=button]");
    }
    assert_eq!(browser.complaints(), Vec::<String>::new());
    world.end().await;
}

fn judge(browser: &crate::browser::Browser, axe: &str, what: &str) {
    browser.run(&format!("if (!window.axe) {{ {axe}\n; window.axe ??= axe }}"));
    let found = browser.wait_for(
        "const { violations } = await window.axe.run(document, { resultTypes: ['violations'] }); \
         return violations.map((found) => `${found.id}: ${found.nodes.map((node) => node.html).slice(0, 3).join(' ')}`)",
    );
    assert_eq!(found, json!([]), "{what}");
}
