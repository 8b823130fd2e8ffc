//! `lockkeeper doctor`: its findings and its exit codes.

use std::{fs, os::unix::fs::PermissionsExt};

use serde_json::Value;

use crate::world::{Done, World};

fn json(done: &Done) -> Value {
    serde_json::from_str(&done.out).unwrap_or_else(|error| panic!("{error}: {done:?}"))
}

fn risks(done: &Done) -> Vec<String> {
    let found = json(done)["findings"].as_array().cloned().unwrap_or_default();
    found.iter().map(|finding| finding["risk"].as_str().unwrap_or_default().to_owned()).collect()
}

#[test]
fn a_file_that_anybody_may_write_to_is_a_warning() {
    let world = World::new();
    let done = world.run(&["doctor", "--json"]);
    let report = json(&done);
    assert_eq!(
        (&report["kind"], &report["ok"]),
        (&Value::from("sqlite"), &Value::from(done.code == Some(0)))
    );
    for time in ["connect_ms", "acquire_ms", "release_ms", "clock_offset_ms"] {
        assert!(report[time].is_number(), "{time} {report}");
    }
    assert!(!risks(&done).contains(&"Permissions".to_owned()));
    fs::set_permissions(world.path("locks.db"), fs::Permissions::from_mode(0o666)).expect("set");
    let done = world.run(&["doctor", "--json"]);
    assert!(done.code == Some(1) && risks(&done).contains(&"Permissions".to_owned()), "{done:?}");
    let done = world.run(&["doctor"]);
    assert!(
        done.code == Some(1) && done.out.contains("chmod o-w") && done.out.contains("acquired"),
        "{done:?}"
    );
    assert_eq!(world.run(&["list", "--json"]).out, "[]\n", "it leaves nothing behind");
}

#[cfg(feature = "redis")]
#[test]
fn a_store_out_of_reach_is_69() {
    let world = World::new();
    let done = world.run(&["--store", "redis://:canary@127.0.0.1:1/", "doctor", "--json"]);
    assert_eq!((done.code, &json(&done)["ok"]), (Some(69), &Value::from(false)), "{done:?}");
    assert!(!done.out.contains("canary"), "{done:?}");
    assert_eq!(world.run(&["--store", "nonsense", "doctor"]).code, Some(64));
}

#[cfg(feature = "full")]
#[test]
fn servers_are_looked_at() {
    for (server, kind, risk) in
        [("redis", "redis", "NoPersistence"), ("zookeeper", "zookeeper", "Standalone")]
    {
        let world = World::new();
        let server = crate::server::Server::start(server);
        let done = world.run(&["--store", &server.url, "doctor", "--json"]);
        assert_eq!((done.code, &json(&done)["kind"]), (Some(1), &Value::from(kind)), "{done:?}");
        assert!(risks(&done).contains(&risk.to_owned()), "{done:?}");
        let found = json(&done);
        assert!(
            found["servers"][0]["answers"] == true
                && server.url.contains(found["servers"][0]["server"].as_str().expect("text")),
            "{found}"
        );
        assert!(world.run(&["--store", &server.url, "doctor"]).out.contains("server "), "in words, too");
    }
}
