//! Ways to connect: TLS, sockets, users with few rights. And passwords, which are never shown.

use std::{fmt::Write as _, sync::Mutex};

use lockkeeper_core::support;

use lockkeeper::Keeper;
use lockkeeper_testkit::{
    proxy::{Fault, Proxy},
    servers::{Redis, RedisOptions, RedisSentinel},
};
use tokio::time::{Instant, timeout};

use crate::{NAME, connect, millis, secs};

/// Does everything that a program may do: a lock, a lock that a waiter is granted, a latch, a fence, a listing.
async fn use_everything(url: &str) {
    let (ours, theirs) = (connect(url).await, connect(url).await);
    let guard = ours.mutex(NAME).lock().await.expect("free");
    ours.fence(NAME).admit(guard.token()).await.expect("the newest");
    let mutex = theirs.mutex(NAME);
    let waiting = tokio::spawn(async move { mutex.lock().await });
    while ours.inspect(NAME).await.expect("allowed").is_none_or(|view| view.waiters.is_empty()) {
        tokio::time::sleep(millis(2)).await;
    }
    guard.release().await.expect("held");
    let guard = timeout(secs(10), waiting).await.expect("in time").expect("no panic").expect("granted");
    assert_eq!(ours.list("", None, 10).await.expect("allowed").resources.len(), 1);
    guard.release().await.expect("held");
    let latch = ours.latch(NAME);
    latch.create(1).await.expect("new");
    latch.count_down().await.expect("counted");
    latch.delete().await.expect("there");
    ours.close().await;
    theirs.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn over_tls_and_over_a_socket() {
    let redis = RedisOptions::default().tls().start().expect("started");
    use_everything(&redis.url()).await;
    use_everything(&redis.socket_url()).await;
    // The URL does not name the authority that signed the server's certificate.
    let stranger = redis.url().split('?').next().expect("the front").to_owned();
    let error = lockkeeper::connect(&stranger).await.expect_err("not like this");
    assert!(error.to_string().contains("ca= names who signed it"), "{error}");
}

/// Both ways round, the error names the URL that is right.
#[tokio::test(flavor = "multi_thread")]
async fn tls_where_there_is_none_and_none_where_there_is() {
    let secured = RedisOptions::default().tls().start().expect("started");
    let open = RedisOptions::default().password("pass").start().expect("started");
    for (url, words) in [
        (format!("redis://{}/", secured.address()), "speaks TLS; write rediss://"),
        (format!("redis+cluster://{}", secured.address()), "speaks TLS; write rediss+cluster://"),
        (format!("rediss://{}/", open.address()), "does not speak TLS; write redis://"),
        (format!("rediss+cluster://{}", open.address()), "does not speak TLS; write redis+cluster://"),
        (format!("redis+sentinel://{}/main", secured.address()), "speaks TLS; write rediss+sentinel://"),
        (format!("rediss+sentinel://{}/main", open.address()), "does not speak TLS; write redis+sentinel://"),
    ] {
        let error = lockkeeper::connect(&url).await.expect_err("not like this");
        assert!(error.to_string().contains(words), "{url}: {error}");
    }
}

/// A user that may use nothing but the namespace, and no commands of administrators.
#[tokio::test(flavor = "multi_thread")]
async fn as_a_user_with_few_rights() {
    let rules = "~app:* &app:* +@all -@admin -@dangerous";
    let redis = RedisOptions::default().user("app", "pass", rules).start().expect("started");
    use_everything(&format!("{}?namespace=app", redis.url_as("app", "pass"))).await;
    let error = match lockkeeper::connect(&redis.url_as("app", "pass")).await {
        Err(error) => error.to_string(),
        Ok(keeper) => keeper.mutex(NAME).try_lock().await.expect_err("another namespace").to_string(),
    };
    assert!(error.contains("NOPERM") && error.contains("~"), "it says which rights are missing: {error}");
}

/// Without messages, waiters ask again by themselves, which takes a little longer.
#[tokio::test(flavor = "multi_thread")]
async fn without_the_right_to_subscribe() {
    let rules = "~* resetchannels +@all -subscribe -psubscribe -ssubscribe -publish -spublish";
    let redis = RedisOptions::default().user("app", "pass", rules).start().expect("started");
    let url = redis.url_as("app", "pass");
    let (ours, theirs) = match (lockkeeper::connect(&url).await, lockkeeper::connect(&url).await) {
        (Ok(ours), Ok(theirs)) => (ours, theirs),
        (Err(error), _) | (_, Err(error)) => panic!("{error}"),
    };
    let guard = ours.mutex(NAME).lock().await.expect("free");
    let mutex = theirs.mutex(NAME);
    let waiting = tokio::spawn(async move { mutex.lock().await });
    while ours.inspect(NAME).await.expect("allowed").is_none_or(|view| view.waiters.is_empty()) {
        tokio::time::sleep(millis(2)).await;
    }
    guard.release().await.expect("held");
    let released = Instant::now();
    let guard = timeout(secs(10), waiting).await.expect("in time").expect("no panic").expect("granted");
    assert!(released.elapsed() < secs(4), "{:?}", released.elapsed());
    guard.release().await.expect("held");
    let connections = redis.info("stats", "total_connections_received").expect("asked");
    assert!(
        connections.parse::<u32>().expect("a number") < 40,
        "it goes on trying, but not at once: {connections}"
    );
}

const CANARY: &str = "canary-d41d8cd9";

/// Everything that any crate logs, at every level.
static LOGGED: Mutex<String> = Mutex::new(String::new());

fn log_everything() {
    lockkeeper_testkit::log::listen(
        |_| true,
        |row| writeln!(support::lock(&LOGGED), "{row}").expect("a string takes everything"),
    );
}

/// All that a program may print of an error.
fn shown(error: &dyn std::error::Error) -> String {
    let mut text = format!("{error} {error:?} {error:#?}");
    let mut source = error.source();
    while let Some(cause) = source {
        write!(text, " {cause} {cause:?}").expect("a string takes everything");
        source = cause.source();
    }
    text
}

#[tokio::test(flavor = "multi_thread")]
async fn a_password_is_never_shown() {
    log_everything();
    let redis = RedisOptions::default().password(CANARY).start().expect("started");
    let proxy = Proxy::start(redis.address()).expect("started");
    let behind = format!("redis://:{CANARY}@{}/", proxy.address());
    let builder = lockkeeper::builder(&behind).expect("a good URL").request_limit(millis(200));
    let keeper: Keeper = builder.outage_limit(millis(500)).connect().await.expect("connected");
    let mut text = format!("{keeper:?} {} {:?}", keeper.url(), keeper.mutex(NAME));
    let guard = keeper.mutex(NAME).lock().await.expect("free");
    write!(text, " {guard:?}").expect("a string takes everything");
    proxy.refuse(true);
    proxy.now(Fault::LOST_REPLY);
    text += &shown(&keeper.mutex("other").try_lock().await.expect_err("cut off"));
    drop(guard);
    for (port, password) in [(redis.address().port(), "wrong-canary-d41d8cd9"), (1, CANARY)] {
        for scheme in ["redis", "rediss", "redis+cluster"] {
            let url = format!("{scheme}://default:{password}@127.0.0.1:{port}/?sentinel_password={CANARY}");
            text += &shown(&lockkeeper::connect(&url).await.expect_err("it cannot"));
        }
        let url =
            format!("redis+sentinel://default:{password}@127.0.0.1:{port}/main?sentinel_password={CANARY}");
        text += &shown(&lockkeeper::connect(&url).await.expect_err("it cannot"));
    }
    // A server that repeats a command that it does not know.
    let odd = RedisOptions::default().password(CANARY).setting("rename-command HELLO \"\"");
    let odd = odd.start().expect("started");
    let error = lockkeeper::connect(&odd.url()).await.expect_err("it speaks no RESP3");
    assert!(error.to_string().contains("unknown command"), "{error}");
    text += &shown(&error);
    for url in
        [format!("redis://:{CANARY}@"), format!("redis://:{CANARY}@host:port/{CANARY}?{CANARY}={CANARY}")]
    {
        text += &shown(&lockkeeper::connect(&url).await.expect_err("no URL"));
    }
    proxy.refuse(false);
    keeper.close().await;
    assert!(!text.contains("canary"), "{text}");
    let logged = support::lock(&LOGGED);
    assert!(logged.contains("lockkeeper"), "nothing was logged, so nothing was proved: {logged}");
    assert!(!logged.contains("canary"), "{logged}");
}

/// Sentinels and servers with a password: used, and not shown.
#[tokio::test(flavor = "multi_thread")]
async fn sentinels_in_front_of_servers_with_a_password() {
    log_everything();
    let servers = RedisSentinel::start_with(&RedisOptions::default().password(CANARY)).expect("started");
    let url = servers.url();
    assert!(url.contains(CANARY), "what programs are given: {url}");
    use_everything(&url).await;
    let error = lockkeeper::connect(&url.replace(CANARY, "wrong")).await.expect_err("a wrong password");
    assert!(error.to_string().contains("password"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_password_where_one_is_asked_for() {
    let redis = RedisOptions::default().password("pass").start().expect("started");
    let error = lockkeeper::connect(&format!("redis://{}/", redis.address())).await.expect_err("no password");
    assert!(error.to_string().contains("password"), "{error}");
    let gone = Redis::start().expect("started").url();
    let error = lockkeeper::connect(&gone).await.expect_err("nobody listens");
    assert!(error.to_string().contains("check that it is up"), "{error}");
}

/// A user that lacks a right fails in the middle of a script. The keys that it leaves beside a resource do no harm, and
/// its error does not say that nothing was done.
#[tokio::test(flavor = "multi_thread")]
async fn a_script_that_a_user_may_not_finish_does_no_harm() {
    let rules = "~* &* +@all -rename";
    let redis = RedisOptions::default().user("lacks", "pass", rules).start().expect("started");
    let (ours, lacks) = (connect(&redis.url()).await, connect(&redis.url_as("lacks", "pass")).await);
    let held = ours.mutex(NAME).lock().await.expect("free");
    let error = lacks.mutex(NAME).lock().await.expect_err("it may not wait");
    assert!(error.to_string().contains("it needs") && error.maybe_applied(), "{error:?}");
    let beside = format!("lockkeeper:{{{NAME}}}:new");
    assert_eq!(redis.command(["EXISTS", &beside]).expect("asked"), "1", "this is about what it leaves");
    let mutex = ours.mutex(NAME);
    let waiting = tokio::spawn(async move { mutex.lock().await });
    while ours.inspect(NAME).await.expect("asked").is_none_or(|view| view.waiters.is_empty()) {
        tokio::time::sleep(millis(2)).await;
    }
    let view = ours.inspect(NAME).await.expect("asked").expect("held");
    assert_eq!((view.holders.len(), view.waiters.len()), (1, 1), "{view:?}");
    held.release().await.expect("held");
    let next = timeout(secs(10), waiting).await.expect("in time").expect("no panic").expect("granted");
    next.release().await.expect("held");
}
