//! Servers and settings that cannot work, and the messages about them.

use std::time::Duration;

use lockkeeper::error::StoreErrorKind;

use crate::{relay::Relay, stage::Stage};

/// Servers before 3.6 cannot read many nodes with one request. A relay makes a server of today look like one.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_too_old_is_named_on_connecting() {
    let stage = Stage::single(Duration::from_secs(20));
    let relay = Relay::start(stage.address(), true);
    let url = format!("zookeeper://{}?session=20s&tick=200ms", relay.address());
    let error = lockkeeper::connect(&url).await.expect_err("too old");
    assert_eq!(error.kind(), StoreErrorKind::Unsupported, "{error}");
    assert!(error.to_string().contains("3.6"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_shorter_than_the_session_names_what_to_change() {
    let stage = Stage::single(Duration::from_secs(4));
    // The settings are not in the URL, which messages show.
    let keeper = lockkeeper::connect(&stage.servers.url()).await.expect("connected");
    let error = keeper.mutex("stock").lease(Duration::from_secs(1)).lock().await.expect_err("too short");
    let error = error.to_string();
    assert!(error.contains("?session=") && error.contains("&tick="), "{error}");
    keeper.close().await;
}
