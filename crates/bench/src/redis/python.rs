//! redis-py's `Lock`, in a program of its own with a thread per task.

use std::{
    path::{Path, PathBuf},
    process::{Command, Output},
    time::Duration,
};

use tempfile::TempDir;
use tokio::task::spawn_blocking;

use crate::{
    Failure,
    drain::Drain,
    judge::Limit,
    rounds::{self, BoxFuture, Contestant, Load, Round},
    workload::Workload,
};

const PROGRAM: &str = include_str!("redis_lock.py");

/// Python, with redis-py.
pub(super) struct PythonPeer {
    url: String,
    python: PathBuf,
    /// The folder of redis-py, if it had to be installed.
    _folder: Option<TempDir>,
}

impl PythonPeer {
    /// Takes the machine's own (Debian: python3-redis), else installs it into a temporary folder with pip.
    pub(super) fn find(url: &str) -> Result<Self, Failure> {
        let python = PathBuf::from("python3");
        if run(&python, &["-c", "import redis.lock"]).is_ok() {
            return Ok(Self { url: url.to_owned(), python, _folder: None });
        }
        let folder = tempfile::Builder::new().prefix("lockkeeper-bench-python-").tempdir()?;
        let path = folder.path().display().to_string();
        run(&python, &["-m", "venv", &path])?;
        let python = folder.path().join("bin/python");
        run(&python, &["-m", "pip", "install", "--quiet", "redis>=5,<9"])?;
        Ok(Self { url: url.to_owned(), python, _folder: Some(folder) })
    }
}

fn run(program: &Path, words: &[&str]) -> Result<Output, Failure> {
    let output = Command::new(program).args(words).output()?;
    if output.status.success() {
        return Ok(output);
    }
    let why = String::from_utf8_lossy(&output.stderr);
    Err(format!("{} failed: {}", program.display(), why.trim().lines().last().unwrap_or("no reason")).into())
}

impl Contestant for PythonPeer {
    fn name(&self) -> &'static str {
        "redis-py"
    }

    /// The goal is the same as for the other peers that ask the server.
    fn goal(&self, workload: Workload) -> Option<Limit> {
        (workload == Workload::W3).then_some(Limit::AtLeast(50.0))
    }

    fn takes_part(&self, workload: Workload) -> bool {
        workload == Workload::W3
    }

    fn round<'a>(&'a self, load: &'a Load) -> BoxFuture<'a, Result<Round, Failure>> {
        Box::pin(async move {
            let (python, url) = (self.python.clone(), self.url.clone());
            let (tasks, seconds) = (load.tasks.to_string(), load.length.as_secs_f64().to_string());
            let name = format!("bench/redis-py/{}", load.names[0]);
            let output =
                spawn_blocking(move || run(&python, &["-c", PROGRAM, &url, &name, &tasks, &seconds]))
                    .await??;
            read(&String::from_utf8(output.stdout)?)
        })
    }

    fn drain(&self, _: usize, _: Duration) -> BoxFuture<'_, Result<Drain, Failure>> {
        Box::pin(async { Err("redis-py takes no part in this".into()) })
    }
}

/// Reads the output of the program.
fn read(text: &str) -> Result<Round, Failure> {
    let mut lines = text.lines();
    let words: Vec<&str> = lines.next().unwrap_or_default().split(' ').collect();
    let [elapsed, cpu, passed, counted] = words[..] else { return Err("redis-py: no first line".into()) };
    let mut round = Round {
        elapsed: Duration::try_from_secs_f64(elapsed.parse()?)?,
        cpu: Duration::try_from_secs_f64(cpu.parse()?)?,
        shares: Vec::new(),
        passed: passed.parse()?,
        requests: None,
        served: None,
        times: rounds::no_times()?,
    };
    for line in lines {
        let mut words = line.split(' ');
        round.shares.push(words.next().unwrap_or_default().parse()?);
        for time in words {
            round.times.saturating_record(time.parse()?);
        }
    }
    if round.shares.iter().sum::<u64>() != counted.parse::<u64>()? {
        return Err("redis-py: two threads held one lock".into());
    }
    Ok(round)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_program_prints_is_read() {
        let round = read("2.5 0.5 3 7\n4 1000 2000\n3 1500\n").expect("a round");
        assert_eq!((round.shares, round.passed, round.times.len()), (vec![4, 3], 3, 3));
        assert_eq!((round.elapsed, round.cpu), (Duration::from_millis(2500), Duration::from_millis(500)));
        assert!(read("2.5 0.5 3 8\n4\n3\n").is_err(), "one more was counted than acquired");
        assert!(read("").is_err());
    }
}
