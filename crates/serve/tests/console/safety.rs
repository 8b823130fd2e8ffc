//! Text of others stays text, and nobody gets in without a token.

use serde_json::json;

use crate::world::{ADMIN, LOOK, World};

const HOSTILE: [&str; 5] = [
    "<img src=x onerror=\"window.pwned=1\">",
    "</script><script>window.pwned=1</script>",
    "javascript:window.pwned=1",
    "\"'><svg/onload=window.pwned=1>",
    "a&b?name=c#token=eeeeeeeeeeeeeeee",
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hostile_names_and_labels_are_text_and_nothing_else() {
    let world = World::start().await;
    let browser = &world.browser;
    let mut guards = Vec::new();
    for name in HOSTILE {
        guards.push(world.keeper.mutex(name).label(name).lock().await.expect("free"));
    }
    // A name that looks like another one, because it has a mark that cannot be seen.
    guards.push(world.keeper.mutex("pay\u{202e}lla").lock().await.expect("free"));
    world.sign_in(ADMIN);
    browser.until(&format!(
        "document.querySelectorAll('table.locks tbody tr').length === {}",
        HOSTILE.len() + 1
    ));
    let shown =
        browser.run("return [...document.querySelectorAll('td.c-name a')].map((link) => link.textContent)");
    for name in HOSTILE {
        assert!(
            shown.as_array().is_some_and(|shown| shown.contains(&json!(name))),
            "{name} is not in {shown}"
        );
        world.go(&format!(
            "#/lock?name={}",
            lockkeeper::support::percent::encode(name, |_, byte| byte.is_ascii_alphanumeric())
        ));
        browser.until(&format!("document.querySelector('h1').textContent === {}", json!(name)));
        browser.until("document.querySelector('.holders .label')");
        assert_eq!(browser.text(".holders .label"), name);
    }
    world.go("#/locks");
    browser.until_text("pay\\u{202e}lla");
    for page in ["hot", "alarms", "store"] {
        world.go(&format!("#/{page}"));
        browser.until(&format!("document.querySelector('nav a[data-page={page}][aria-current]')"));
    }
    assert_eq!(browser.run("return window.pwned ?? null"), json!(null));
    assert_eq!(browser.complaints(), Vec::<String>::new());
    drop(guards);
    world.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_policy_holds_and_markup_cannot_be_made_of_text() {
    let world = World::start().await;
    let browser = &world.browser;
    world.sign_in(LOOK);
    let refused = browser.run(
        "try { document.body.innerHTML = '<b>x</b>'; return 'done' } catch (error) { return error.name }",
    );
    assert_eq!(refused, "TypeError");
    let policy = browser.wait_for("return (await fetch('/')).headers.get('content-security-policy')");
    let policy = policy.as_str().expect("a policy");
    assert!(policy.contains("default-src 'none'") && !policy.contains("unsafe"), "{policy}");
    world.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_token_the_page_asks_for_one() {
    let world = World::start().await;
    let browser = &world.browser;
    browser.open(&world.url);
    browser.until("document.activeElement.id === 'token'");
    browser.press("wrongwrongwrongwrong");
    browser.click("form button");
    browser.until("document.querySelector('.sign-in .wrong')");
    assert_eq!(browser.run("return sessionStorage.length"), 0);
    browser.until("document.activeElement.id === 'token'");
    browser.press(LOOK);
    browser.click("form button");
    browser.until("document.querySelector('.stats dd')");
    // A token that is taken back ends the session.
    let tokens = world.folder.path().join("tokens");
    std::fs::write(tokens, "look otherotherotherother other\n").expect("written");
    browser.until("document.querySelector('.sign-in')");
    world.end().await;
}
