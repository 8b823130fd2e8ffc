//! `lockkeeper serve` as a process: what it prints, and how it ends.

use std::io::{BufRead, BufReader};

use nix::sys::signal::Signal;

use crate::world::{Done, Running, World};

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

/// Starts a server on the store of `world`; its URL, and the token that it made.
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

/// Asks with curl; the status and what was answered.
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
fn wrong_settings_are_wrong_usage() {
    let world = World::new();
    for (options, says) in [
        (vec!["--listen", "0.0.0.0:0"], "--behind-proxy"),
        (vec!["--listen", "nowhere"], "127.0.0.1:7171"),
        (vec!["--tls-cert", "x"], "--tls-key"),
        (vec!["--token-file", "missing"], "missing"),
        (vec!["--rate", "0"], "at least 1"),
    ] {
        let mut args = vec!["serve"];
        args.extend(options);
        let done = world.run(&args);
        assert!(done.code == Some(64) && done.err.contains(says), "{done:?}");
    }
    let done = world.run(&["serve", "--store", "redis://127.0.0.1:1/"]);
    assert_eq!(done.code, Some(69), "{done:?}");
}
