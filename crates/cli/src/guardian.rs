//! The guardian: a second process of this program, outside of CMD's process group, that ends
//! CMD's group in time when `lockkeeper run` cannot.
//!
//! It learns the group and each new deadline over a socket that is its stdin. When the socket
//! ends, `lockkeeper run` has died; when a deadline comes near without a newer one, it is
//! stopped, and is continued after its CMD has ended. Its stdout is the keeper's life line, if the store has one: while the guardian lives,
//! the store counts the keeper as alive, so the lock is not free before CMD's group is gone.

use std::{
    io,
    os::{
        fd::{AsFd, OwnedFd},
        unix::{net::UnixStream as Socket, process::CommandExt},
    },
    process::{Child, Command, Stdio},
    time::Duration,
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
    text,
};

/// The first argument that makes this program a guardian.
pub(crate) const ROLE: &str = "__guard";

/// How long telling it something may take: its socket holds hundreds of messages.
const TELLING: Duration = Duration::from_millis(10);
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

/// What the guardian reports, or what happened to it.
pub(crate) enum GuardianEvent {
    /// It ends CMD's group, because no newer deadline came in time.
    Ending,
    /// It died.
    Died,
}

impl Guardian {
    /// Starts one that watches over `group` until `deadline`.
    pub(crate) async fn start(
        notice: Notice,
        life_line: Option<OwnedFd>,
        group: Pid,
        deadline: BootTime,
    ) -> io::Result<Self> {
        let (ours, theirs) = Socket::pair()?;
        let mut guardian = Self::spawn(notice, life_line, ours, theirs)?;
        guardian.tell(&format!("group {group}")).await?;
        guardian.extend(deadline).await;
        Ok(guardian)
    }

    fn spawn(notice: Notice, life_line: Option<OwnedFd>, ours: Socket, theirs: Socket) -> io::Result<Self> {
        ours.set_nonblocking(true)?;
        let process = own_program()
            .args([ROLE, &notice.grace.as_millis().to_string(), &notice.reserve.as_millis().to_string()])
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(life_line.map_or_else(Stdio::null, Stdio::from))
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
    let mut orders = Orders { group: None, deadline: BootTime::NEVER };
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
    Ok(())
}

impl Orders {
    fn hear(&mut self, line: &str) {
        match line.split_once(' ') {
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
