//! `list`, `show` and `evict`, as operators see them and as programs read them.

use serde_json::Value;

use crate::world::{Running, World, eventually};

/// A key, and whether its value is as it should be.
type Field<'a> = (&'a str, fn(&Value) -> bool);

/// Checks that an object has exactly these keys, with values of these types.
fn check(value: &Value, schema: &[Field<'_>]) {
    let object = value.as_object().unwrap_or_else(|| panic!("an object: {value}"));
    assert_eq!(object.len(), schema.len(), "{value}");
    for (key, fits) in schema {
        assert!(object.get(*key).is_some_and(fits), "{key} in {value}");
    }
}

fn is_token(value: &Value) -> bool {
    value.as_str().is_some_and(|text| text.parse::<i64>().is_ok())
}

fn is_units(value: &Value) -> bool {
    value == "all" || value.as_u64().is_some_and(|units| units > 0)
}

/// Whether it has the form of 2026-11-15T10:13:07.998Z.
fn is_moment(value: &Value) -> bool {
    value.as_str().is_some_and(|text| {
        let shape: String = text.chars().map(|c| if c.is_ascii_digit() { '0' } else { c }).collect();
        shape == "0000-00-00T00:00:00.000Z"
    })
}

fn check_resource(value: &Value) {
    check(
        value,
        &[
            ("name", Value::is_string),
            ("kind", |kind| ["mutex", "rw_lock", "semaphore", "election"].map(Value::from).contains(kind)),
            ("capacity", is_units),
            ("holders", Value::is_array),
            ("waiters", Value::is_array),
        ],
    );
    for holder in value["holders"].as_array().expect("checked") {
        check(
            holder,
            &[
                ("token", is_token),
                ("host", Value::is_string),
                ("pid", Value::is_u64),
                ("program", Value::is_string),
                ("label", |label| label.is_null() || label.is_string()),
                ("since", is_moment),
                ("remaining_ms", Value::is_u64),
                ("units", is_units),
                ("value", |value| value.is_null() || value.is_string()),
                ("evicted", Value::is_boolean),
            ],
        );
    }
    for waiter in value["waiters"].as_array().expect("checked") {
        check(
            waiter,
            &[
                ("host", Value::is_string),
                ("pid", Value::is_u64),
                ("program", Value::is_string),
                ("label", |label| label.is_null() || label.is_string()),
                ("since", is_moment),
                ("units", is_units),
            ],
        );
    }
}

#[test]
fn json_keeps_its_schema() {
    let world = World::new();
    assert_eq!(world.run(&["list", "--json"]).out, "[]\n");
    for args in [
        vec!["acquire", "jobs/a", "--label", "by hand"],
        vec!["acquire", "jobs/b", "-s"],
        vec!["acquire", "jobs/b", "-s"],
        vec!["acquire", "other", "--permits", "2/5"],
    ] {
        assert_eq!(world.run(&args).code, Some(0), "{args:?}");
    }
    let first = world.start(&["run", "jobs/a", "--fifo", "--label", "first", "--", "true"]);
    eventually("a waiter", || (world.waiters("jobs/a") == 1).then_some(()));
    let second = world.start(&["run", "jobs/a", "--fifo", "--label", "second", "--", "true"]);
    eventually("two waiters", || (world.waiters("jobs/a") == 2).then_some(()));
    let list: Value = serde_json::from_str(&world.run(&["list", "--json"]).out).expect("JSON");
    let all = list.as_array().expect("an array");
    all.iter().for_each(check_resource);
    let names: Vec<&Value> = all.iter().map(|resource| &resource["name"]).collect();
    assert_eq!(names, ["jobs/a", "jobs/b", "other"]);
    let a = &all[0];
    assert_eq!((&a["kind"], &a["capacity"]), (&Value::from("mutex"), &Value::from("all")));
    assert_eq!(a["holders"][0]["label"], "by hand");
    assert_eq!((&a["waiters"][0]["label"], &a["waiters"][1]["label"]), (&"first".into(), &"second".into()));
    assert_eq!(all[1]["holders"].as_array().map(Vec::len), Some(2));
    assert_eq!((&all[2]["capacity"], &all[2]["holders"][0]["units"]), (&5.into(), &2.into()));
    let part: Value = serde_json::from_str(&world.run(&["list", "jobs/", "--json"]).out).expect("JSON");
    assert_eq!(part.as_array().map(Vec::len), Some(2));
    check_resource(&world.show("other"));
    let free = world.show("free");
    assert_eq!(free["name"], "free");
    assert_eq!((&free["holders"], &free["waiters"]), (&serde_json::json!([]), &serde_json::json!([])));
    drop((first, second));
}

#[test]
fn people_see_a_table() {
    let world = World::new();
    let lease = world.run(&["acquire", "jobs/a", "--label", "by hand", "--json"]).out;
    let lease: Value = serde_json::from_str(&lease).expect("JSON");
    let list = world.run(&["list"]).out;
    let row = list.lines().nth(1).expect("a row below the head");
    for part in ["jobs/a", "mutex", "lockkeeper[", "by hand", lease["token"].as_str().expect("text")] {
        assert!(row.contains(part), "{part} in {row}");
    }
    assert!(world.run(&["show", "jobs/a"]).out.contains("by hand"));
    assert_eq!(world.run(&["show", "free"]).out, "free is free\n");
}

/// The label is the file name of CMD without its arguments, unless one is given.
#[test]
fn an_operator_sees_what_runs_and_what_a_leader_says() {
    let world = World::new();
    let wait = "echo > \"$0\"; read x";
    let mut runs = Vec::new();
    for (name, options) in [("plain", &["run"][..]), ("labelled", &["run", "--label", "nightly"])] {
        let args = [options, &[name, "--", "/bin/sh", "-c", wait, name, "hidden-word"]].concat();
        let mut command = world.lockkeeper(&args);
        command.stdin(std::process::Stdio::piped());
        runs.push(Running::spawn(command));
        drop(world.line(name));
    }
    let mut leader = world.lockkeeper(&["elect", "boss", "--value", "10.0.0.7:80", "--lease", "1m", "--"]);
    leader.args(["sh", "-c", wait, "led"]).stdin(std::process::Stdio::piped());
    let leader = Running::spawn(leader);
    drop(world.line("led"));
    let list = world.run(&["list"]).out;
    let row = |name: &str| list.lines().find(|line| line.starts_with(name)).expect(name).to_owned();
    assert!(row("plain").contains(" sh ") && row("labelled").contains(" nightly "), "{list}");
    assert!(!list.contains("hidden-word") && !row("labelled").contains(" sh "), "{list}");
    let shown = world.run(&["show", "boss"]).out;
    assert!(shown.contains("value 10.0.0.7:80") && !shown.contains("evicted"), "{shown}");
    assert_eq!(world.show("boss")["holders"][0]["value"], "10.0.0.7:80");
    let evicted = world.run(&["evict", "boss", "--yes", "--reason", "moving to the new rack"]);
    assert_eq!(evicted.code, Some(0), "{evicted:?}");
    let told = leader.done();
    assert_eq!(told.code, Some(79), "{told:?}");
    assert!(told.err.contains("evicted by an operator"), "{told:?}");
}

/// Nobody renews this hold, so nobody hears of the eviction and gives it back before the operator looks.
#[test]
fn an_operator_sees_who_is_being_evicted() {
    let world = World::new();
    for name in ["x", "y"] {
        assert_eq!(world.run(&["acquire", name, "--lease", "1h"]).code, Some(0));
    }
    assert_eq!(world.run(&["evict", "x", "--yes", "--reason", "test"]).code, Some(0));
    for (name, evicted) in [("x", true), ("y", false)] {
        let shown = world.run(&["show", name]).out;
        assert_eq!(shown.contains("being evicted"), evicted, "{shown}");
        assert_eq!(world.show(name)["holders"][0]["evicted"], evicted);
    }
}

#[test]
fn foreign_words_reach_no_terminal_raw() {
    let world = World::new();
    let label = "evil\u{1b}[2J\u{9b}31m\r\nsecond\u{202e}line\u{7f}";
    assert_eq!(world.run(&["acquire", "x", "--label", label]).code, Some(0));
    for args in [&["list"][..], &["show", "x"], &["list", "--json"], &["show", "x", "--json"]] {
        let out = world.run(args).out;
        assert!(out.contains("evil"), "{args:?}: {out}");
        let raw = out.chars().find(|c| (c.is_control() && *c != '\n') || *c == '\u{202e}');
        assert_eq!(raw, None, "{args:?}: {out:?}");
    }
    assert_eq!(world.show("x")["holders"][0]["label"], label, "JSON gives it back whole");
    let done = world.run(&["evict", "x", "--yes", "--reason", "because\u{1b}[0m"]);
    assert!(done.code == Some(0) && !done.out.contains('\u{1b}'), "{done:?}");
}

#[test]
fn evict_names_its_holders() {
    let world = World::new();
    let free = world.run(&["evict", "x", "--reason", "test"]);
    assert!(free.code == Some(0) && free.out.contains("nobody holds x"), "{free:?}");
    let mut tokens = Vec::new();
    for _ in 0..3 {
        let done = world.run(&["acquire", "x", "-s", "--json"]);
        let told: Value = serde_json::from_str(&done.out).expect("JSON");
        tokens.push(told["token"].as_str().expect("text").to_owned());
    }
    let one = world.run(&["evict", "x", "--token", &tokens[1], "--now", "--yes", "--reason", "tired of it"]);
    assert!(one.out.contains(&tokens[1]) && one.out.contains("tired of it"), "{one:?}");
    assert_eq!(world.holders("x"), 2);
    let again = world.run(&["evict", "x", "--token", &tokens[1], "--now", "--yes", "--reason", "test"]);
    assert!(again.code == Some(0) && again.out.contains("no holder with token"), "{again:?}");
    let rest = world.run(&["evict", "x", "--now", "--yes", "--reason", "test"]);
    assert!(rest.out.contains(&tokens[0]) && rest.out.contains(&tokens[2]), "{rest:?}");
    assert_eq!(world.holders("x"), 0);
    assert_eq!(world.run(&["evict", "x", "--token", "word", "--yes", "--reason", "test"]).code, Some(64));
    assert_eq!(world.run(&["evict", "x", "--yes"]).code, Some(64), "a reason is needed");
}
