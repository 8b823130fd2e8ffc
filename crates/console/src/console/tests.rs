//! The console as a server uses it.

use std::collections::HashSet;

use lockkeeper::{doctor::ServerState, memory, store::CountState};

use super::*;
use crate::{
    diagnosis::Finding,
    history::tests::{START, Seen, resource, sample},
};

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
    let rules = "[webhook]\nurl = 'http://hooks.secret/'\n\
                 [[alarm]]\nnames = ['theirs/*', 'm*/1', 'theirs']\nheld = '1s'\n\
                 [[alarm]]\nnames = 'theirs/1'\nwaiters = 3\n[[alarm]]\nwaited = '1d'";
    let rules = Rules::parse(rules).expect("good rules");
    console.set_rules(rules, Some("/etc/secret.toml".into())).expect("good rules");
    console.rules_failed("a secret");
    observe(&console, 0, &[]);
    for second in 1..5 {
        let locks = ["mine/1", "theirs/1"].map(|name| resource(name).held_by(1).waited_by(2));
        observe(&console, second, &locks);
    }
    let prefixes = ["mine/".to_owned()];
    for query in [r#"{}"#, r#"{"view":"hot"}"#, r#"{"view":"alarms"}"#, r#"{"view":"store"}"#] {
        let all = view(&console, query, Scope::all()).to_string();
        let some = view(&console, query, Scope::of(&prefixes)).to_string();
        assert!(!some.contains("theirs") && !some.contains("secret"), "{some}");
        assert_eq!(all.contains("theirs"), all.contains("mine"), "{all}");
    }
    let limits = &view(&console, r#"{"view":"alarms"}"#, Scope::of(&prefixes))["body"]["limits"];
    let names: Vec<_> = limits.as_array().expect("rows").iter().map(|row| row["names"].clone()).collect();
    assert_eq!(names, ["m*/1", "*", "elections", "all others"]);
    let kept = view(&console, r#"{"view":"store"}"#, Scope::of(&prefixes))["body"]["kept"].to_string();
    assert!(!kept.contains("of them now"), "{kept}");
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
        risk: "Durability".into(),
        message: "nothing is saved; set appendonly yes".into(),
    };
    let server = |server: &str, role: &str| ServerState {
        server: server.into(),
        answers: true,
        role: role.into(),
        version: "7.0.15".into(),
    };
    let servers = vec![
        server("10.0.0.1:6379", "master"),
        server("10.0.0.2:6379", "replica of 10.0.0.1:6379"),
        ServerState::silent("10.0.0.3:6379"),
    ];
    console.set_diagnosis(START, Diagnosis { servers, findings: vec![finding] });
    let shown = view(&console, r#"{"view":"alarms"}"#, Scope::all());
    assert_eq!(shown["body"]["active"][0]["saw"], "10.0.0.1:6379: nothing is saved; set appendonly yes");
    let shown = view(&console, r#"{"view":"store"}"#, Scope::all());
    assert_eq!(shown["body"]["findings"][0]["server"], "10.0.0.1:6379");
    let servers = &shown["body"]["servers"];
    assert_eq!((&servers[0]["warnings"], &servers[1]["warnings"]), (&1.into(), &0.into()), "{servers}");
    assert_eq!((&servers[2]["answers"], &servers[2]["words"]), (&false.into(), &"does not answer".into()));
    console.set_diagnosis(START + 1000, Diagnosis::default());
    assert_eq!(view(&console, "{}", Scope::all())["head"]["alarms"], 0);
}

#[tokio::test]
async fn a_file_that_cannot_be_used_changes_nothing() {
    let console = console();
    let rules = Rules::parse("[[alarm]]\nnames='x'\nheld = '5s'").expect("good rules");
    console.set_rules(rules, Some("f".into())).expect("good rules");
    console.rules_failed("line 3: nonsense");
    let shown = view(&console, r#"{"view":"alarms"}"#, Scope::all());
    assert_eq!(shown["body"]["limits"][0]["held"], "5s");
    assert_eq!(shown["body"]["file_error"], "line 3: nonsense");
    assert_eq!(shown["body"]["limits"].as_array().expect("rows").len(), 3);
}

#[tokio::test]
async fn a_webhook_that_cannot_be_used_changes_nothing() {
    let console = console();
    let good = "[webhook]\nurl = 'http://hooks.example/'\n[[alarm]]\nnames='x'\nheld = '5s'";
    console.set_rules(Rules::parse(good).expect("good rules"), Some("f".into())).expect("good rules");
    let bad = "[webhook]\nurl = 'http://other.example/'\nauthorization = \"Bearer canary\\u0007\"";
    let error = console.set_rules(Rules::parse(bad).expect("it can be read"), Some("f".into()));
    let error = error.expect_err("a header").to_string();
    assert!(error.contains("authorization") && !error.contains("canary"), "{error}");
    let shown = view(&console, r#"{"view":"alarms"}"#, Scope::all());
    assert_eq!(shown["body"]["limits"][0]["held"], "5s");
    assert_eq!(shown["body"]["webhook"]["receiver"], "hooks.example");
}

#[tokio::test]
async fn a_store_that_is_silent_is_told_in_time_and_since_its_last_answer() {
    let console = console();
    observe(&console, 10, &[]);
    // A listing is under way all the time. It has not failed yet.
    for second in [13, 16] {
        console.silent(START + second * 1000, START + 10_000, "no answer");
    }
    let shown = view(&console, r#"{"view":"alarms"}"#, Scope::all());
    assert_eq!(shown["head"]["outage"]["since_ms"], START + 10_000);
    assert_eq!(shown["body"]["active"][0]["since_ms"], START + 10_000);
    assert_eq!(shown["body"]["active"][0]["saw"], "the store has not answered for 6s: no answer");
    console.fail(START + 30_000, "the listing took too long");
    // It answers, but cannot be listed.
    console.answered(START + 31_000);
    let shown = view(&console, "{}", Scope::all());
    assert_eq!(shown["head"]["outage"]["message"], "the listing took too long");
    observe(&console, 32, &[]);
    assert!(view(&console, "{}", Scope::all())["head"]["outage"].is_null());
}

#[tokio::test]
async fn a_doctor_that_cannot_look_says_so() {
    let console = console();
    let risk = "Durability".to_owned();
    let finding = Finding { server: None, risk, message: "nothing is saved".into() };
    console.set_diagnosis(START, Diagnosis { findings: vec![finding], ..Diagnosis::default() });
    console.doctor_failed("NOPERM");
    let shown = view(&console, r#"{"view":"store"}"#, Scope::all());
    assert_eq!(shown["body"]["check_error"], "NOPERM");
    assert_eq!(shown["body"]["findings"].as_array().expect("rows").len(), 1);
    console.set_diagnosis(START + 1000, Diagnosis::default());
    let shown = view(&console, r#"{"view":"store"}"#, Scope::all());
    assert!(shown["body"]["check_error"].is_null() && shown["body"]["is_checked"] == true);
    console.not_checked();
    assert_eq!(view(&console, r#"{"view":"store"}"#, Scope::all())["body"]["is_checked"], false);
}

#[tokio::test]
async fn before_the_first_sample_a_timeline_has_a_length() {
    let shown = view(&console(), r#"{"view":"lock","name":"a"}"#, Scope::all());
    let timeline = &shown["body"]["timeline"];
    assert!(timeline["to_ms"].as_u64() > timeline["from_ms"].as_u64(), "{timeline}");
}

#[tokio::test]
async fn two_consoles_number_their_alarms_apart() {
    let first = |console: &Console| {
        console.fail(START, "refused");
        console.fail(START + 6_000, "refused");
        view(console, r#"{"view":"alarms"}"#, Scope::all())["body"]["active"][0]["id"].as_u64()
    };
    let ids: HashSet<_> = (0..5).map(|_| first(&console())).collect();
    assert!(ids.len() > 1, "{ids:?}");
}

#[tokio::test]
async fn moments_of_several_tasks_may_come_in_the_wrong_order() {
    let console = console();
    observe(&console, 10, &[resource("a").held_by(1)]);
    console.set_diagnosis(START + 11_000, Diagnosis::default());
    console.observe(sample(START + 10_995, &[resource("a").held_by(1)]));
    console.fail(START + 10_990, "refused");
    assert_eq!(view(&console, "{}", Scope::all())["head"]["outage"]["since_ms"], START + 11_000);
}

#[tokio::test]
async fn a_latch_beside_a_lock_of_the_same_name_is_shown_too() {
    let console = console();
    let state = CountState { remaining: 1, initial: 2, opened: 0, born: 1 };
    let mut sample = sample(START, &[resource("x").held_by(1)]);
    sample.latches = vec![(Name::new("x").expect("a name"), state)];
    console.observe(sample);
    assert_eq!(view(&console, "{}", Scope::all())["body"]["rows"].as_array().expect("rows").len(), 2);
    let shown = view(&console, r#"{"view":"lock","name":"x"}"#, Scope::all());
    assert_eq!(
        (&shown["body"]["lock"]["kind"], &shown["body"]["latch"]["initial"]),
        (&json!("mutex"), &json!(2))
    );
}
