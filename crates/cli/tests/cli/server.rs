//! Servers for tests of the command, started by the program `server` of the test kit.

use std::{
    io::{BufRead, BufReader, Read as _, Write as _},
    net::{TcpListener, TcpStream},
    path::Path,
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use crate::world::eventually;

/// A server that ends with the test, and its URL.
pub(crate) struct Server {
    process: Child,
    pub(crate) url: String,
}

impl Server {
    pub(crate) fn start(which: &str) -> Self {
        // The command has a build without these stores, so its tests do not depend on the crate of this program.
        let program = Path::new(env!("CARGO_BIN_EXE_lockkeeper")).with_file_name("server");
        let mut command = Command::new(&program);
        command.arg(which).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().unwrap_or_else(|error| {
            let program = program.display();
            panic!("{program}: {error}; build it: cargo build -p lockkeeper-testkit --all-features")
        });
        let mut url = String::new();
        let out = process.stdout.take().expect("piped");
        BufReader::new(out).read_line(&mut url).expect("it says its URL");
        Self { process, url: url.trim().to_owned() }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It ends with its stdin.
        drop(self.process.stdin.take());
        drop(self.process.wait());
    }
}

/// A way to a server that can swallow what is sent to it.
pub(crate) struct Link {
    pub(crate) url: String,
    state: Arc<LinkState>,
}

#[derive(Default)]
struct LinkState {
    swallows: AtomicBool,
    has_swallowed: AtomicBool,
}

impl Link {
    pub(crate) fn to(server: &Server) -> Self {
        let (scheme, rest) = server.url.split_once("://").expect("a URL");
        let (address, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (address, state) = (address.to_owned(), Arc::<LinkState>::default());
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let url = format!("{scheme}://{}/{path}", listener.local_addr().expect("bound"));
        let shared = state.clone();
        // These threads end with the test's process.
        thread::spawn(move || {
            for client in listener.incoming() {
                let client = client.expect("connected");
                let server = TcpStream::connect(&address).expect("it listens");
                let answers = (server.try_clone().expect("cloned"), client.try_clone().expect("cloned"));
                let never = Arc::<LinkState>::default();
                thread::spawn(move || never.carry(answers.0, answers.1));
                let shared = shared.clone();
                thread::spawn(move || shared.carry(client, server));
            }
        });
        Self { url, state }
    }

    /// Lets nothing arrive at the server from now on.
    pub(crate) fn swallow(&self) {
        self.state.swallows.store(true, Ordering::SeqCst);
    }

    /// Waits until something was swallowed.
    pub(crate) fn swallowed(&self) {
        eventually("a request", || self.state.has_swallowed.load(Ordering::SeqCst).then_some(()));
    }

    /// Lets everything arrive again from now on.
    pub(crate) fn pass(&self) {
        self.state.swallows.store(false, Ordering::SeqCst);
    }
}

impl LinkState {
    /// Carries bytes until one side ends, except those that are swallowed.
    fn carry(&self, mut from: TcpStream, mut to: TcpStream) {
        let mut bytes = [0; 4096];
        while let Ok(count @ 1..) = from.read(&mut bytes) {
            if self.swallows.load(Ordering::SeqCst) {
                self.has_swallowed.store(true, Ordering::SeqCst);
            } else if to.write_all(&bytes[..count]).is_err() {
                break;
            }
        }
        // The other direction may have ended it already.
        drop(to.shutdown(std::net::Shutdown::Both));
    }
}

/// A Redis that can be paused.
pub(crate) struct Redis {
    server: Server,
    process: Pid,
}

impl Redis {
    pub(crate) fn start() -> Self {
        let server = Server::start("redis");
        let address =
            server.url.strip_prefix("redis://").expect("an address").split('/').next().unwrap_or_default();
        let mut connection = TcpStream::connect(address).expect("it listens");
        connection.write_all(b"INFO server\r\nQUIT\r\n").expect("written");
        let mut info = String::new();
        connection.read_to_string(&mut info).expect("it ends the connection");
        let process = info.lines().find_map(|line| line.strip_prefix("process_id:")).expect("it says its id");
        Self { process: Pid::from_raw(process.trim().parse().expect("a number")), server }
    }

    pub(crate) fn url(&self) -> &str {
        &self.server.url
    }

    pub(crate) fn pause(&self) {
        kill(self.process, Signal::SIGSTOP).expect("it runs");
    }

    pub(crate) fn resume(&self) {
        kill(self.process, Signal::SIGCONT).expect("it is there");
    }
}
