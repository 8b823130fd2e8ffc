//! TLS, SASL, and messages that name the fault without showing a password.

use std::{
    fmt::Write as _,
    time::{Duration, Instant},
};

use lockkeeper::{StoreError, error::StoreErrorKind};
use lockkeeper_testkit::{
    proxy::Proxy,
    servers::{RedisOptions, ZooKeeperOptions},
};

use crate::stage::{soon, until_renewed};

/// A refusal comes within this time.
const QUICK: Duration = Duration::from_secs(3);

/// Passes a lock from one keeper to another.
async fn use_it(url: &str) {
    let ours = lockkeeper::connect(url).await.expect("connected");
    let theirs = lockkeeper::connect(url).await.expect("connected");
    let guard = ours.mutex("stock").lock().await.expect("free");
    let mutex = theirs.mutex("stock");
    let waiting = tokio::spawn(async move { mutex.lock().await });
    while ours.inspect("stock").await.expect("asked").is_none_or(|view| view.waiters.is_empty()) {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    let token = guard.token();
    guard.release().await.expect("held");
    let guard = soon(waiting).await.expect("no panic").expect("granted");
    assert!(guard.token() > token);
    guard.release().await.expect("held");
    ours.close().await;
    theirs.close().await;
}

/// The error of a connect that fails soon.
async fn refused(url: &str) -> StoreError {
    let started = Instant::now();
    let error = lockkeeper::connect(url).await.expect_err("not like this");
    assert!(started.elapsed() < QUICK, "{error} only after {:?}", started.elapsed());
    error
}

/// Everything that a program may print of an error.
fn shown(error: &StoreError) -> String {
    let mut text = format!("{error} {error:?} {error:#?}");
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        write!(text, " {cause} {cause:?}").expect("a string takes everything");
        source = cause.source();
    }
    text
}

/// Works beside Redis over TLS, which shares the cryptography provider of the process.
#[tokio::test(flavor = "multi_thread")]
async fn over_tls_beside_redis_over_tls() {
    let servers = ZooKeeperOptions::default().tls().start().expect("started");
    let url = format!("{}&session=10s&tick=200ms", servers.tls_url());
    use_it(&url).await;
    let redis = RedisOptions::default().tls().start().expect("started");
    use_it(&redis.url()).await;
    use_it(&url).await;

    // An authority that did not sign the servers' certificate.
    let foreign = redis.certificates().expect("started with TLS").authority();
    let ours = servers.certificates().authority();
    let error = refused(&url.replace(&ours.display().to_string(), &foreign.display().to_string())).await;
    assert_eq!(error.kind(), StoreErrorKind::Denied, "{error}");
    assert!(
        error.to_string().contains("TLS handshake") && shown(&error).contains("InvalidCertificate"),
        "{error:?}"
    );
    // No client certificate, although the servers require one.
    let (bare, _) = url.split_once("&cert=").expect("with a certificate");
    let error = refused(bare).await;
    assert_eq!(error.kind(), StoreErrorKind::Denied, "{error}");
    assert!(error.to_string().contains("cert"), "{error}");
    // A file that is no certificate.
    let error = refused(&url.replace("ca.crt", "zoo.cfg")).await;
    assert_eq!(error.kind(), StoreErrorKind::Config, "{error}");
    // No TLS at all, to a port that requires it.
    let error = refused(url.split('?').next().expect("the front")).await;
    assert_eq!(error.kind(), StoreErrorKind::Unreachable, "{error}");
}

/// After a cut connection the keeper shows its password again.
#[tokio::test(flavor = "multi_thread")]
async fn a_password_is_shown_again_after_a_cut() {
    let servers = ZooKeeperOptions::default().sasl("app", "pass").start().expect("started");
    let proxy = Proxy::start(servers.nodes()[0].address()).expect("started");
    let url = format!("zookeeper://app:pass@{}?auth=sasl&session=10s&tick=200ms", proxy.address());
    let keeper = lockkeeper::connect(&url).await.expect("connected");
    let guard = keeper.rw_lock("stock").write().await.expect("free");
    let lock = keeper.rw_lock("stock");
    let waiting = tokio::spawn(async move { lock.read().await });
    while keeper.inspect("stock").await.expect("asked").is_none_or(|view| view.waiters.is_empty()) {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    proxy.cut_all();
    until_renewed(&guard).await;
    guard.release().await.expect("still held");
    soon(waiting).await.expect("no panic").expect("granted").release().await.expect("held");
    keeper.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn with_a_password_by_digest_md5() {
    let servers = ZooKeeperOptions::default().sasl("app", "canary-1").start().expect("started");
    let with = |login: &str| {
        let url = servers.url().replace("zookeeper://", &format!("zookeeper://{login}"));
        format!("{url}?auth=sasl&session=10s&tick=200ms")
    };
    use_it(&with("app:canary-1@")).await;
    for login in ["app:canary-2@", "canary:canary-1@", ""] {
        let error = refused(&with(login)).await;
        assert_eq!(error.kind(), StoreErrorKind::Denied, "{error}");
        assert!(error.to_string().contains("password"), "{error}");
        assert!(!shown(&error).contains("canary"), "{error:?}");
    }
}
