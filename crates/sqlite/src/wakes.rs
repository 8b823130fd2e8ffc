//! Wakes between processes: one datagram socket per keeper, in the folder of the keepers.
//!
//! A wake is a hint. A missing, stale or full socket costs time until the next poll, so nothing here reports an error,
//! and nothing here ever blocks.

use std::{
    collections::BTreeMap,
    io,
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::net::UnixDatagram,
    },
    path::PathBuf,
};

use lockkeeper_core::{
    KeeperId,
    store::{Wake, WakeSink},
};
use lockkeeper_rows::wake_text;
use rustix::fs::{Mode, OFlags};

use crate::{file::DatabaseFile, paths::wake_name};

/// The largest message; longer ones are split. It is well below the default limit of a socket.
const LARGEST: usize = 32 * 1024;

/// Sends wakes to keepers of this host and to the tasks of this keeper.
#[derive(Debug)]
pub(crate) struct WakeSender {
    own: KeeperId,
    sink: WakeSink,
    /// `None` if no socket could be opened.
    others: Option<OtherKeepers>,
}

/// Sends messages to the sockets of other keepers.
#[derive(Debug)]
struct OtherKeepers {
    folder: KeepersFolder,
    socket: UnixDatagram,
}

/// The folder of the keepers, kept open. A socket's address has room for 107 bytes, which a path through this
/// descriptor never exceeds.
#[derive(Debug)]
struct KeepersFolder(OwnedFd);

impl KeepersFolder {
    fn open(file: &DatabaseFile) -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Self(rustix::fs::open(&file.keepers, flags, Mode::empty())?))
    }

    fn address(&self, keeper: KeeperId) -> PathBuf {
        format!("/proc/self/fd/{}/{}", self.0.as_raw_fd(), wake_name(keeper)).into()
    }
}

impl WakeSender {
    /// Opens the socket to send from, and the inbox of `own`. Each works without the other, and the tasks of this
    /// keeper are woken without either.
    pub(crate) fn open(file: &DatabaseFile, own: KeeperId, sink: WakeSink) -> (Self, Option<UnixDatagram>) {
        let closed = |way: &str, error: io::Error| {
            tracing::warn!(%error, way, "no wakes to or from other processes; polls make up for it");
        };
        let others = OtherKeepers::open(file).map_err(|error| closed("to", error)).ok();
        let inbox = bind_inbox(file, own).map_err(|error| closed("from", error)).ok();
        (Self { own, sink, others }, inbox)
    }

    /// Sends all wakes, in one message per keeper if they fit.
    pub(crate) fn send(&self, wakes: Vec<(KeeperId, Wake)>) {
        let (own, theirs): (Vec<_>, Vec<_>) = wakes.into_iter().partition(|(keeper, _)| *keeper == self.own);
        own.into_iter().for_each(|(_, wake)| self.sink.wake(wake));
        let Some(others) = &self.others else { return };
        let mut per_keeper = BTreeMap::<KeeperId, Vec<Wake>>::new();
        for (keeper, wake) in theirs {
            per_keeper.entry(keeper).or_default().push(wake);
        }
        for (keeper, wakes) in per_keeper {
            wake_text::messages(&wakes, LARGEST).iter().for_each(|message| others.send(keeper, message));
        }
    }
}

/// The socket that other keepers send the wakes of `own` to.
fn bind_inbox(file: &DatabaseFile, own: KeeperId) -> io::Result<UnixDatagram> {
    let inbox = UnixDatagram::bind(KeepersFolder::open(file)?.address(own))?;
    inbox.set_nonblocking(true)?;
    file.share(&file.keepers.join(wake_name(own)))?;
    Ok(inbox)
}

impl OtherKeepers {
    fn open(file: &DatabaseFile) -> io::Result<Self> {
        let socket = UnixDatagram::unbound()?;
        socket.set_nonblocking(true)?;
        Ok(Self { folder: KeepersFolder::open(file)?, socket })
    }

    fn send(&self, keeper: KeeperId, message: &str) {
        let send = |socket: &UnixDatagram| socket.send_to(message.as_bytes(), self.folder.address(keeper));
        let sent = send(&self.socket).or_else(|error| {
            if error.kind() != io::ErrorKind::WouldBlock {
                return Err(error);
            }
            // Unread messages count against the socket that sent them. A new socket has room. If this fails too, the
            // inbox is full, and its owner will notice.
            let socket = UnixDatagram::unbound()?;
            socket.set_nonblocking(true)?;
            send(&socket)
        });
        if let Err(error) = sent {
            tracing::debug!(%keeper, %error, "a wake was not delivered; the next poll makes up for it");
        }
    }
}

/// The number of messages at once that may have filled the inbox, so that others may be lost. An inbox takes at least
/// ten.
const FULL: usize = 10;

/// Delivers wakes from `inbox` until the socket fails.
pub(crate) async fn listen(inbox: UnixDatagram, sink: WakeSink) {
    let Ok(inbox) = tokio::net::UnixDatagram::from_std(inbox) else { return };
    let mut buffer = vec![0; LARGEST * 2];
    let mut at_once = 0;
    loop {
        let received = match inbox.readable().await {
            Ok(()) => inbox.try_recv(&mut buffer),
            Err(error) => Err(error),
        };
        match received {
            Ok(length) => {
                at_once += 1;
                wake_text::read(&buffer[..length]).for_each(|wake| sink.wake(wake));
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                if std::mem::take(&mut at_once) >= FULL {
                    sink.wake(Wake::Resync);
                }
            }
            Err(error) => {
                tracing::warn!(%error, "wakes are no longer heard; polls make up for it");
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use lockkeeper_core::{Name, store::Topic};

    use super::*;

    #[test]
    fn sockets_work_however_long_the_path_is_and_a_missing_one_is_no_error() {
        let folder = tempfile::tempdir().expect("a folder");
        let deep = folder.path().join("long".repeat(50));
        std::fs::create_dir(&deep).expect("made");
        let file = DatabaseFile::prepare(&deep.join("locks.db")).expect("prepared");
        let quiet = || WakeSink::new(|_| {});
        let (ours, theirs) = (KeeperId::random(), KeeperId::random());
        let (sender, _) = WakeSender::open(&file, ours, quiet());
        let inbox = bind_inbox(&file, theirs).expect("bound");
        let changed = || Wake::Changed(Topic::Latch(Name::new("x").expect("valid")));
        sender.send(vec![(theirs, changed()), (KeeperId::random(), changed())]);
        let mut buffer = [0; 100];
        let length = inbox.recv(&mut buffer).expect("it is there");
        assert_eq!(&buffer[..length], b"lockkeeper 1\nlatch\tx\n");
        for _ in 0..100_000 {
            sender.send(vec![(theirs, changed())]);
        }
    }

    /// So many keepers do not read, as if they were stopped, that the sender's room for unread messages is used up.
    #[test]
    fn keepers_that_do_not_read_keep_no_other_from_being_woken() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = DatabaseFile::prepare(&folder.path().join("locks.db")).expect("prepared");
        let open = || {
            let keeper = KeeperId::random();
            let (sender, inbox) = WakeSender::open(&file, keeper, WakeSink::new(|_| {}));
            (keeper, sender, inbox.expect("bound"))
        };
        let changed = || Wake::Changed(Topic::Latch(Name::new("x").expect("valid")));
        let (_, sender, _) = open();
        let stopped: Vec<_> = (0..100).map(|_| open()).collect();
        for _ in 0..10 {
            sender.send(stopped.iter().map(|(keeper, ..)| (*keeper, changed())).collect());
        }
        let (keeper, _, inbox) = open();
        sender.send(vec![(keeper, changed())]);
        assert!(inbox.recv(&mut [0; 100]).is_ok(), "it was woken");
    }

    #[tokio::test]
    async fn a_keeper_whose_inbox_was_full_asks_about_everything() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = DatabaseFile::prepare(&folder.path().join("locks.db")).expect("prepared");
        let (ours, theirs) = (KeeperId::random(), KeeperId::random());
        let (sender, _) = WakeSender::open(&file, ours, WakeSink::new(|_| {}));
        let inbox = bind_inbox(&file, theirs).expect("bound");
        let changed = || Wake::Changed(Topic::Latch(Name::new("x").expect("valid")));
        let (heard, mut wakes) = tokio::sync::mpsc::unbounded_channel();
        let listening = tokio::spawn(listen(inbox, WakeSink::new(move |wake| _ = heard.send(wake))));
        sender.send(vec![(theirs, changed())]);
        assert!(matches!(wakes.recv().await, Some(Wake::Changed(_))));
        // More than any inbox takes, and all at once: this task is not interrupted.
        for _ in 0..100_000 {
            sender.send(vec![(theirs, changed())]);
        }
        while !matches!(wakes.recv().await, Some(Wake::Resync)) {}
        listening.abort();
    }
}
