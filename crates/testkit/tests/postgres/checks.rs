//! The findings of `check` on real servers.

use lockkeeper_postgres::{Risk, check};
use lockkeeper_testkit::servers::{PgBouncer, Postgres};

async fn risks(url: &str) -> Vec<Risk> {
    let found = check(url).await.expect("checked");
    assert!(found.iter().all(|finding| finding.to_string().contains("; ")), "what to do: {found:?}");
    found.into_iter().map(|finding| finding.risk).collect()
}

/// Applies a setting of the server.
fn set(server: &Postgres, name: &str, value: &str) {
    server.sql(&format!("ALTER SYSTEM SET {name} = '{value}'")).expect("set");
    server.sql("SELECT pg_reload_conf()").expect("loaded");
    let shown = format!("SELECT setting FROM pg_settings WHERE name = '{name}'");
    while server.sql(&shown).expect("asked") != value {}
}

#[tokio::test(flavor = "multi_thread")]
async fn each_risk_is_found_on_a_server() {
    let server = Postgres::start().expect("started");
    assert_eq!(risks(&server.url()).await, []);
    lockkeeper::connect(&format!("{}?strict=true", server.url())).await.expect("a good server").close().await;
    set(&server, "synchronous_commit", "off");
    assert_eq!(risks(&server.url()).await, [Risk::Durability]);
    let strict = lockkeeper::connect(&format!("{}?strict=true", server.url())).await;
    let error = strict.expect_err("refused").to_string();
    assert!(error.contains("strict=true") && error.contains("synchronous_commit"), "{error}");
    set(&server, "synchronous_commit", "on");
    let replica = server.replica().expect("follows");
    assert_eq!(risks(&server.url()).await, [Risk::Replication]);
    let name = server.sql("SELECT application_name FROM pg_stat_replication").expect("asked");
    set(&server, "synchronous_standby_names", &name);
    while server.sql("SELECT sync_state FROM pg_stat_replication").expect("asked") != "sync" {}
    assert_eq!(risks(&server.url()).await, []);
    set(&server, "synchronous_standby_names", "");
    drop(replica);
}

/// A pooler is found whether the URL tells of it or not, and also one that the URL tells of and that is not there.
#[tokio::test(flavor = "multi_thread")]
async fn a_pooler_is_found() {
    let server = Postgres::start().expect("started");
    let pooler = PgBouncer::before(&server).expect("started");
    for url in
        [pooler.url(), format!("{}?pooler=true", pooler.url()), format!("{}?pooler=true", server.url())]
    {
        assert_eq!(risks(&url).await, [Risk::Pooler], "{url}");
    }
    let between = check(&pooler.url()).await.expect("checked");
    assert!(between[0].to_string().contains("pooler=true"), "{between:?}");
}
