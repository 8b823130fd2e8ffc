//! Rounds between processes: starts child processes of this program, lets them run together, and joins their output.

use std::{
    fs,
    io::{BufRead as _, BufReader, Write as _},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    time::{Duration, Instant},
};

use hdrhistogram::Histogram;
use rustix::time::{ClockId, clock_gettime};

use crate::Failure;

pub(crate) const PROCESSES: usize = 16;

/// Nanoseconds on a clock that all processes share.
pub(crate) fn now() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_nsec.unsigned_abs()
}

/// The figures of a round between processes.
pub(crate) struct ProcessRound {
    pub(crate) rate: f64,
    pub(crate) shares: Vec<u64>,
    /// From the call to release to the next process's acquisition, in nanoseconds.
    pub(crate) hand_offs: Histogram<u64>,
    /// When a process acquired it after another one, in nanoseconds after the first acquisition.
    passed: Vec<u64>,
}

impl ProcessRound {
    /// Joins the acquisitions of all processes: when each had the lock, and when it began to release it.
    pub(crate) fn of(times: &[Vec<(u64, u64)>], length: Duration) -> Result<Self, Failure> {
        let each = times.iter().enumerate();
        let mut all: Vec<(u64, u64, usize)> = each
            .flat_map(|(index, times)| {
                times.iter().map(move |(granted, released)| (*granted, *released, index))
            })
            .collect();
        all.sort_unstable();
        let mut hand_offs = Histogram::new_with_max(60_000_000_000, 3)?;
        let (mut passed, start) = (Vec::new(), all.first().map_or(0, |first| first.0));
        for pair in all.windows(2) {
            if pair[1].0 < pair[0].1 {
                return Err("two processes held the lock at the same time".into());
            }
            if pair[0].2 != pair[1].2 {
                hand_offs.saturating_record(pair[1].0 - pair[0].1);
                passed.push(pair[1].0 - start);
            }
        }
        let shares = times.iter().map(|times| times.len() as u64).collect();
        Ok(Self { rate: all.len() as f64 / length.as_secs_f64(), shares, hand_offs, passed })
    }

    /// How often it was passed on between these times after the first acquisition.
    pub(crate) fn within(&self, from: Duration, to: Duration) -> usize {
        let during = from.as_nanos()..to.as_nanos();
        self.passed.iter().filter(|at| during.contains(&u128::from(**at))).count()
    }
}

/// Reads the line that a process prints for one acquisition.
pub(crate) fn parse_times(line: &str) -> Result<(u64, u64), Failure> {
    let (granted, released) = line.split_once(' ').ok_or("half a line")?;
    Ok((granted.parse()?, released.parse()?))
}

/// A child process of this program.
pub(crate) struct ChildProcess(pub(crate) Child);

impl ChildProcess {
    pub(crate) fn start(words: &[&str]) -> Result<Self, Failure> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("child").args(words);
        Self::spawn(command)
    }

    /// Starts any program whose input and output are used here.
    pub(crate) fn spawn(mut command: Command) -> Result<Self, Failure> {
        Ok(Self(command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?))
    }
}

impl Drop for ChildProcess {
    fn drop(&mut self) {
        // It has mostly ended by itself.
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// A child process that gets requests and gives answers, one line each.
pub(crate) struct Dialogue {
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    child: ChildProcess,
}

impl Dialogue {
    pub(crate) fn new(mut child: ChildProcess) -> Result<Self, Failure> {
        let input = child.0.stdin.take().ok_or("no input")?;
        let output = BufReader::new(child.0.stdout.take().ok_or("no output")?);
        Ok(Self { input, output, child })
    }

    pub(crate) fn send(&mut self, request: &str) -> Result<(), Failure> {
        Ok(writeln!(self.input, "{request}")?)
    }

    pub(crate) fn receive(&mut self) -> Result<String, Failure> {
        let mut line = String::new();
        match self.output.read_line(&mut line)? {
            0 => Err("a child process has ended".into()),
            _ => Ok(line.trim_end().to_owned()),
        }
    }

    pub(crate) fn ask(&mut self, request: &str) -> Result<String, Failure> {
        self.send(request)?;
        self.receive()
    }

    /// All acquisitions of a round between processes.
    pub(crate) fn receive_times(&mut self) -> Result<Vec<(u64, u64)>, Failure> {
        let mut times = Vec::new();
        loop {
            match self.receive()?.as_str() {
                "end" => return Ok(times),
                line => times.push(parse_times(line)?),
            }
        }
    }

    /// Its process id.
    pub(crate) fn id(&self) -> u32 {
        self.child.0.id()
    }

    /// Its CPU time so far, to a hundredth of a second.
    pub(crate) fn cpu(&self) -> Result<Duration, Failure> {
        cpu_of(self.child.0.id())
    }
}

/// CPU time of a process so far, to a hundredth of a second.
pub(crate) fn cpu_of(process: u32) -> Result<Duration, Failure> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat"))?;
    // After the name, which may have blanks in it: user time and system time are the 12th and 13th.
    let (_, fields) = stat.rsplit_once(')').ok_or("a process without a name")?;
    let mut ticks = fields.split_whitespace().skip(11).map(str::parse::<u64>);
    match (ticks.next(), ticks.next()) {
        (Some(user), Some(system)) => Ok(Duration::from_millis((user? + system?) * 10)),
        _ => Err("a process without times".into()),
    }
}

/// Lets the children run together and joins their output: a line per acquisition, with the times at which it had the
/// lock and at which it began to release it.
pub(crate) fn race(mut children: Vec<ChildProcess>, length: Duration) -> Result<ProcessRound, Failure> {
    let mut outputs = Vec::new();
    for child in &mut children {
        let mut output = BufReader::new(child.0.stdout.take().ok_or("no output")?);
        let mut ready = String::new();
        output.read_line(&mut ready)?;
        outputs.push(output);
    }
    for child in &mut children {
        child.0.stdin.as_mut().ok_or("no input")?.write_all(b"go\n")?;
    }
    let mut times = Vec::new();
    for output in outputs {
        times.push(output.lines().map(|line| parse_times(&line?)).collect::<Result<Vec<_>, Failure>>()?);
    }
    ProcessRound::of(&times, length)
}

/// Sixteen processes with a keeper each.
pub(crate) fn keepers(url: &str, length: Duration) -> Result<ProcessRound, Failure> {
    let millis = length.as_millis().to_string();
    let children: Result<Vec<_>, _> =
        (0..PROCESSES).map(|_| ChildProcess::start(&["keeper", url, &millis])).collect();
    race(children?, length)
}

pub(crate) fn runtime() -> std::io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()
}

pub(crate) fn wait_for_go() -> Result<Instant, Failure> {
    println!("ready");
    std::io::stdin().read_line(&mut String::new())?;
    Ok(Instant::now())
}

/// A process with a keeper: acquires and releases until `length` is over.
pub(crate) async fn keeper(url: &str, length: Duration) -> Result<Vec<(u64, u64)>, Failure> {
    let keeper = lockkeeper::connect(url).await?;
    let mutex = keeper.mutex("bench/w3p");
    let started = wait_for_go()?;
    let mut times = Vec::new();
    while let Some(left) = length.checked_sub(started.elapsed()) {
        let Ok(guard) = mutex.lock_within(left).await else { break };
        let granted = now();
        times.push((granted, now()));
        guard.release().await?;
    }
    keeper.close().await;
    Ok(times)
}
