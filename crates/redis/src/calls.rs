//! Sends script calls and plain commands to the servers that keep their slots, and checks their answers.
//!
//! A call that a server refused before it did anything is sent on: to the node that a redirection names, or again with
//! the script's text, or again after a pause while its slot moves. No other call is ever sent twice.

use std::{
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use lockkeeper_core::StoreError;
use redis::{Cmd, ServerError, Value};

use crate::{
    connection::Generation,
    opener::checked,
    scripts::{Call, Script},
    servers::{Priority, Server, Servers},
    trouble,
};

/// How often one call may be sent on without a pause: a slot may move to and fro. With pauses in between, only the time
/// limit ends it.
const ROUNDS: usize = 64;
/// How long a call pauses while its slot moves.
const SLOT_PAUSE: Duration = Duration::from_millis(20);

/// The reply to a call.
pub(crate) struct ScriptReply {
    /// The words of the reply, without the nonce.
    pub(crate) words: String,
    /// The second value, if the script returns two.
    pub(crate) more: Value,
    pub(crate) source: Source,
}

/// The connection that a reply came over.
#[derive(Clone)]
pub(crate) struct Source {
    pub(crate) server: Arc<Server>,
    pub(crate) generation: Generation,
}

impl Source {
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.server, &other.server) && self.generation == other.generation
    }
}

/// Calls in flight.
struct Run<'a> {
    priority: Priority,
    calls: &'a [Call<'a>],
    until: Instant,
    results: Vec<Option<Result<ScriptReply, StoreError>>>,
    /// Calls that did nothing, each with the reason.
    refused: Vec<(Attempt, ServerError)>,
}

/// One way to send a call.
struct Attempt {
    /// The index of the call.
    call: usize,
    server: Arc<Server>,
    /// Whether the script must be loaded before.
    load: bool,
    /// Whether `ASKING` must be sent before.
    asking: bool,
}

impl Servers {
    /// Calls scripts, each on the server that keeps its slot. The calls for one server go out as one request.
    pub(crate) async fn run(
        &self,
        priority: Priority,
        calls: &[Call<'_>],
    ) -> Vec<Result<ScriptReply, StoreError>> {
        let results = calls.iter().map(|_| None).collect();
        let mut run = Run { priority, calls, until: self.until(), results, refused: Vec::new() };
        let map = self.map();
        let first = |(index, call): (usize, &Call<'_>)| Attempt {
            call: index,
            server: map.of(call.slot).clone(),
            load: false,
            asking: false,
        };
        let mut attempts: Vec<Attempt> = calls.iter().enumerate().map(first).collect();
        let mut rounds = 0;
        while rounds < ROUNDS && !attempts.is_empty() {
            while let Some(server) = attempts.first().map(|first| first.server.clone()) {
                let elsewhere = |attempt: &mut Attempt| !Arc::ptr_eq(&attempt.server, &server);
                let rest = attempts.extract_if(.., elsewhere).collect();
                self.send(&mut run, &server, std::mem::replace(&mut attempts, rest)).await;
            }
            let moving;
            (attempts, moving) = self.next_attempts(&mut run);
            if moving {
                tokio::time::sleep(SLOT_PAUSE).await;
            } else {
                rounds += 1;
            }
        }
        let none = || Err(trouble::nonsense("no answer"));
        run.results.into_iter().map(|result| result.unwrap_or_else(none)).collect()
    }

    /// How the refused calls of a round are sent on, and whether any of them must wait for its slot to move.
    fn next_attempts(&self, run: &mut Run<'_>) -> (Vec<Attempt>, bool) {
        let (mut attempts, mut moving) = (Vec::new(), false);
        for (attempt, error) in std::mem::take(&mut run.refused) {
            // The result if this was the last round.
            run.results[attempt.call] = Some(Err(self.refusal(&error)));
            let half_moved = trouble::is_half_moved(&error);
            // The engine asks again by itself, and a slot that moves must not delay calls of other slots. Calls of one
            // slot are sent again together, so that they keep their order.
            let slot = run.calls[attempt.call].slot;
            let delays_others = run.calls.iter().any(|call| call.slot != slot);
            let gives_up = half_moved && (matches!(run.priority, Priority::Urgent) || delays_others);
            if !gives_up && Instant::now() + SLOT_PAUSE < run.until {
                moving |= half_moved;
                attempts.extend(self.next_attempt(attempt, &error));
            }
        }
        let moving = moving && !attempts.is_empty();
        (attempts, moving)
    }

    fn next_attempt(&self, attempt: Attempt, error: &ServerError) -> Option<Attempt> {
        match error.code() {
            "NOSCRIPT" => Some(Attempt { load: true, ..attempt }),
            _ if !self.is_cluster() => None,
            "MOVED" => {
                self.look_again();
                let server = self.redirected(error, &attempt.server)?;
                Some(Attempt { server, asking: false, ..attempt })
            }
            "ASK" => {
                let server = self.redirected(error, &attempt.server)?;
                Some(Attempt { server, asking: true, ..attempt })
            }
            _ => Some(attempt),
        }
    }

    /// The server that a redirection by the server `from` names.
    fn redirected(&self, error: &ServerError, from: &Server) -> Option<Arc<Server>> {
        let (_, address) = error.details()?.split_once(' ')?;
        let (host, port) = address.rsplit_once(':')?;
        self.at(&from.address.of_node(host.trim_matches(['[', ']']), port.parse().ok()?)?)
    }

    /// The error for a call that a server refused.
    fn refusal(&self, error: &ServerError) -> StoreError {
        let only_in_clusters =
            matches!(error.code(), "MOVED" | "ASK" | "TRYAGAIN" | "CROSSSLOT" | "CLUSTERDOWN");
        if only_in_clusters && !self.is_cluster() {
            return trouble::part_of_a_cluster(error);
        }
        trouble::refused(error)
    }

    /// Sends one request to one server, and sorts its answers.
    async fn send(&self, run: &mut Run<'_>, server: &Arc<Server>, attempts: Vec<Attempt>) {
        let nonce = self.nonces.fetch_add(attempts.len() as u64, Ordering::Relaxed);
        let (commands, replies_at) = commands(run.calls, &attempts, nonce);
        let (values, generation) = match server.connection(run.priority).send(commands, run.until).await {
            Ok(sent) => sent,
            Err(error) => {
                self.look_again();
                for attempt in attempts {
                    run.results[attempt.call] = Some(Err(error.clone()));
                }
                return;
            }
        };
        let source = Source { server: server.clone(), generation };
        let mut values = values.into_iter().enumerate();
        for ((attempt, nonce), reply_at) in attempts.into_iter().zip(nonce..).zip(replies_at) {
            let value = values.find(|(index, _)| *index == reply_at).map(|(_, value)| value);
            run.results[attempt.call] = Some(match value.map(checked) {
                Some(Ok(value)) => reply(value, nonce, run.priority, &source),
                Some(Err(error)) if is_harmless(&error) => {
                    run.refused.push((attempt, error));
                    continue;
                }
                Some(Err(error)) => {
                    // The next request looks for the master again, or logs in again.
                    if matches!(error.code(), "READONLY" | "MASTERDOWN" | "NOAUTH" | "CLUSTERDOWN") {
                        self.look_again();
                        server.connection(run.priority).give_up(generation);
                    }
                    Err(self.refusal(&error))
                }
                None => Err(trouble::nonsense("no answer")),
            });
        }
    }

    /// Calls one script.
    pub(crate) async fn run_one(
        &self,
        priority: Priority,
        call: Call<'_>,
    ) -> Result<ScriptReply, StoreError> {
        self.run(priority, &[call]).await.pop().unwrap_or_else(|| Err(trouble::nonsense("no answer")))
    }

    /// Sends one plain command, and refuses an answer that is an error.
    pub(crate) async fn ask(
        &self,
        priority: Priority,
        server: &Server,
        command: Cmd,
    ) -> Result<Value, StoreError> {
        let sent = server.connection(priority).send(vec![command], self.until()).await;
        let (mut values, generation) = sent.inspect_err(|_| self.look_again())?;
        let value = values.pop().ok_or_else(|| trouble::nonsense("no answer"))?;
        checked(value).map_err(|error| {
            if matches!(error.code(), "MOVED" | "ASK" | "READONLY" | "CLUSTERDOWN") {
                self.look_again();
                server.connection(priority).give_up(generation);
            }
            self.refusal(&error)
        })
    }
}

/// Whether a call with this error did nothing and may be sent on.
fn is_harmless(error: &ServerError) -> bool {
    matches!(error.code(), "NOSCRIPT" | "MOVED" | "ASK") || trouble::is_half_moved(error)
}

/// The commands of some calls, whose nonces are counted from `nonce`, and the index of each call's reply among all
/// replies.
fn commands(calls: &[Call<'_>], attempts: &[Attempt], nonce: u64) -> (Vec<Cmd>, Vec<usize>) {
    let mut commands: Vec<Cmd> = Vec::with_capacity(attempts.len());
    let mut replies_at = Vec::with_capacity(attempts.len());
    let mut loaded: Vec<&Script> = Vec::new();
    for (attempt, nonce) in attempts.iter().zip(nonce..) {
        let call = &calls[attempt.call];
        if attempt.load && !loaded.iter().any(|script| std::ptr::eq(*script, call.script)) {
            loaded.push(call.script);
            commands.push(call.script.load());
        }
        if attempt.asking {
            commands.push(redis::cmd("ASKING"));
        }
        replies_at.push(commands.len());
        commands.push(call.command(nonce));
    }
    (commands, replies_at)
}

/// Checks that a value is the reply to the call with this nonce. If it is not, closes the connection, whose replies are
/// in disorder.
fn reply(value: Value, nonce: u64, priority: Priority, source: &Source) -> Result<ScriptReply, StoreError> {
    if let Some((words, more)) = without_nonce(nonce, value) {
        return Ok(ScriptReply { words, more, source: source.clone() });
    }
    source.server.connection(priority).give_up(source.generation);
    Err(trouble::nonsense("the reply to another request"))
}

/// The words of a reply without its nonce, and its second value; `None` if it has another nonce.
fn without_nonce(nonce: u64, value: Value) -> Option<(String, Value)> {
    let (words, more) = match value {
        Value::BulkString(words) => (words, Value::Nil),
        Value::Array(both) => match <[Value; 2]>::try_from(both) {
            Ok([Value::BulkString(words), more]) => (words, more),
            _ => return None,
        },
        _ => return None,
    };
    let mut words = String::from_utf8(words).ok()?;
    let (first, _) = words.split_once(' ')?;
    if first.parse() != Ok(nonce) {
        return None;
    }
    words.drain(..=first.len());
    Some((words, more))
}
