//! Free ports that stay free: also while the server behind one is dead, and for other test processes too.

use std::{
    io,
    net::{Ipv4Addr, SocketAddr, UdpSocket},
    process,
    sync::{LazyLock, Mutex},
    time::SystemTime,
};

use lockkeeper_core::support;
use tokio::net::TcpSocket;

use crate::dice::Dice;

/// Below the ports that the kernel gives to outgoing connections: one of those might take the port of a server
/// that is down, and a client that tries to reach a dead server on such a port can even connect to itself.
const LOWEST: u16 = 12_000;
const HIGHEST: u16 = 32_000;

static DICE: LazyLock<Mutex<Dice>> = LazyLock::new(|| {
    let now = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
    Mutex::new(Dice::new(now.as_nanos() as u64 ^ u64::from(process::id()) << 32))
});

/// A TCP port of the loopback interface that no other test gets while this value lives.
#[derive(Debug)]
pub struct Port {
    number: u16,
    /// The UDP port of the same number is the sign for others that it is taken. The kernel keeps the sign, so
    /// it ends with its process.
    _sign: UdpSocket,
}

impl Port {
    /// A port that nobody listens on.
    ///
    /// # Errors
    /// If there seems to be none.
    pub fn free() -> io::Result<Self> {
        let mut dice = support::lock(&DICE);
        for _ in 0..1000 {
            let number = LOWEST + dice.below(u64::from(HIGHEST - LOWEST)) as u16;
            let Ok(sign) = UdpSocket::bind((Ipv4Addr::LOCALHOST, number)) else { continue };
            let port = Self { number, _sign: sign };
            if port.has_no_listener()? {
                return Ok(port);
            }
        }
        Err(io::Error::new(io::ErrorKind::AddrInUse, "no free port on the loopback interface"))
    }

    /// Asks by binding, but never by listening: a child that another thread starts at this moment inherits the
    /// socket until it executes its program, and a listening one would keep the port taken for that long.
    fn has_no_listener(&self) -> io::Result<bool> {
        let probe = TcpSocket::new_v4()?;
        probe.set_reuseaddr(true)?;
        Ok(probe.bind(self.address()).is_ok())
    }

    /// Its number.
    pub fn number(&self) -> u16 {
        self.number
    }

    /// Its address.
    pub fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.number).into()
    }
}

#[cfg(test)]
mod tests {
    use std::{net::TcpListener, process::Command, thread};

    use super::*;

    #[test]
    fn no_port_is_given_twice() {
        let ports: Vec<_> = (0..200).map(|_| Port::free().expect("free")).collect();
        let mut numbers: Vec<_> = ports.iter().map(Port::number).collect();
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), ports.len());
    }

    #[test]
    fn a_port_with_a_listener_is_not_free() {
        let port = Port::free().expect("free");
        assert!(port.has_no_listener().expect("a socket"));
        let _listener = TcpListener::bind(port.address()).expect("free");
        assert!(!port.has_no_listener().expect("a socket"));
    }

    #[test]
    fn a_port_stays_free_while_programs_are_started() {
        let starting = thread::spawn(|| {
            for _ in 0..300 {
                // A change of folder makes the child run code of its own between its birth and its program.
                let status = Command::new("true").current_dir("/").status();
                assert!(status.expect("started").success());
            }
        });
        while !starting.is_finished() {
            let port = Port::free().expect("free");
            TcpListener::bind(port.address()).expect("still free");
        }
        starting.join().expect("no panic");
    }
}
