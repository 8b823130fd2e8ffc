//! The guardian: a second process of this program, outside of CMD's process group, that ends
//! CMD's processes in time when `lockkeeper run` cannot.
//!
//! It learns the processes, the hold and each new deadline over a socket that is its stdin. When the socket ends,
//! `lockkeeper run` has died: the guardian ends CMD's processes, and then releases the lock. Unless it is certain that
//! no process of CMD is alive, it leaves the lock to its lease. When a deadline comes near without a newer one,
//! `lockkeeper run` is stopped: the guardian ends CMD and then continues `lockkeeper run`. The guardian's stdout is the
//! keeper's life line, if the store has one: while the guardian lives, the store counts the keeper as alive, so the
//! lock is not free before the guardian has ended.
//!
//! The store's URL may hold a password, so it comes over the socket and never by argument or environment.

use std::{
    io,
    os::{
        fd::{AsFd, OwnedFd},
        unix::{net::UnixStream as Socket, process::CommandExt},
    },
    process::{Child, Command, Stdio},
    time::Duration,
};

use lockkeeper::{
    Lease, ReleaseError, StoreError,
    support::{backoff::Backoff, percent},
};
use lockkeeper_core::clock::{BootTime, Clock};
use nix::{
    sys::signal::{Signal, kill},
    unistd::{Pid, getpid, getppid},
};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines},
    net::{
        UnixStream,
        unix::{OwnedReadHalf, OwnedWriteHalf},
    },
};

use crate::{
    exit::{Failure, INTERNAL},
    group::{Crew, Notice, Seen},
    processes,
    signals::Signals,
    store, text,
};

/// The first argument that makes this program a guardian.
pub(crate) const ROLE: &str = "__guard";

/// How long a message to it may take: its socket holds hundreds of them.
const TELLING: Duration = Duration::from_millis(10);
/// The pause between two looks whether the parent is dead.
const LOOK: Duration = Duration::from_millis(5);
/// The pause between two looks whether the processes that left CMD's session have ended.
const LOOK_AFAR: Duration = Duration::from_millis(100);
/// The pauses between attempts to release the lock of a dead process.
const RELEASES: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(1));
/// How long to wait for the guardian's answer, or for its warning to be written.
const LAST_WORD: Duration = Duration::from_secs(2);

/// The argument of a guardian whose stdout is the keeper's life line.
const LIFE_LINE: &str = "life-line";
/// The question to the guardian whether it is ending CMD's processes.
const ASKED: &str = "is-it-you";
/// The guardian's answer if it is not.
const NO: &str = "no";
/// The guardian's message before it ends the processes of a `lockkeeper run` that is stopped.
const ENDING: &str = "ending";

/// The guardian's warning to the user after `lockkeeper run` was killed.
const KILLED: &str = "the process that held the lock was killed, so its command was ended; start it anew";

/// Returns a command for this very program, also when its file has been replaced since it started.
pub(crate) fn own_program() -> Command {
    let mut command = if cfg!(target_os = "linux") {
        Command::new("/proc/self/exe")
    } else {
        Command::new(std::env::current_exe().unwrap_or_else(|_| "lockkeeper".into()))
    };
    command.arg0("lockkeeper");
    command
}

/// The guardian as `lockkeeper run` sees it.
pub(crate) struct Guardian {
    process: Child,
    heard: Lines<BufReader<OwnedReadHalf>>,
    told: OwnedWriteHalf,
}

/// The hold of `lockkeeper run`, for a guardian that outlives it.
pub(crate) struct Held {
    /// The store's URL, with any password.
    pub(crate) url: String,
    pub(crate) lease: Lease,
    /// How long the lease is.
    pub(crate) length: Duration,
}

impl Held {
    fn to_line(&self) -> String {
        let url = percent::encode(&self.url, |_, byte| byte.is_ascii_graphic() && byte != b'%');
        format!("held {} {} {url}", self.length.as_millis(), self.lease)
    }

    fn from_line(line: &str) -> Option<Self> {
        let mut words = line.split(' ');
        let length = Duration::from_millis(words.next()?.parse().ok()?);
        let lease = words.next()?.parse().ok()?;
        Some(Self { url: percent::decode(words.next()?)?, lease, length })
    }
}

/// A report of the guardian, or its end.
pub(crate) enum GuardianEvent {
    /// It ends CMD's processes, because no newer deadline came in time.
    Ending,
    /// It died.
    Died,
}

impl Guardian {
    /// Starts one that watches over `crew` until `deadline`, and releases `held` if this process dies.
    pub(crate) async fn start(
        notice: Notice,
        life_line: Option<OwnedFd>,
        held: &Held,
        crew: &Crew,
        deadline: BootTime,
    ) -> io::Result<Self> {
        let (ours, theirs) = Socket::pair()?;
        let mut guardian = Self::spawn(notice, life_line, ours, theirs)?;
        guardian.extend(deadline).await;
        guardian.tell(&held.to_line()).await?;
        // Last, so that a guardian that knows the processes knows the rest too.
        guardian.tell(&format!("crew {} {}", crew.group, crew.mark)).await?;
        Ok(guardian)
    }

    fn spawn(notice: Notice, life_line: Option<OwnedFd>, ours: Socket, theirs: Socket) -> io::Result<Self> {
        ours.set_nonblocking(true)?;
        let process = own_program()
            .args([ROLE, &notice.grace.as_millis().to_string(), &notice.reserve.as_millis().to_string()])
            .arg(getpid().to_string())
            // With a life line the lock is free as soon as the guardian ends.
            .args(life_line.as_ref().map(|_| LIFE_LINE))
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(life_line.map_or_else(Stdio::null, Stdio::from))
            .env_remove(store::VARIABLE)
            .env(processes::MARK, processes::GUARDIAN)
            // Signals to the group of `lockkeeper run` do not reach it.
            .process_group(0)
            .spawn()?;
        let (heard, told) = UnixStream::from_std(ours)?.into_split();
        Ok(Self { process, heard: BufReader::new(heard).lines(), told })
    }

    async fn tell(&mut self, line: &str) -> io::Result<()> {
        self.told.write_all(format!("{line}\n").as_bytes()).await
    }

    /// Tells the guardian that CMD may work until `deadline`. A guardian that does not listen is ended, which is an
    /// [event](Self::event).
    pub(crate) async fn extend(&mut self, deadline: BootTime) {
        let told = tokio::time::timeout(TELLING, self.tell(&format!("until {}", deadline.0))).await;
        if !matches!(told, Ok(Ok(()))) {
            // It may have ended by itself.
            drop(self.process.kill());
        }
    }

    /// Waits for the next event. Dropping the future loses nothing.
    pub(crate) async fn event(&mut self) -> GuardianEvent {
        match self.heard.next_line().await {
            Ok(Some(line)) if line == ENDING => GuardianEvent::Ending,
            _ => GuardianEvent::Died,
        }
    }

    /// Asks whether the guardian has ended CMD.
    pub(crate) async fn was_it_you(&mut self) -> bool {
        let answer = async {
            // If the guardian is gone already, its last message is still there to be read.
            drop(self.tell(ASKED).await);
            matches!(self.event().await, GuardianEvent::Ending)
        };
        // A guardian that is stopped has done nothing.
        tokio::time::timeout(LAST_WORD, answer).await.unwrap_or(false)
    }

    /// Ends the guardian, whose work is done.
    pub(crate) fn dismiss(mut self) {
        // It may have ended by itself.
        drop(self.process.kill());
        drop(self.process.wait());
    }
}

/// Runs the guardian, from its arguments to its end.
pub(crate) fn main(args: &[String]) -> Result<(), Failure> {
    let number = |index: usize| args.get(index)?.parse().ok();
    let (Some(grace), Some(reserve), Some(parent)) = (number(0), number(1), number(2)) else {
        return Err(Failure::new(INTERNAL, "the guardian is started by `lockkeeper run` only; use that"));
    };
    let notice = Notice { grace: Duration::from_millis(grace), reserve: Duration::from_millis(reserve) };
    let parent = i32::try_from(parent).map(Pid::from_raw);
    let parent = parent.map_err(|error| Failure::internal("the guardian has no parent", error))?;
    let has_life_line = args.get(3).is_some_and(|arg| arg == LIFE_LINE);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Failure::internal("cannot start the guardian", error))?;
    let ended = runtime.block_on(watch(notice, parent, has_life_line));
    // A thread of the runtime may still wait for somebody to read the warning.
    runtime.shutdown_background();
    ended.map_err(|error| Failure::internal("the guardian failed", error))
}

/// The newest facts that `lockkeeper run` told the guardian.
struct Orders {
    crew: Option<Crew>,
    deadline: BootTime,
    held: Option<Held>,
}

async fn watch(notice: Notice, parent: Pid, has_life_line: bool) -> io::Result<()> {
    // A service manager sends TERM to every process: the guardian stays until its work is done.
    let signals =
        Signals::listen().map_err(|failure| io::Error::other(failure.message.unwrap_or_default()))?;
    let socket = Socket::from(io::stdin().as_fd().try_clone_to_owned()?);
    socket.set_nonblocking(true)?;
    let (read, mut write) = UnixStream::from_std(socket)?.into_split();
    let mut lines = BufReader::new(read).lines();
    let clock = Clock::boot();
    let mut orders = Orders { crew: None, deadline: BootTime::NEVER, held: None };
    let died = loop {
        let overdue = clock.sleep_until(notice.term_at(orders.deadline));
        tokio::select! {
            biased;
            line = lines.next_line() => match line {
                // If `lockkeeper run` does not hear it, it has died, which comes next.
                Ok(Some(line)) if line == ASKED => drop(write.write_all(format!("{NO}\n").as_bytes()).await),
                Ok(Some(line)) => orders.hear(&line),
                _ => break true,
            },
            () = overdue => break false,
        }
    };
    let Some(crew) = orders.crew else { return Ok(()) };
    let kill_at = notice.kill_at(clock.now(), orders.deadline);
    if !died {
        // Before the processes end, so that `lockkeeper run` can know the reason when it sees the end. If it is never
        // continued, nobody hears it.
        drop(write.write_all(format!("{ENDING}\n").as_bytes()).await);
        crew.end(kill_at).await;
        if getppid() == parent {
            // It has nothing left to run. Stopped in the middle of a write, it would keep its store from everybody
            // else; continued, it releases its lock and ends.
            let _ = kill(parent, Signal::SIGCONT);
        }
        return Ok(());
    }
    let was_alive = crew.is_alive();
    let seen = crew.end(kill_at).await;
    // In a thread of its own: perhaps nobody reads stderr, and the lock must not wait for that.
    let said = was_alive.then(|| tokio::task::spawn_blocking(|| text::say(KILLED)));
    if let Some(held) = orders.held {
        let dead = Dead { parent, crew, seen, held, deadline: orders.deadline, has_life_line, clock };
        dead.settle(signals).await;
    }
    if let Some(said) = said {
        drop(tokio::time::timeout(LAST_WORD, said).await);
    }
    Ok(())
}

/// A `lockkeeper run` that was killed. None of the processes of its CMD is alive, except those that began a session of
/// their own.
struct Dead {
    parent: Pid,
    crew: Crew,
    seen: Seen,
    held: Held,
    /// Until when the lock is certainly held, as last told.
    deadline: BootTime,
    has_life_line: bool,
    clock: Clock,
}

impl Dead {
    /// Releases the lock, so that nobody waits for its lease to end.
    async fn settle(mut self, mut signals: Signals) {
        // The last renewal may be newer than the deadline that was told.
        let end = self.deadline.after(self.held.length);
        // The socket ends a moment before the process.
        while getppid() == self.parent && self.clock.now() < end {
            tokio::time::sleep(LOOK).await;
        }
        // A process that has left may still work, so the lock is left to its lease unless that process ends too. With a
        // life line, the lock would be free if this process ended.
        while !self.crew.is_certainly_gone(&mut self.seen) {
            if self.clock.now() >= end {
                return;
            }
            tokio::select! {
                () = tokio::time::sleep(LOOK_AFAR) => {}
                _ = signals.next(), if !self.has_life_line => return,
            }
        }
        if self.has_life_line {
            return;
        }
        self.release(end, signals).await;
    }

    /// Tries to release until the lease has ended or a signal comes: a service manager waits for us, and the end of the
    /// lease frees the lock as well.
    async fn release(&self, end: BootTime, mut signals: Signals) {
        let mut backoff = RELEASES;
        while self.clock.now() < end {
            match release(&self.held).await {
                Err(error) if error.is_passing() => tokio::select! {
                    () = tokio::time::sleep(backoff.pause()) => {}
                    // An earlier one counts too, after one attempt.
                    _ = signals.next() => return,
                },
                // The lock is released or was over already. If neither is possible, its lease ends it.
                _ => return,
            }
        }
    }
}

async fn release(held: &Held) -> Result<(), StoreError> {
    let keeper = lockkeeper::builder(&held.url)?.program("lockkeeper").connect().await?;
    let released = keeper.release_lease(&held.lease).await;
    store::close(&keeper).await;
    match released {
        Err(ReleaseError::Store(error)) => Err(error),
        _ => Ok(()),
    }
}

impl Orders {
    fn hear(&mut self, line: &str) {
        match line.split_once(' ') {
            Some(("held", held)) => self.held = Held::from_line(held),
            Some(("crew", crew)) => {
                let parse = |(group, mark): (&str, &str)| {
                    Some(Crew { group: Pid::from_raw(group.parse().ok()?), mark: mark.to_owned() })
                };
                self.crew = crew.split_once(' ').and_then(parse);
            }
            Some(("until", nanos)) => {
                if let Ok(nanos) = nanos.parse() {
                    self.deadline = BootTime(nanos);
                }
            }
            _ => {}
        }
    }
}
