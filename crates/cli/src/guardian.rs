//! The guardian: a second process of this program, outside of CMD's process group, that ends
//! CMD's group in time when `lockkeeper run` cannot.
//!
//! It learns the group, each new deadline and what is held over a socket that is its stdin. When the socket ends,
//! `lockkeeper run` has died: the guardian ends CMD's group, and then releases the lock. When a deadline comes near
//! without a newer one, `lockkeeper run` is stopped, and is continued after its CMD has ended. The guardian's stdout is the
//! keeper's life line, if the store has one: while the guardian lives, the store counts the keeper as alive, so the lock is
//! not free before CMD's group is gone.
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
    unistd::{Pid, getppid},
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
    group::{self, Notice},
    signals::Signals,
    store, text,
};

/// The first argument that makes this program a guardian.
pub(crate) const ROLE: &str = "__guard";

/// How long telling it something may take: its socket holds hundreds of messages.
const TELLING: Duration = Duration::from_millis(10);
/// How often to look whether the parent is dead.
const LOOK: Duration = Duration::from_millis(5);
/// The pauses between attempts to release what a dead process held.
const RELEASES: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(1));
/// How long to wait for its last word.
const LAST_WORD: Duration = Duration::from_secs(2);

/// What the guardian says before it ends the group of a process that is stopped.
const ENDING: &str = "ending";

/// This very program, also when its file has been replaced since it started.
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

/// What `lockkeeper run` holds, for a guardian that outlives it.
pub(crate) struct Held {
    /// The store's URL, with any password.
    pub(crate) url: String,
    pub(crate) lease: Lease,
}

impl Held {
    fn to_line(&self) -> String {
        let url = percent::encode(&self.url, |_, byte| byte.is_ascii_graphic() && byte != b'%');
        format!("held {} {url}", self.lease)
    }
}

/// What the guardian reports, or what happened to it.
pub(crate) enum GuardianEvent {
    /// It ends CMD's group, because no newer deadline came in time.
    Ending,
    /// It died.
    Died,
}

impl Guardian {
    /// Starts one that watches over `group` until `deadline`, and releases `held` if this process dies.
    pub(crate) async fn start(
        notice: Notice,
        life_line: Option<OwnedFd>,
        held: &Held,
        group: Pid,
        deadline: BootTime,
    ) -> io::Result<Self> {
        let (ours, theirs) = Socket::pair()?;
        // With a life line the lock is free as soon as the guardian ends.
        let released_by_guardian = life_line.is_none();
        let mut guardian = Self::spawn(notice, life_line, ours, theirs)?;
        guardian.tell(&format!("group {group}")).await?;
        if released_by_guardian {
            guardian.tell(&held.to_line()).await?;
        }
        guardian.extend(deadline).await;
        Ok(guardian)
    }

    fn spawn(notice: Notice, life_line: Option<OwnedFd>, ours: Socket, theirs: Socket) -> io::Result<Self> {
        ours.set_nonblocking(true)?;
        let process = own_program()
            .args([ROLE, &notice.grace.as_millis().to_string(), &notice.reserve.as_millis().to_string()])
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(life_line.map_or_else(Stdio::null, Stdio::from))
            .env_remove(store::VARIABLE)
            // Signals to the group of `lockkeeper run` do not reach it.
            .process_group(0)
            .spawn()?;
        let (heard, told) = UnixStream::from_std(ours)?.into_split();
        Ok(Self { process, heard: BufReader::new(heard).lines(), told })
    }

    async fn tell(&mut self, line: &str) -> io::Result<()> {
        self.told.write_all(format!("{line}\n").as_bytes()).await
    }

    /// The group may work until `deadline`. A guardian that does not listen is ended, which is
    /// an [event](Self::event).
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

    /// Tells it that its group is gone, and waits for its last word: whether that was its doing.
    pub(crate) async fn was_it_you(&mut self) -> bool {
        let last_word = async {
            // If it is gone already, its last word is still there to be read.
            drop(self.told.shutdown().await);
            matches!(self.event().await, GuardianEvent::Ending)
        };
        // One that is stopped has done nothing.
        tokio::time::timeout(LAST_WORD, last_word).await.unwrap_or(false)
    }

    /// Ends the guardian, whose group is gone.
    pub(crate) fn dismiss(mut self) {
        // It may have ended by itself.
        drop(self.process.kill());
        drop(self.process.wait());
    }
}

/// The guardian's own life: from its arguments to its exit code.
pub(crate) fn main(args: &[String]) -> Result<(), Failure> {
    let millis = |index: usize| args.get(index).and_then(|arg| arg.parse().ok()).map(Duration::from_millis);
    let (Some(grace), Some(reserve)) = (millis(0), millis(1)) else {
        return Err(Failure::new(INTERNAL, "the guardian is started by `lockkeeper run` only; use that"));
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Failure::internal("cannot start the guardian", error))?;
    runtime
        .block_on(watch(Notice { grace, reserve }))
        .map_err(|error| Failure::internal("the guardian failed", error))
}

/// What `lockkeeper run` told the guardian.
struct Orders {
    group: Option<Pid>,
    deadline: BootTime,
    /// The lease, and the URL of its store.
    held: Option<(Lease, String)>,
}

async fn watch(notice: Notice) -> io::Result<()> {
    // A service manager sends TERM to every process: the guardian stays until its work is done.
    let _signals =
        Signals::listen().map_err(|failure| io::Error::other(failure.message.unwrap_or_default()))?;
    let parent = getppid();
    let socket = Socket::from(io::stdin().as_fd().try_clone_to_owned()?);
    socket.set_nonblocking(true)?;
    let (read, mut write) = UnixStream::from_std(socket)?.into_split();
    let mut lines = BufReader::new(read).lines();
    let clock = Clock::boot();
    let mut orders = Orders { group: None, deadline: BootTime::NEVER, held: None };
    let died = loop {
        let overdue = async {
            clock.sleep_until(notice.term_at(orders.deadline)).await;
        };
        tokio::select! {
            biased;
            line = lines.next_line() => match line {
                Ok(Some(line)) => orders.hear(&line),
                _ => break true,
            },
            () = overdue => break false,
        }
    };
    let Some(group) = orders.group else { return Ok(()) };
    if !died {
        // Before the group ends, so that who sees the end can know the reason. If `lockkeeper run`
        // is never continued, nobody hears it.
        drop(write.write_all(format!("{ENDING}\n").as_bytes()).await);
    }
    let alive = group::is_alive(group);
    group::end(group, notice.kill_at(clock.now(), orders.deadline)).await;
    if !died && getppid() == parent {
        // It has nothing left to run. Stopped in the middle of a write, it would keep its store
        // from everybody else; continued, it gives back what it has and ends.
        let _ = kill(parent, Signal::SIGCONT);
    }
    if died && alive {
        text::say("the process that held the lock was killed, so its command was ended; start it anew");
    }
    if let Some((lease, url)) = orders.held.filter(|_| died) {
        release_for_dead(parent, &clock, orders.deadline, &lease, &url).await;
    }
    Ok(())
}

/// Releases the lock of a `lockkeeper run` that was killed, so that nobody waits for its lease to end. Nothing of CMD's group
/// is alive any more. At its deadline the lock counts as free anyway.
async fn release_for_dead(parent: Pid, clock: &Clock, deadline: BootTime, lease: &Lease, url: &str) {
    // The socket ends a moment before the process. It also ends when `lockkeeper run` is about to release the lock itself
    // and to dismiss its guardian.
    while getppid() == parent && clock.now() < deadline {
        tokio::time::sleep(LOOK).await;
    }
    let mut backoff = RELEASES;
    while clock.now() < deadline {
        match release(lease, url).await {
            Err(error) if error.is_passing() => tokio::time::sleep(backoff.pause()).await,
            // Released, over already, or impossible: then its lease ends it.
            _ => return,
        }
    }
}

async fn release(lease: &Lease, url: &str) -> Result<(), StoreError> {
    let keeper = lockkeeper::builder(url)?.program("lockkeeper").connect().await?;
    let released = keeper.release_lease(lease).await;
    store::close(&keeper).await;
    match released {
        Err(ReleaseError::Store(error)) => Err(error),
        _ => Ok(()),
    }
}

impl Orders {
    fn hear(&mut self, line: &str) {
        match line.split_once(' ') {
            Some(("held", held)) => {
                let parse = |(lease, url): (&str, &str)| Some((lease.parse().ok()?, percent::decode(url)?));
                self.held = held.split_once(' ').and_then(parse);
            }
            Some(("group", pid)) => self.group = pid.parse().ok().map(Pid::from_raw),
            Some(("until", nanos)) => {
                if let Ok(nanos) = nanos.parse() {
                    self.deadline = BootTime(nanos);
                }
            }
            _ => {}
        }
    }
}
