//! Limits, files that change, other ways in, and the end.

use std::{os::unix::fs::PermissionsExt, process::Command, time::Duration};

use lockkeeper_serve::{Listen, Server, Settings, TlsFiles};
use lockkeeper_testkit::servers::write_private;
use serde_json::json;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::UnixStream,
    sync::oneshot,
};

use crate::{
    client::{Client, LIMIT},
    world::{TOKENS, World},
};

#[tokio::test]
async fn a_token_has_a_rate_of_its_own() {
    let world = World::with(|settings| settings.limits.rate = 5).await;
    let mut last = None;
    for _ in 0..40 {
        last = Some(world.look().get("/v1/whoami").await).filter(|answer| answer.status == 429).or(last);
    }
    let refused = last.expect("it asked too often");
    assert_eq!((refused.code().as_str(), refused.header("retry-after")), ("too_many_requests", Some("1")));
    assert_eq!(world.user().get("/v1/whoami").await.status, 200);
}

#[tokio::test]
async fn so_many_wait_and_no_more() {
    let world = World::with(|settings| settings.limits.waiting = Some(2)).await;
    let lease = world.acquire("a").await;
    let mut waits = Vec::new();
    for waiting in 1..=2 {
        let user = world.user();
        let wait = async move { user.post("/v1/acquire", &json!({ "name": "a", "wait": "5m" })).await };
        waits.push(tokio::spawn(wait));
        world.until_counts("a", (1, waiting)).await;
    }
    let refused = world.user().post("/v1/acquire", &json!({ "name": "a", "wait": "5m" })).await;
    assert_eq!((refused.status, refused.code().as_str()), (429, "too_many_waiting"));
    assert!(refused.header("retry-after").is_some());
    assert_eq!(world.user().post("/v1/acquire", &json!({ "name": "free" })).await.status, 200);
    waits.remove(0).abort();
    world.until_counts("a", (1, 1)).await;
    world.release(&lease).await;
    assert_eq!(waits.remove(0).await.expect("answered").status, 200);
}

#[tokio::test]
async fn one_token_does_not_take_all_connections() {
    let world = World::with(|settings| settings.limits.connections = 16).await;
    let lease = world.acquire("a").await;
    // The limit of streams without an end.
    let mut streams = Vec::new();
    for _ in 0..16 {
        let mut stream = world.look().connect().await;
        stream
            .write_all(format!("{}\r\n", world.look().head("GET", "/v1/events")).as_bytes())
            .await
            .expect("sent");
        let mut status = [0; 12];
        // A server that is full closes at once.
        let read = stream.read_exact(&mut status).await.map(drop);
        streams
            .push((stream, read.map(|()| String::from_utf8_lossy(&status).into_owned()).unwrap_or_default()));
    }
    assert_eq!(world.user().get("/v1/whoami").await.status, 200);
    let count = |status: &str| streams.iter().filter(|(_, found)| found.ends_with(status)).count();
    assert_eq!((count("200"), count("429")), (1, 15));
    // The limit of requests that wait.
    let wait = || {
        let user = world.user();
        async move { user.post("/v1/acquire", &json!({ "name": "a", "wait": "5m" })).await }
    };
    let mut waits = Vec::new();
    for waiting in 1..=12 {
        waits.push(tokio::spawn(wait()));
        world.until_counts("a", (1, waiting)).await;
    }
    assert_eq!(wait().await.code(), "too_many_requests");
    let renewed = world.admin().post("/v1/renew", &json!({ "lease": lease })).await;
    assert_eq!(renewed.status, 200);
    drop(streams);
    world.release(&lease).await;
    waits.iter().for_each(tokio::task::JoinHandle::abort);
}

#[tokio::test]
async fn the_end_tells_those_who_wait_and_leaves_nothing_behind() {
    let store = "memory:the-end";
    let mut world = World::with(|settings| settings.store = store.into()).await;
    let keeper = lockkeeper::connect(store).await.expect("a store in this process");
    let guard = keeper.mutex("a").lock().await.expect("free");
    let user = world.user();
    let waits = tokio::spawn({
        let user = user.clone();
        async move { user.post("/v1/acquire", &json!({ "name": "a", "wait": "5m" })).await }
    });
    let latch = tokio::spawn({
        let user = user.clone();
        async move {
            user.post("/v1/latch/create", &json!({ "name": "l", "count": 1 })).await;
            user.post("/v1/latch/wait", &json!({ "name": "l", "wait": "5m" })).await
        }
    });
    let follows = tokio::spawn({
        let look = world.look();
        async move { look.get("/v1/events").await }
    });
    world.until_counts("a", (1, 1)).await;
    assert_eq!(user.get("/readyz").await.status, 200);
    let kept = world.acquire("kept").await;
    world.end();
    let told = waits.await.expect("answered");
    assert_eq!((told.status, told.code().as_str()), (503, "shutting_down"));
    assert!(told.header("retry-after").is_some());
    assert_eq!(latch.await.expect("answered").status, 503);
    assert_eq!(follows.await.expect("ended").status, 200);
    world.ended().await;
    let view = keeper.inspect("a").await.expect("asked").expect("it is held");
    assert_eq!((view.holders.len(), view.waiters.len()), (1, 0));
    // A lease that a caller has is still good.
    keeper.release_lease(&kept.parse().expect("a lease")).await.expect("held");
    drop(guard);
}

#[tokio::test]
async fn tokens_are_read_again_when_their_file_changes() {
    let world = World::start().await;
    let lease = world.acquire("a").await;
    let waits = tokio::spawn({
        let user = world.user();
        async move { user.post("/v1/acquire", &json!({ "name": "a", "wait": "5m" })).await }
    });
    world.until_counts("a", (1, 1)).await;
    // A file that cannot be used changes nothing.
    std::fs::write(world.token_file(), "nonsense\n").expect("written");
    world.until_logged(json!({ "level": "error" })).await;
    assert_eq!(world.user().get("/v1/whoami").await.status, 200);
    let without = TOKENS.replace("useuseuseuseuseuse", "newnewnewnewnewnew");
    std::fs::write(world.token_file(), without).expect("written");
    world.until_logged(json!({ "what": "tokens were read anew", "tokens": 5 })).await;
    assert_eq!(world.user().get("/v1/whoami").await.status, 401);
    assert_eq!(world.client("newnewnewnewnewnew").get("/v1/whoami").await.status, 200);
    assert_eq!(world.admin().get("/v1/whoami").await.status, 200);
    // A request that waits with a token that is no longer good gets nothing.
    world.release(&lease).await;
    assert_eq!(waits.await.expect("answered").code(), "wrong_token");
    world.until_counts("a", (0, 0)).await;
}

#[tokio::test]
async fn a_token_file_that_changes_during_the_start_is_read_again() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("tokens");
    write_private(&file, TOKENS).expect("written");
    let mut settings = Settings::new("memory:");
    settings.listen = "127.0.0.1:0".parse().expect("an address");
    settings.token_file = Some(file.clone());
    let server = Server::bind_with_log(settings, Box::new(std::io::sink())).await.expect("it starts");
    std::fs::write(&file, "administer adminadminadminadmin ops\n").expect("written");
    let Listen::Tcp(address) = *server.listens() else { panic!("a port") };
    let (end, ended) = oneshot::channel::<()>();
    let task = tokio::spawn(server.run(async move { drop(ended.await) }));
    let user = Client { address, token: "useuseuseuseuseuse".into() };
    let revoked = async {
        while user.get("/v1/whoami").await.status != 401 {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(LIMIT, revoked).await.expect("it is read again");
    drop(end);
    tokio::time::timeout(LIMIT, task).await.expect("in time").expect("without a panic");
}

/// Makes a certificate for localhost with this name in it.
fn certificate(folder: &std::path::Path, name: &str) -> TlsFiles {
    let files = TlsFiles { cert: folder.join("cert.pem"), key: folder.join("key.pem") };
    let (cert, key) = (folder.join("new-cert.pem"), folder.join("new-key.pem"));
    let done = Command::new("openssl")
        .args([
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:prime256v1",
            "-nodes",
            "-days",
            "2",
        ])
        .args(["-subj", &format!("/CN={name}"), "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"])
        .arg("-keyout")
        .arg(&key)
        .arg("-out")
        .arg(&cert)
        .output()
        .expect("openssl runs");
    assert!(done.status.success(), "{done:?}");
    std::fs::rename(key, &files.key).expect("renamed");
    std::fs::rename(cert, &files.cert).expect("renamed");
    files
}

async fn curl(world: &World, words: &[&str]) -> String {
    let url = format!("https://localhost:{}/v1/whoami", world.address.port());
    let mut command = tokio::process::Command::new("curl");
    let cert = world.folder.path().join("cert.pem");
    command
        .args(["-s", "-S", "-v", "-H", "Authorization: Bearer adminadminadminadmin", "--cacert"])
        .arg(cert);
    let done = command.args(words).arg(url).output().await.expect("curl runs");
    format!("{}{}", String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr))
}

#[tokio::test]
async fn tls_is_spoken_and_its_certificate_read_again() {
    let folder = tempfile::tempdir().expect("a folder");
    let files = certificate(folder.path(), "first");
    let mut world = World::with(|settings| {
        settings.tls = Some(files);
        settings.hosts = vec!["locks.example".into()];
    })
    .await;
    // The files of the certificate are in a folder of their own.
    world.folder = folder;
    let first = curl(&world, &[]).await;
    assert!(first.contains("\"role\":\"administer\"") && first.contains("CN=first"), "{first}");
    // A browser would then want TLS from all servers of this machine.
    assert!(!first.contains("max-age"), "{first}");
    let named = curl(&world, &["-H", "Host: locks.example"]).await;
    assert!(named.contains("trict-") && named.contains("max-age"), "{named}");
    // In the clear there is no answer, and nobody else is disturbed.
    let plain = world.admin().get("/v1/whoami").await;
    assert_eq!(plain.status, 0, "{plain:?}");
    let silent = world.admin().connect().await;
    certificate(world.folder.path(), "second");
    world.until_logged(json!({ "what": "certificate and key were read anew" })).await;
    let second = curl(&world, &[]).await;
    assert!(second.contains("\"role\":\"administer\"") && second.contains("CN=second"), "{second}");
    drop(silent);
}

#[tokio::test]
async fn a_socket_of_the_file_system_is_for_its_owner() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("locks.sock");
    // The socket that a killed server left behind is replaced.
    drop(std::os::unix::net::UnixListener::bind(&path).expect("bound"));
    let mut settings = Settings::new("memory:");
    settings.listen = Listen::Unix(path.clone());
    let server = Server::bind_with_log(settings.clone(), Box::new(std::io::sink())).await.expect("it starts");
    let link = server.link().expect("it made a token");
    let token = link.split("#token=").nth(1).expect("in the fragment").to_owned();
    assert_eq!(token.len(), 64);
    assert_eq!(std::fs::metadata(&path).expect("there").permissions().mode() & 0o777, 0o600);
    let (end, ended) = oneshot::channel::<()>();
    let task = tokio::spawn(server.run(async move { drop(ended.await) }));
    let again = Server::bind_with_log(settings, Box::new(std::io::sink())).await.map(drop);
    assert!(again.expect_err("in use").to_string().contains("another process listens"));
    assert_eq!(std::fs::read_dir(folder.path()).expect("there").count(), 1, "only the socket is there");
    let mut stream = UnixStream::connect(&path).await.expect("it listens");
    let request = format!(
        "GET /v1/whoami HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\nConnection: close\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).await.expect("written");
    let mut text = String::new();
    stream.read_to_string(&mut text).await.expect("read");
    assert!(text.contains("200 OK") && text.contains("\"name\":\"operator\""), "{text}");
    drop(end);
    tokio::time::timeout(LIMIT, task).await.expect("in time").expect("without a panic");
    assert!(!path.exists());
}

#[tokio::test]
async fn behind_a_proxy_the_last_address_counts() {
    let world = World::with(|settings| settings.behind_proxy = true).await;
    let forwarded = "X-Forwarded-For: 6.6.6.6, 10.0.0.9\r\n";
    world.user().post_with("/v1/acquire", forwarded, &json!({ "name": "a" })).await;
    world.until_logged(json!({ "what": "acquire", "from": "10.0.0.9", "who": "worker" })).await;
    let direct = World::start().await;
    direct.user().post_with("/v1/acquire", forwarded, &json!({ "name": "a" })).await;
    direct.until_logged(json!({ "what": "acquire", "from": "127.0.0.1" })).await;
}

#[tokio::test]
async fn what_would_be_unsafe_does_not_start() {
    let refused = async |change: fn(&mut Settings)| {
        let mut settings = Settings::new("memory:");
        settings.listen = "127.0.0.1:0".parse().expect("an address");
        change(&mut settings);
        let started = Server::bind_with_log(settings, Box::new(std::io::sink())).await.map(drop);
        started.expect_err("refused").to_string()
    };
    let open = refused(|settings| settings.listen = "0.0.0.0:0".parse().expect("an address")).await;
    assert!(open.contains("--tls-cert"), "{open}");
    let missing = refused(|settings| settings.token_file = Some("/nowhere/tokens".into())).await;
    assert!(missing.contains("/nowhere/tokens"), "{missing}");
    // A file that others may read, as an editor makes it.
    let (folder, mut settings) = (tempfile::tempdir().expect("a folder"), Settings::new("memory:"));
    let file = folder.path().join("tokens");
    std::fs::write(&file, TOKENS).expect("written");
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644)).expect("set");
    settings.token_file = Some(file);
    let started = Server::bind_with_log(settings, Box::new(std::io::sink())).await.map(drop);
    let readable = started.expect_err("refused").to_string();
    assert!(readable.contains("its mode is 644") && readable.contains("chmod 600"), "{readable}");
    let broken =
        refused(|settings| settings.tls = Some(TlsFiles { cert: "/nowhere".into(), key: "/nowhere".into() }));
    assert!(broken.await.contains("/nowhere"));
    let store = refused(|settings| settings.store = "redis://:canary@127.0.0.1:1/".into()).await;
    assert!(!store.contains("canary"), "{store}");
}

#[tokio::test]
async fn a_client_that_does_not_read_is_given_up() {
    let world = World::with(|settings| settings.limits.patience = Duration::from_millis(300)).await;
    // Long listings, asked for again and again, until the system's buffers are full.
    for index in 0..200 {
        let body = json!({ "name": format!("n/{index}"), "label": "x".repeat(4000) });
        assert_eq!(world.user().post("/v1/acquire", &body).await.status, 200);
    }
    let mut stream = world.look().connect().await;
    let request = world.look().head("GET", "/v1/locks").replace("Connection: close\r\n", "");
    let pipelined = format!("{request}\r\n").repeat(100);
    let write = async {
        // Ends when the server gives up.
        while stream.write_all(pipelined.as_bytes()).await.is_ok() {}
    };
    tokio::time::timeout(LIMIT, write).await.expect("it is closed");
    assert_eq!(world.look().get("/v1/whoami").await.status, 200);
}
