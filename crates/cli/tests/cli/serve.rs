//! `lockkeeper serve` as a process: its output and its end.

use std::io::{BufRead, BufReader};
#[cfg(feature = "full")]
use std::{
    io::{Read, Write},
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use nix::sys::signal::Signal;

use crate::world::{Done, Running, World, eventually};

/// A server process.
pub(crate) struct Served {
    running: Running,
}

impl Served {
    /// Ends it as an operator does.
    pub(crate) fn end(self) -> Done {
        self.running.signal(Signal::SIGTERM);
        let done = self.running.done();
        assert_eq!(done.code, Some(0), "{done:?}");
        done
    }
}

/// Starts a server on the store of `world`; returns its URL and the token that it made.
pub(crate) fn start(world: &World) -> (Served, String, String) {
    start_with(world, &[])
}

pub(crate) fn start_with(world: &World, options: &[&str]) -> (Served, String, String) {
    let mut args = vec!["serve", "--listen", "127.0.0.1:0"];
    args.extend(options);
    let mut running = world.start(&args);
    let lines = BufReader::new(running.stdout()).lines();
    let printed: Vec<String> = lines.take(2).collect::<Result<_, _>>().expect("it prints");
    let [first, second] = &printed[..] else { panic!("{printed:?}") };
    let url = first.strip_prefix("listening on ").unwrap_or_else(|| panic!("{first}")).to_owned();
    let token = second.split("#token=").nth(1).unwrap_or_else(|| panic!("{second}")).to_owned();
    assert!(second.starts_with(&format!("open {url}/#token=")), "{second}");
    (Served { running }, url, token)
}

/// Asks with curl; returns the status and the body.
fn ask(world: &World, url: &str, token: &str, body: Option<&str>) -> (String, String) {
    let mut curl = world.command("curl");
    curl.args(["-s", "-w", "\n%{http_code}", "-H", &format!("Authorization: Bearer {token}"), url]);
    if let Some(body) = body {
        curl.args(["-H", "Content-Type: application/json", "-d", body]);
    }
    let done = Running::spawn(curl).done();
    let (text, status) = done.out.rsplit_once('\n').expect("a status");
    (status.to_owned(), text.to_owned())
}

#[test]
fn the_token_is_printed_once_and_is_in_no_log() {
    let world = World::new();
    let (server, url, token) = start(&world);
    assert_eq!(token.len(), 64);
    let (status, text) =
        ask(&world, &format!("{url}/v1/acquire"), &token, Some("{\"name\":\"a\",\"lease\":\"1m\"}"));
    assert_eq!(status, "200", "{text}");
    assert_eq!(ask(&world, &format!("{url}/v1/locks"), "wrong", None).0, "401");
    let done = server.end();
    assert!(done.err.contains("\"granted\"") && !done.err.contains(&token), "{}", done.err);
    // The lease belongs to nobody's process: the server has ended, and it is still held.
    assert_eq!(world.holders("a"), 1);
}

#[test]
fn a_signal_tells_those_who_wait_and_ends_it() {
    let world = World::new();
    let (server, url, token) = start(&world);
    let acquire = format!("{url}/v1/acquire");
    let (status, held) = ask(&world, &acquire, &token, Some("{\"name\":\"a\",\"lease\":\"1m\"}"));
    assert_eq!(status, "200", "{held}");
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| ask(&world, &acquire, &token, Some("{\"name\":\"a\",\"wait\":\"5m\"}")));
        eventually("it waits", || (world.waiters("a") == 1).then_some(()));
        server.end();
        let (status, told) = waits.join().expect("answered");
        assert!(status == "503" && told.contains("shutting_down"), "{status} {told}");
    });
    assert_eq!((world.holders("a"), world.waiters("a")), (1, 0));
}

/// All clients of the one server share such a store, so it is refused by the other subcommands only.
#[test]
fn a_store_in_the_memory_of_the_server_is_served() {
    let world = World::new();
    let (server, url, token) = start_with(&world, &["--store", "memory:", "-v"]);
    let acquire = format!("{url}/v1/acquire");
    let (status, text) = ask(&world, &acquire, &token, Some("{\"name\":\"a\",\"lease\":\"1m\"}"));
    assert_eq!(status, "200", "{text}");
    let (status, text) = ask(&world, &acquire, &token, Some("{\"name\":\"a\",\"lease\":\"1m\"}"));
    assert_eq!(status, "409", "another client finds it held: {text}");
    let done = server.end();
    assert_eq!(done.err.matches("the store is memory:\n").count(), 1, "{}", done.err);
    let other = world.run(&["--store", "memory:", "list"]);
    assert!(other.code == Some(64) && other.err.contains("within one process"), "{other:?}");
}

#[test]
fn wrong_settings_are_wrong_usage() {
    let world = World::new();
    for (options, says) in [
        (vec!["--listen", "0.0.0.0:0"], "--behind-proxy"),
        (vec!["--listen", "nowhere"], "127.0.0.1:7171"),
        (vec!["--tls-cert", "x"], "--tls-key"),
        (vec!["--token-file", "missing"], "missing"),
        (vec!["--rate", "0"], "at least 1"),
        (vec!["--demo", "--store", "sqlite:locks.db"], "leave out --demo"),
        (vec!["--demo", "--store-file", "url"], "leave out --demo"),
    ] {
        let mut args = vec!["serve"];
        args.extend(options);
        let done = world.run(&args);
        assert!(done.code == Some(64) && done.err.contains(says), "{done:?}");
    }
    let done = world.run(&["serve", "--store", "redis://127.0.0.1:1/"]);
    assert_eq!(done.code, Some(69), "{done:?}");
}

/// Two servers on one Redis, one of which is killed: clients go on at the other one, and nothing is held twice.
#[cfg(feature = "full")]
#[test]
fn clients_go_on_when_one_of_two_servers_is_killed() {
    let world = World::new();
    let redis = crate::server::Server::start("redis");
    let tokens = world.path("tokens");
    world.write_private("tokens", "use useuseuseuseuseuse worker\n");
    let start = || {
        let mut args = vec!["serve", "--listen", "127.0.0.1:0", "--store", &redis.url, "--token-file"];
        let file = tokens.display().to_string();
        args.push(&file);
        let mut running = world.start(&args);
        let line = BufReader::new(running.stdout()).lines().next().expect("it prints").expect("text");
        let address = line.strip_prefix("listening on http://").expect("a URL").parse().expect("an address");
        (running, address)
    };
    let (first, second) = (start(), start());
    let addresses: [std::net::SocketAddr; 2] = [first.1, second.1];
    let job =
        Job { addresses, inside: AtomicBool::new(false), done: AtomicUsize::new(0), token: Mutex::new(0) };
    std::thread::scope(|scope| {
        for client in 0..6 {
            let job = &job;
            scope.spawn(move || job.work(client));
        }
        eventually("some work", || (job.done.load(Ordering::SeqCst) > 60).then_some(()));
        first.0.signal(Signal::SIGKILL);
        let before = job.done.load(Ordering::SeqCst);
        eventually("more work", || (job.done.load(Ordering::SeqCst) > before + 60).then_some(()));
        job.done.store(usize::MAX, Ordering::SeqCst);
    });
    second.0.signal(Signal::SIGTERM);
    assert_eq!(second.0.done().code, Some(0));
}

/// Work that several clients do one at a time, and its record.
#[cfg(feature = "full")]
struct Job {
    addresses: [std::net::SocketAddr; 2],
    inside: AtomicBool,
    done: AtomicUsize,
    token: Mutex<u64>,
}

#[cfg(feature = "full")]
impl Job {
    fn work(&self, client: usize) {
        let mut turn = client;
        while self.done.load(Ordering::SeqCst) != usize::MAX {
            turn += 1;
            // A lease that was granted by the killed server and not told ends by itself.
            let body = "{\"name\":\"job\",\"wait\":\"30s\",\"lease\":\"10s\"}";
            let Some(held) = self.post(turn, "/v1/acquire", body) else { continue };
            let field = |name: &str| {
                held.split(&format!("\"{name}\":\"")).nth(1)?.split('"').next().map(str::to_owned)
            };
            let (Some(lease), Some(token)) = (field("lease"), field("token")) else { continue };
            assert!(!self.inside.swap(true, Ordering::SeqCst), "it is held twice");
            let token: u64 = token.parse().expect("a number");
            let before = std::mem::replace(&mut *self.token.lock().expect("whole"), token);
            assert!(before < token, "tokens grow");
            self.inside.store(false, Ordering::SeqCst);
            let release = format!("{{\"lease\":\"{lease}\"}}");
            // The other one releases it as well.
            if self.post(turn, "/v1/release", &release).is_none() {
                self.post(turn + 1, "/v1/release", &release);
            }
            let _ = self.done.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |done| done.checked_add(1));
        }
    }

    /// Returns the answer of one of the servers; `None` if it is gone or refuses.
    fn post(&self, turn: usize, path: &str, body: &str) -> Option<String> {
        let mut stream = std::net::TcpStream::connect(self.addresses[turn % 2]).ok()?;
        let request = format!(
            "POST {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer useuseuseuseuseuse\r\nConnection: \
             close\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        stream.write_all(request.as_bytes()).ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        answer.starts_with("HTTP/1.1 200").then_some(answer)
    }
}
