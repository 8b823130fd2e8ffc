//! The boot of the machine and the clock since then, which all processes of a host share.
//!
//! A container may see that clock shifted (`time_namespaces(7)`). The database has the host's times, so that processes
//! of different containers agree on when a lease ends.

use std::{fs, io, path::Path};

use lockkeeper_core::{
    StoreError, StoreErrorKind,
    clock::{BootTime, Clock},
    model::Now,
    store::StoreTime,
};

use crate::trouble::file_trouble;

/// A boot of the machine, as this process sees it.
#[derive(Clone, Debug)]
pub(crate) struct Boot {
    /// Differs between two boots, so no process of another boot is alive.
    pub(crate) id: String,
    /// How many nanoseconds this process's boot-time clock is ahead of the host's.
    ahead: i128,
}

impl Boot {
    /// The boot that this process runs in.
    pub(crate) fn find() -> Result<Self, StoreError> {
        let path = Path::new("/proc/sys/kernel/random/boot_id");
        let boot = fs::read_to_string(path).map_err(|error| file_trouble("read", path, error))?;
        Ok(Self { id: boot.trim().to_owned(), ahead: clock_ahead()? })
    }

    /// The time, by `clock` of this process.
    pub(crate) fn now(&self, clock: &Clock) -> Now {
        Now { lease: self.time_of(clock.now()), wall: clock.wall_micros() }
    }

    fn time_of(&self, moment: BootTime) -> StoreTime {
        StoreTime(u64::try_from((i128::from(moment.0) - self.ahead) / 1000).unwrap_or_default())
    }
}

/// How far this process's clock is ahead, in nanoseconds.
fn clock_ahead() -> Result<i128, StoreError> {
    let path = Path::new("/proc/self/timens_offsets");
    let offsets = match fs::read_to_string(path) {
        Ok(offsets) => offsets,
        // This kernel has no time namespaces.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
        Err(error) => return Err(file_trouble("read", path, error)),
    };
    // The kernel tells the offsets for processes that this one starts. Mostly they are its own.
    let namespace = |name| fs::read_link(Path::new("/proc/self/ns").join(name)).ok();
    if namespace("time") != namespace("time_for_children") {
        return Err(unknown_clock("its children are in another time namespace than it is; restart it"));
    }
    boot_offset(&offsets)
        .ok_or_else(|| unknown_clock("the kernel shows the clock's offset in an unknown format"))
}

fn unknown_clock(why: &str) -> StoreError {
    StoreError::new(StoreErrorKind::Config, format!("this process cannot tell the host's time: {why}"))
}

/// The offset of the boot-time clock: a row with its name, seconds, and nanoseconds on top of them.
fn boot_offset(offsets: &str) -> Option<i128> {
    let mut words = offsets.lines().find_map(|row| row.strip_prefix("boottime"))?.split_whitespace();
    let seconds: i128 = words.next()?.parse().ok()?;
    let nanos: i128 = words.next()?.parse().ok()?;
    Some(seconds * 1_000_000_000 + nanos)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shifted_clock_tells_the_host_s_time() {
        let ahead = boot_offset("monotonic          -7         0\nboottime       -86400 999999999\n");
        assert_eq!(ahead, Some(-86_399_000_000_001));
        assert_eq!(boot_offset("boottime x 0"), None);
        let boot = Boot { id: "boot".into(), ahead: 3_000_000_000 };
        assert_eq!(boot.time_of(BootTime(5_000_001_000)), StoreTime(2_000_001));
        let boot = Boot { id: "boot".into(), ahead: -3_000_000_000 };
        assert_eq!(boot.time_of(BootTime(5_000_000_000)), StoreTime(8_000_000));
    }

    #[test]
    fn this_process_knows_its_clock() {
        assert!(!Boot::find().expect("it is Linux").id.is_empty());
    }
}
