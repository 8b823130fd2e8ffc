//! The machine's own figures: CPU time, resident memory, and the other load.

use std::{
    fs, io,
    time::{Duration, Instant},
};

use rustix::time::{ClockId, clock_gettime};

/// CPU time of this process so far, all threads.
pub(crate) fn cpu() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// Resident memory of this process in bytes.
pub(crate) fn resident() -> io::Result<u64> {
    resident_of("self")
}

/// Resident memory in bytes of the process with this id.
pub(crate) fn resident_of(process: &str) -> io::Result<u64> {
    let status = fs::read_to_string(format!("/proc/{process}/status"))?;
    resident_in(&status).ok_or_else(|| io::Error::other("a process without VmRSS"))
}

fn resident_in(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

/// CPU time that the whole machine has spent on work, and the time that its host took away.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Machine {
    busy: Duration,
    stolen: Duration,
}

impl Machine {
    fn now() -> io::Result<Self> {
        let stat = fs::read_to_string("/proc/stat")?;
        Self::of(&stat).ok_or_else(|| io::Error::other("/proc/stat has no line for all processors"))
    }

    /// Reads the first line of `stat`: user, nice, system, idle, iowait, irq, softirq, steal, in hundredths.
    fn of(stat: &str) -> Option<Self> {
        let line = stat.lines().find_map(|line| line.strip_prefix("cpu "))?;
        let ticks: Vec<u64> = line.split_whitespace().map_while(|tick| tick.parse().ok()).collect();
        let sum = |fields: &[usize]| {
            fields
                .iter()
                .map(|field| ticks.get(*field))
                .sum::<Option<u64>>()
                .map(|n| Duration::from_millis(n * 10))
        };
        Some(Self { busy: sum(&[0, 1, 2, 5, 6])?, stolen: sum(&[7])? })
    }
}

/// Watches the CPU time of this process and of everybody else from its start.
pub(crate) struct Meter {
    started: Instant,
    own: Duration,
    machine: Machine,
}

impl Meter {
    pub(crate) fn start() -> io::Result<Self> {
        Ok(Self { started: Instant::now(), own: cpu(), machine: Machine::now()? })
    }

    /// One sentence on how quiet the machine was.
    pub(crate) fn surroundings(&self) -> io::Result<String> {
        let elapsed = self.started.elapsed();
        let (own, machine) = (cpu().saturating_sub(self.own), Machine::now()?);
        let busy = machine.busy.saturating_sub(self.machine.busy);
        Ok(format!(
            "meanwhile other programs used {:.0} % of a core and the host took {:.0} %",
            percent(busy.saturating_sub(own), elapsed),
            percent(machine.stolen.saturating_sub(self.machine.stolen), elapsed),
        ))
    }
}

/// How many per cent of `whole` a `part` is.
pub(crate) fn percent(part: Duration, whole: Duration) -> f64 {
    100.0 * part.as_secs_f64() / whole.as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_time_grows_with_work_and_not_with_sleep() {
        let before = cpu();
        std::thread::sleep(Duration::from_millis(20));
        let slept = cpu();
        while cpu() - slept < Duration::from_millis(5) {}
        assert!(slept >= before);
    }

    #[test]
    fn resident_memory_is_read() {
        assert_eq!(resident_in("Name:\tx\nVmRSS:\t    2048 kB\n"), Some(2 << 20));
        assert_eq!(resident_in("Name:\tx\n"), None);
        assert!(resident().expect("Linux has it") > 4096);
    }

    #[test]
    fn the_machine_is_read() {
        let stat = "cpu  100 1 50 900 7 2 3 40 0 0\ncpu0 1 1 1 1\n";
        let machine = Machine { busy: Duration::from_millis(1560), stolen: Duration::from_millis(400) };
        assert_eq!(Machine::of(stat), Some(machine));
        assert_eq!(Machine::of("intr 1 2"), None);
        Machine::now().expect("Linux has it");
    }

    #[test]
    fn per_cents() {
        assert_eq!(percent(Duration::from_millis(50), Duration::from_secs(1)), 5.0);
    }
}
