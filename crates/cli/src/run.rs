//! `run`, and `elect` with a command: holds a lock while CMD runs, and ends CMD before the lease can end.

use std::{ffi::OsString, path::Path, time::Duration};

use lockkeeper::{Lost, ReleaseError, error::LeaseError, support::duration};
use lockkeeper_core::clock::{BootTime, Clock};
use nix::sys::signal::Signal;
use tokio::signal::unix::{SignalKind, signal};

use crate::{
    acquisition::{Acquisition, AnyGuard, Lifetime, LockKind},
    args::{ElectArgs, RunArgs},
    command::{self, Change, Job, LockFacts},
    exit::{Failure, INTERNAL, LOST},
    group::Notice,
    guardian::{Guardian, GuardianEvent, Held},
    signals::Signals,
    store::Connected,
    terminal::Terminal,
    text,
};

/// The pause between two looks whether the other processes of CMD have ended after it: no system tells.
const LOOK: Duration = Duration::from_millis(50);
/// How many guardians one run starts at most: beyond that, somebody kills them.
const GUARDIANS: u32 = 10;

/// Runs `lockkeeper run`.
pub(crate) async fn run(connected: &Connected, args: &RunArgs) -> Result<u8, Failure> {
    let kind = LockKind::of(&args.share);
    let lifetime = Lifetime::of(&args.hold)?;
    let runs = file_name(&args.command);
    let acquisition = Acquisition { connected, name: &args.name, kind, lifetime, wait: &args.wait, runs };
    hold(acquisition, &args.command).await
}

/// Runs `lockkeeper elect NAME -- CMD`.
pub(crate) async fn elect(connected: &Connected, args: &ElectArgs) -> Result<u8, Failure> {
    let kind = LockKind::Leadership { value: args.value.clone().unwrap_or_default() };
    let lifetime = Lifetime::of(&args.hold)?;
    let runs = file_name(&args.command);
    let acquisition = Acquisition { connected, name: &args.name, kind, lifetime, wait: &args.wait, runs };
    hold(acquisition, &args.command).await
}

/// Returns the file name of CMD, without its folder and its arguments, where secrets may be.
fn file_name(command: &[OsString]) -> Option<String> {
    let name = Path::new(command.first()?).file_name()?;
    Some(name.to_string_lossy().into_owned())
}

async fn hold(mut acquisition: Acquisition<'_>, command: &[OsString]) -> Result<u8, Failure> {
    let mut signals = Signals::listen()?;
    let notice = Notice::of_lease(acquisition.lease());
    let mut most = None;
    if let Lifetime::Renewed { max_hold, .. } = &mut acquisition.lifetime {
        most = *max_hold;
        // CMD is told to end at the limit; the lease lasts until CMD has ended.
        *max_hold = max_hold.map(|most| most + notice.grace + notice.reserve * 2);
    }
    let clock = Clock::boot();
    let held = acquisition.acquire(&mut signals).await?;
    let start = clock.now();
    let lease =
        confirm(&*held, acquisition.lease(), most.map(|most| most + notice.grace + notice.reserve)).await?;
    let continued = signal(SignalKind::from_raw(Signal::SIGCONT as i32))
        .map_err(|error| Failure::internal("cannot listen for signals", error))?;
    let connected = acquisition.connected;
    let mut supervisor = Supervisor {
        acquisition: &acquisition,
        held: Held { url: connected.url.clone(), lease: held.lease_for_guardian(), length: lease },
        lease,
        notice: Notice::of_lease(lease),
        clock: clock.clone(),
        deadline: clock.now().after(held.remaining()),
        look_at: BootTime::default(),
        max_hold_at: most.map_or(BootTime::NEVER, |most| start.after(most)),
        guardians: 0,
        lost: None,
        wants_terminal: false,
        continued,
    };
    let aftermath = supervisor.run(&*held, command, &mut signals).await;
    // CMD is ended before the lease is over, so the guard may still be held.
    let of_renewal = || held.renewal_error().filter(|_| supervisor.lost == Some(Lost::Expired));
    let because = held.lost_because().or_else(|| of_renewal().map(|error| error.to_string()));
    let released = held.release().await;
    let ended = aftermath.and_then(Aftermath::clean_up);
    let lost = supervisor.lost;
    conclude(&acquisition, ended, released, lost, because)
}

/// Renews a first lease that is short, as it is after another's release, so that CMD starts with a full one. Returns
/// the real length of leases: some stores have one for all.
async fn confirm(held: &dyn AnyGuard, lease: Duration, most: Option<Duration>) -> Result<Duration, Failure> {
    let full = |length: Duration| length > lease / 4 * 3;
    if full(held.remaining()) {
        return Ok(lease);
    }
    match held.extend(most.map_or(lease, |most| most.min(lease))).await {
        // The length is beyond max_hold by a moment: the lease lasts until then anyway.
        Ok(()) | Err(LeaseError::Invalid { .. }) => {}
        Err(error) => return Err(error.into()),
    }
    let remaining = held.remaining();
    Ok(if most.is_some() || full(remaining) { lease } else { remaining })
}

/// Returns the exit code, or the failure with its line.
fn conclude(
    acquisition: &Acquisition<'_>,
    ended: Result<Change, Failure>,
    released: Result<(), ReleaseError>,
    lost: Option<Lost>,
    because: Option<String>,
) -> Result<u8, Failure> {
    let code = ended?.code().unwrap_or(INTERNAL);
    let lost = match (lost, &released) {
        (None, Err(ReleaseError::NotHeld { why, .. })) => Some(*why),
        (lost, _) => lost,
    };
    let name = acquisition.name;
    if let Some(lost) = lost {
        let remedy = match lost {
            Lost::MaxHold => "raise --max-hold or make CMD faster",
            Lost::Evicted => "ask the operator, then start it anew",
            _ => "check the store and this machine, then start it anew",
        };
        let because = because.map_or_else(String::new, |because| format!(" ({because})"));
        return Err(Failure::new(LOST, format!("lost {name:?} while CMD ran: {lost}{because}; {remedy}")));
    }
    if let Err(error) = released {
        text::say(&format!("{error}; {name:?} stays held until its lease ends"));
    } else if acquisition.connected.verbose {
        text::say(&format!("released {name:?}"));
    }
    Ok(code)
}

/// A CMD of which no process is alive, and its guardian. Both stay until the lock is released: if this process is killed
/// before that, the guardian releases it, and nobody else gets the id of CMD's group meanwhile.
struct Aftermath {
    ended: Result<Change, Failure>,
    job: Job,
    guardian: Option<Guardian>,
}

impl Aftermath {
    /// Ends the guardian and collects CMD; returns how CMD ended.
    fn clean_up(self) -> Result<Change, Failure> {
        if let Some(guardian) = self.guardian {
            guardian.dismiss();
        }
        self.job.collect();
        self.ended
    }
}

/// Runs CMD while the lock is held, and ends CMD before the lease can end.
struct Supervisor<'a> {
    acquisition: &'a Acquisition<'a>,
    held: Held,
    lease: Duration,
    notice: Notice,
    clock: Clock,
    /// Until when the lock is certainly held, as last heard.
    deadline: BootTime,
    /// The moment at which the guard is asked again how long it is held.
    look_at: BootTime,
    max_hold_at: BootTime,
    guardians: u32,
    lost: Option<Lost>,
    /// Whether CMD stopped because it used the terminal in the background.
    wants_terminal: bool,
    /// The signal that this process gets when it is continued.
    continued: tokio::signal::unix::Signal,
}

impl Supervisor<'_> {
    /// Runs CMD to its end, or ends it. Afterwards none of its processes is alive.
    async fn run(
        &mut self,
        held: &dyn AnyGuard,
        command: &[OsString],
        signals: &mut Signals,
    ) -> Result<Aftermath, Failure> {
        let facts = LockFacts { name: self.acquisition.name, token: held.token(), floor: held.floor() };
        let mut job = Job::start(command, &facts).map_err(|error| command::not_started(&error))?;
        let mut terminal = Terminal::find();
        let mut guardian = None;
        let ended = match self.guard(&job).await {
            Ok(started) => {
                let guardian = guardian.insert(started);
                self.watch(held, &mut job, guardian, &mut terminal, signals).await
            }
            Err(failure) => {
                self.end(&job).await;
                Err(failure)
            }
        };
        terminal.take_back(job.group());
        if !matches!(ended, Ok(Change::Exited(_))) || self.lost.is_some() {
            terminal.restore_modes();
        }
        Ok(Aftermath { ended, job, guardian })
    }

    async fn guard(&mut self, job: &Job) -> Result<Guardian, Failure> {
        self.guardians += 1;
        if self.guardians > GUARDIANS {
            return Err(Failure::new(INTERNAL, "the guardian of CMD was killed too often; do not kill it"));
        }
        let life_line = self.acquisition.connected.keeper.life_line();
        let guardian = Guardian::start(self.notice, life_line, &self.held, job.crew(), self.deadline).await;
        guardian.map_err(|error| command::not_started(&error))
    }

    async fn end(&self, job: &Job) {
        job.crew().end(self.kill_at()).await;
    }

    fn kill_at(&self) -> BootTime {
        self.notice.kill_at(self.clock.now(), self.deadline)
    }

    /// Lets the new process become CMD; fails with its end if it cannot.
    async fn start(&mut self, job: &mut Job, terminal: &Terminal) -> Result<(), Change> {
        job.ready().await?;
        if self.clock.now() >= self.notice.term_at(self.deadline) {
            // This process was stopped in between: CMD must not even start.
            self.lost = Some(Lost::Expired);
            self.end(job).await;
            return Err(job.change().await);
        }
        terminal.lend(job.group());
        job.go_on();
        Ok(())
    }

    /// Starts another guardian; ends CMD if that is impossible.
    async fn replace_guardian(&mut self, guardian: &mut Guardian, job: &Job) -> Result<(), Failure> {
        match self.guard(job).await {
            Ok(another) => {
                std::mem::replace(guardian, another).dismiss();
                Ok(())
            }
            Err(failure) => {
                self.end(job).await;
                Err(failure)
            }
        }
    }

    /// Watches over CMD from its start until none of its processes is alive.
    async fn watch(
        &mut self,
        held: &dyn AnyGuard,
        job: &mut Job,
        guardian: &mut Guardian,
        terminal: &mut Terminal,
        signals: &mut Signals,
    ) -> Result<Change, Failure> {
        if let Err(ended) = self.start(job, terminal).await {
            return Ok(ended);
        }
        let mut lost = held.lost();
        let mut ended = None;
        loop {
            tokio::select! {
                biased;
                why = &mut lost => self.lost = Some(why),
                event = guardian.event() => match event {
                    GuardianEvent::Ending => {
                        self.lost = Some(Lost::Expired);
                        job.crew().force(self.kill_at()).await;
                        return Ok(job.change().await);
                    }
                    GuardianEvent::Died => self.replace_guardian(guardian, job).await?,
                },
                change = job.change(), if ended.is_none() => match change {
                    Change::Stopped(signal) => self.stopped(signal, job, terminal),
                    end => ended = Some(end),
                },
                () = self.clock.sleep_until(self.max_hold_at) => self.lost = Some(Lost::MaxHold),
                () = self.clock.sleep_until(self.look_at) => self.look(held, guardian).await,
                signal = signals.next() => job.crew().send(signal),
                _ = self.continued.recv() => self.go_on(job, terminal),
                () = tokio::time::sleep(LOOK), if ended.is_some() => {}
            }
            if self.lost.is_some() {
                self.end(job).await;
                return Ok(job.change().await);
            }
            if let Some(ended) = ended
                && !job.crew().is_alive()
            {
                // After a stop, the end of CMD may be seen before the guardian's words. Before its
                // time the guardian does nothing.
                if self.clock.now() >= self.notice.term_at(self.deadline) && guardian.was_it_you().await {
                    self.lost = Some(Lost::Expired);
                }
                return Ok(ended);
            }
        }
    }

    /// Asks how long the lock is held, and tells the guardian. It does so early enough for the guardian to hear of it
    /// in time, and more often while renewals fail.
    async fn look(&mut self, held: &dyn AnyGuard, guardian: &mut Guardian) {
        // The time first, so that the sum is never too late.
        let now = self.clock.now();
        let deadline = now.after(held.remaining());
        if deadline > self.deadline.after(Duration::from_millis(1)) {
            self.deadline = deadline;
            guardian.extend(deadline).await;
        }
        let term_at = self.notice.term_at(self.deadline);
        if now >= term_at {
            self.lost = Some(Lost::Expired);
        }
        self.look_at = self.deadline.before(self.lease / 2).max(now.after(self.lease / 20).min(term_at));
    }

    /// Handles a stop of CMD. If CMD only wanted the terminal, it gets it; otherwise the whole job stops, as its shell
    /// expects. The lease goes on, and the guardian ends CMD if it is not continued in time.
    fn stopped(&mut self, signal: Signal, job: &Job, terminal: &mut Terminal) {
        let by_terminal = matches!(signal, Signal::SIGTSTP | Signal::SIGTTIN | Signal::SIGTTOU);
        if !by_terminal || !terminal.is_there() {
            // Somebody stopped CMD alone: the lock is kept for it.
            return;
        }
        let group = job.group();
        self.wants_terminal = signal != Signal::SIGTSTP;
        if self.wants_terminal && terminal.lend_on_demand(group) {
            job.go_on();
            return;
        }
        terminal.take_back(group);
        if !self.acquisition.wait.quiet {
            let left = duration::show(self.notice.term_at(self.deadline).since(self.clock.now()));
            text::say(&format!(
                "stopped; bring it to the foreground within {left}, or CMD is ended before its lease ends"
            ));
        }
        Terminal::stop_job();
        self.go_on(job, terminal);
    }

    /// Lets a stopped CMD go on, unless it would only stop again for want of the terminal.
    fn go_on(&self, job: &Job, terminal: &mut Terminal) {
        if !self.wants_terminal || terminal.lend_on_demand(job.group()) {
            terminal.lend(job.group());
            job.go_on();
        }
    }
}
