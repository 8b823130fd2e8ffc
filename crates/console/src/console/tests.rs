//! The console as a server uses it.

use lockkeeper::memory;

use super::*;
use crate::history::tests::{START, Seen, resource, sample};

fn console() -> Console {
    let store = StoreFacts { url: "memory:".into(), capability: memory::CAPABILITY.clone() };
    Console::new(store, Webhook::start())
}

fn observe(console: &Console, second: u64, seen: &[Seen]) {
    console.observe(sample(START + second * 1000, seen));
}

fn view(console: &Console, query: &str, scope: Scope<'_>) -> serde_json::Value {
    let query: Query = serde_json::from_str(query).expect("a query");
    let view = console.view(&query, scope, START + 1_000_000).expect("a good query");
    serde_json::to_value(view).expect("JSON")
}

#[tokio::test]
async fn before_the_first_sample_there_is_nothing() {
    let console = console();
    let shown = view(&console, "{}", Scope::all());
    assert_eq!(shown["view"], "locks");
    assert!(shown["head"]["sample"].is_null() && shown["body"]["rows"].as_array().expect("rows").is_empty());
    for page in ["hot", "alarms", "store"] {
        view(&console, &format!("{{\"view\":\"{page}\"}}"), Scope::all());
    }
    view(&console, r#"{"view":"lock","name":"a"}"#, Scope::all());
}

#[tokio::test]
async fn a_lock_appears_its_queue_grows_and_its_holder_changes() {
    let console = console();
    let mut news = console.news();
    observe(&console, 0, &[]);
    news.changed().await.expect("news");
    observe(&console, 1, &[resource("a").held_by(1).waited_by(2).waited_by(3)]);
    observe(&console, 2, &[resource("a").held_by(2).waited_by(3)]);
    let shown = view(&console, "{}", Scope::all());
    let row = &shown["body"]["rows"][0];
    assert_eq!((row["name"].as_str(), row["waiters"].as_u64()), (Some("a"), Some(1)));
    assert_eq!(row["holders"][0]["program"], "worker-2");
    let shown = view(&console, r#"{"view":"lock","name":"a","minutes":5}"#, Scope::all());
    assert_eq!(shown["body"]["queue"][0]["waited_ms"], 1000);
    assert_eq!(shown["body"]["timeline"]["lanes"].as_array().expect("lanes").len(), 3);
    assert!(shown["body"]["kept"].as_str().expect("text").contains("at most 100,000"));
}

#[tokio::test]
async fn an_outage_is_shown_and_becomes_an_alarm_and_both_end() {
    let console = console();
    observe(&console, 0, &[resource("a").held_by(1)]);
    for second in 1..8 {
        console.fail(START + second * 1000, "connection refused");
    }
    let shown = view(&console, "{}", Scope::all());
    assert_eq!(shown["head"]["outage"]["since_ms"], START + 1000);
    assert_eq!(shown["head"]["alarms"], 1);
    assert_eq!(shown["body"]["rows"].as_array().expect("rows").len(), 1, "the last sample stays");
    for second in 8..30 {
        observe(&console, second, &[resource("a").held_by(1)]);
    }
    let shown = view(&console, r#"{"view":"alarms"}"#, Scope::all());
    assert!(shown["head"]["outage"].is_null());
    assert_eq!(shown["head"]["alarms"], 0);
    assert_eq!(shown["body"]["ended"][0]["kind"], "store_out_of_reach");
}

#[tokio::test]
async fn a_token_with_prefixes_sees_its_names_only() {
    let console = console();
    let rules = Rules::parse("[[alarm]]\nheld = '1s'").expect("good rules");
    console.set_rules(rules, Some("alarms.toml".into()));
    observe(&console, 0, &[]);
    for second in 1..5 {
        let locks = ["mine/1", "theirs/1"].map(|name| resource(name).held_by(1).waited_by(2));
        observe(&console, second, &locks);
    }
    let prefixes = ["mine/".to_owned()];
    for query in [r#"{}"#, r#"{"view":"hot"}"#, r#"{"view":"alarms"}"#, r#"{"view":"store"}"#] {
        let all = view(&console, query, Scope::all()).to_string();
        let some = view(&console, query, Scope::of(&prefixes)).to_string();
        assert!(!some.contains("theirs"), "{some}");
        assert_eq!(all.contains("theirs"), all.contains("mine"), "{all}");
    }
    let query = Query { view: Page::Lock, name: "theirs/1".into(), ..Query::default() };
    assert!(console.view(&query, Scope::of(&prefixes), START).is_err());
    assert!(console.view(&query, Scope::all(), START).is_ok());
}

#[tokio::test]
async fn bad_queries_are_told() {
    let console = console();
    let bad = [
        Query { view: Page::Lock, ..Query::default() },
        Query { view: Page::Hot, minutes: Some(7), ..Query::default() },
    ];
    for query in bad {
        assert!(console.view(&query, Scope::all(), START).is_err(), "{query:?}");
    }
    assert!(serde_json::from_str::<Query>(r#"{"view":"locks","nonsense":1}"#).is_err());
}

#[tokio::test]
async fn findings_are_alarms_until_they_are_gone() {
    let console = console();
    let finding = Finding {
        server: Some("10.0.0.1:6379".into()),
        message: "nothing is saved; set appendonly yes".into(),
    };
    console.set_findings(START, vec![finding]);
    let shown = view(&console, r#"{"view":"alarms"}"#, Scope::all());
    assert_eq!(shown["body"]["active"][0]["saw"], "10.0.0.1:6379: nothing is saved; set appendonly yes");
    let shown = view(&console, r#"{"view":"store"}"#, Scope::all());
    assert_eq!(shown["body"]["findings"][0]["server"], "10.0.0.1:6379");
    console.set_findings(START + 1000, Vec::new());
    assert_eq!(view(&console, "{}", Scope::all())["head"]["alarms"], 0);
}

#[tokio::test]
async fn a_file_that_cannot_be_used_changes_nothing() {
    let console = console();
    console
        .set_rules(Rules::parse("[[alarm]]\nnames='x'\nheld = '5s'").expect("good rules"), Some("f".into()));
    console.rules_failed("line 3: nonsense");
    let shown = view(&console, r#"{"view":"alarms"}"#, Scope::all());
    assert_eq!(shown["body"]["limits"][0]["held"], "5s");
    assert_eq!(shown["body"]["file_error"], "line 3: nonsense");
    assert_eq!(shown["body"]["limits"].as_array().expect("rows").len(), 3);
}
