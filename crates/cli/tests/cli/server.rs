//! Servers for tests of the command, started by the program `server` of the test kit.

use std::{
    io::{BufRead, BufReader, Read as _, Write as _},
    net::TcpStream,
    path::Path,
    process::{Child, Command, Stdio},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

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
