//! A stand-in for a Redis server: it answers some requests itself and passes all others on to a real one. For servers
//! that behave in ways in which those that can be had here do not.

use std::{
    collections::VecDeque,
    fmt, io,
    net::{SocketAddr, TcpListener},
    sync::{Arc, Mutex},
    thread::{self, JoinHandle},
};

use lockkeeper_core::support;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{
        self, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    runtime,
    sync::{mpsc, oneshot},
};

use crate::port::Port;

/// The answer to a request, as it stands on the wire; `None` passes the request on.
type Answer = dyn Fn(&[String]) -> Option<String> + Send + Sync;

/// A stand-in, until it is dropped.
pub struct StandIn {
    port: Port,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl StandIn {
    /// Stands in for `server`.
    ///
    /// # Errors
    /// If there is no port or no thread for it.
    pub fn start(
        server: SocketAddr,
        answer: impl Fn(&[String]) -> Option<String> + Send + Sync + 'static,
    ) -> io::Result<Self> {
        let port = Port::free()?;
        let listener = TcpListener::bind(port.address())?;
        listener.set_nonblocking(true)?;
        let answer: Arc<Answer> = Arc::new(answer);
        let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
        let (stop, stopped) = oneshot::channel();
        // A thread of its own: a test that blocks must not stop it.
        let thread = thread::Builder::new().name("stand-in".to_owned()).spawn(move || {
            runtime.block_on(async {
                tokio::select! {
                    () = listen(listener, server, answer) => {}
                    _ = stopped => {}
                }
            });
        })?;
        Ok(Self { port, stop: Some(stop), thread: Some(thread) })
    }

    /// The address that clients connect to.
    pub fn address(&self) -> SocketAddr {
        self.port.address()
    }
}

impl fmt::Debug for StandIn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StandIn").field("address", &self.address()).finish_non_exhaustive()
    }
}

impl Drop for StandIn {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has been printed.
            drop(thread.join());
        }
    }
}

async fn listen(listener: TcpListener, server: SocketAddr, answer: Arc<Answer>) {
    let Ok(listener) = net::TcpListener::from_std(listener) else { return };
    while let Ok((client, _)) = listener.accept().await {
        tokio::spawn(serve(client, server, answer.clone()));
    }
}

/// Replies that are due to a client, in order: its own ones, and places for those of the server.
struct Due {
    replies: Mutex<VecDeque<Option<String>>>,
    out: mpsc::UnboundedSender<Vec<u8>>,
}

impl Due {
    fn add(&self, reply: Option<String>) {
        let mut replies = support::lock(&self.replies);
        replies.push_back(reply);
        self.flush(&mut replies);
    }

    /// A value from the server, or an own message: the reply that is waited for, or a message, which comes by itself.
    fn pass(&self, value: Vec<u8>) {
        let mut replies = support::lock(&self.replies);
        if !value.starts_with(b">") {
            replies.pop_front();
        }
        // The client may be gone.
        self.out.send(value).ok();
        self.flush(&mut replies);
    }

    fn flush(&self, replies: &mut VecDeque<Option<String>>) {
        while let Some(Some(_)) = replies.front() {
            let own = replies.pop_front().flatten().unwrap_or_default();
            self.out.send(own.into_bytes()).ok();
        }
    }
}

async fn serve(client: TcpStream, server: SocketAddr, answer: Arc<Answer>) {
    let Ok(server) = TcpStream::connect(server).await else { return };
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    let (out, written) = mpsc::unbounded_channel();
    let due = Due { replies: Mutex::default(), out };
    tokio::select! {
        () = requests(from_client, to_server, &due, &*answer) => {}
        () = values(from_server, |value| due.pass(value)) => {}
        () = write(to_client, written) => {}
    }
}

async fn requests(from: OwnedReadHalf, mut to: OwnedWriteHalf, due: &Due, answer: &Answer) {
    let (sender, mut requests) = mpsc::unbounded_channel();
    let read = values(from, |value| drop(sender.send(value)));
    let pass = async {
        while let Some(request) = requests.recv().await {
            let words = words(&request);
            let reply = answer(&words);
            let own = reply.is_some();
            // Subscriptions are confirmed by messages, not by replies.
            if !words.first().is_some_and(|word| word.to_lowercase().ends_with("subscribe")) {
                due.add(reply);
            } else if let Some(message) = reply {
                due.pass(message.into_bytes());
            }
            if !own && to.write_all(&request).await.is_err() {
                return;
            }
        }
    };
    tokio::select! {
        () = read => {}
        () = pass => {}
    }
}

async fn write(mut to: OwnedWriteHalf, mut values: mpsc::UnboundedReceiver<Vec<u8>>) {
    while let Some(value) = values.recv().await {
        if to.write_all(&value).await.is_err() {
            return;
        }
    }
}

/// Reads values one by one, until the connection ends.
async fn values(mut from: OwnedReadHalf, mut each: impl FnMut(Vec<u8>)) {
    let mut buffer = Vec::new();
    while from.read_buf(&mut buffer).await.is_ok_and(|count| count > 0) {
        while let Some(end) = end_of(&buffer, 0) {
            let rest = buffer.split_off(end);
            each(std::mem::replace(&mut buffer, rest));
        }
    }
}

/// The words of a request, which is a list of texts.
fn words(request: &[u8]) -> Vec<String> {
    let text = String::from_utf8_lossy(request);
    // Every second line is a length.
    text.split("\r\n").skip(2).step_by(2).map(str::to_owned).collect()
}

/// Finds the end of the value that begins at `at`, if all of it is there.
fn end_of(buffer: &[u8], at: usize) -> Option<usize> {
    let line = buffer.get(at..)?.windows(2).position(|pair| pair == b"\r\n")? + at;
    let (kind, number) = (buffer[at], std::str::from_utf8(&buffer[at + 1..line]).ok()?);
    let next = line + 2;
    let count: usize = match kind {
        b'$' | b'=' | b'!' => {
            let end = number.parse::<usize>().map_or(next, |length| next + length + 2);
            return (end <= buffer.len()).then_some(end);
        }
        b'*' | b'~' | b'>' => number.parse().unwrap_or(0),
        b'%' => 2 * number.parse::<usize>().unwrap_or(0),
        _ => 0,
    };
    (0..count).try_fold(next, |at, _| end_of(buffer, at))
}
