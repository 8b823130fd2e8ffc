//! Wakes between processes: one datagram socket per keeper, in the folder of the keepers.
//!
//! A wake is a hint. A socket that is missing, stale or full costs time until the next poll, so
//! nothing here reports an error, and nothing here ever blocks.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    io,
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::net::UnixDatagram,
    },
    path::PathBuf,
    time::Duration,
};

use lockkeeper_core::{
    KeeperId, Name,
    store::{GrantNotice, Topic, Wake, WakeSink},
};
use rustix::fs::{Mode, OFlags};

use crate::{file::DatabaseFile, liveness::wake_name, work::topic_words};

/// The first line of every datagram. Another version's are not understood and so only cost time.
const HEADER: &str = "lockkeeper 1\n";

/// Datagrams are split before they get larger: well below what a socket takes by default.
const LARGEST: usize = 32 * 1024;

/// The way to everybody who is to be woken.
#[derive(Debug)]
pub(crate) struct Channel {
    own: KeeperId,
    sink: WakeSink,
    /// The way to other keepers, if it could be opened.
    others: Option<Others>,
}

/// The way to the sockets of other keepers.
#[derive(Debug)]
struct Others {
    folder: Folder,
    socket: UnixDatagram,
}

/// The folder of the keepers, kept open: a socket's address has room for 107 bytes, which a path
/// through this descriptor never exceeds.
#[derive(Debug)]
struct Folder(OwnedFd);

impl Folder {
    fn open(file: &DatabaseFile) -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Self(rustix::fs::open(&file.keepers, flags, Mode::empty())?))
    }

    fn address(&self, keeper: KeeperId) -> PathBuf {
        format!("/proc/self/fd/{}/{}", self.0.as_raw_fd(), wake_name(keeper)).into()
    }
}

impl Channel {
    /// Opens the way out, and the socket that others reach `own` through. One works without the other, and the tasks
    /// of this process are told without either.
    pub(crate) fn open(file: &DatabaseFile, own: KeeperId, sink: WakeSink) -> (Self, Option<UnixDatagram>) {
        let closed = |way: &str, error: io::Error| {
            tracing::warn!(%error, way, "no wakes to or from other processes; polls make up for it");
        };
        let others = Others::open(file).map_err(|error| closed("to", error)).ok();
        let inbox = hear(file, own).map_err(|error| closed("from", error)).ok();
        (Self { own, sink, others }, inbox)
    }

    /// Tells everybody what concerns them, one datagram each as far as it goes.
    pub(crate) fn tell(&self, wakes: Vec<(KeeperId, Wake)>) {
        let (own, theirs): (Vec<_>, Vec<_>) = wakes.into_iter().partition(|(keeper, _)| *keeper == self.own);
        own.into_iter().for_each(|(_, wake)| self.sink.wake(wake));
        let Some(others) = &self.others else { return };
        let mut letters = BTreeMap::<KeeperId, String>::new();
        for (keeper, wake) in theirs {
            let letter = letters.entry(keeper).or_insert_with(|| HEADER.to_owned());
            write_wake(letter, &wake);
            if letter.len() > LARGEST {
                others.send(keeper, letter);
                HEADER.clone_into(letter);
            }
        }
        for (keeper, letter) in letters.into_iter().filter(|(_, letter)| letter.len() > HEADER.len()) {
            others.send(keeper, &letter);
        }
    }
}

/// The socket that others reach `own` through.
fn hear(file: &DatabaseFile, own: KeeperId) -> io::Result<UnixDatagram> {
    let inbox = UnixDatagram::bind(Folder::open(file)?.address(own))?;
    inbox.set_nonblocking(true)?;
    file.share(&file.keepers.join(wake_name(own)))?;
    Ok(inbox)
}

impl Others {
    fn open(file: &DatabaseFile) -> io::Result<Self> {
        let socket = UnixDatagram::unbound()?;
        socket.set_nonblocking(true)?;
        Ok(Self { folder: Folder::open(file)?, socket })
    }

    fn send(&self, keeper: KeeperId, letter: &str) {
        let send = |socket: &UnixDatagram| socket.send_to(letter.as_bytes(), self.folder.address(keeper));
        let sent = send(&self.socket).or_else(|error| {
            if error.kind() != io::ErrorKind::WouldBlock {
                return Err(error);
            }
            // What others have not read yet counts against the socket that sent it. A new one has room: if this fails
            // too, it is the inbox that is full, and who has that will notice.
            let socket = UnixDatagram::unbound()?;
            socket.set_nonblocking(true)?;
            send(&socket)
        });
        if let Err(error) = sent {
            tracing::debug!(%keeper, %error, "a wake was not delivered; the next poll makes up for it");
        }
    }
}

/// So many letters at once may have filled the inbox, which takes at least ten, so that more were lost.
const FULL: usize = 10;

/// Delivers what arrives until the socket fails.
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
                let letter = std::str::from_utf8(&buffer[..length]).ok().and_then(|l| l.strip_prefix(HEADER));
                letter
                    .into_iter()
                    .flat_map(str::lines)
                    .filter_map(read_wake)
                    .for_each(|wake| sink.wake(wake));
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

/// One line per wake. Names have no control characters, so tabs and line ends are free.
fn write_wake(letter: &mut String, wake: &Wake) {
    let written = match wake {
        Wake::Granted(name, grant) => writeln!(
            letter,
            "granted\t{name}\t{}\t{}\t{}\t{}\t{}\t{}",
            grant.contender,
            grant.number,
            grant.floor,
            grant.stamp,
            grant.waited.as_micros(),
            grant.lease.as_micros()
        ),
        Wake::Changed(topic) => match topic_words(topic) {
            Some((word, name)) => writeln!(letter, "{word}\t{name}"),
            None => Ok(()),
        },
        // No keeper tells another one of these.
        _ => Ok(()),
    };
    written.expect("writing to a string cannot fail");
}

fn read_wake(line: &str) -> Option<Wake> {
    let mut words = line.split('\t');
    let word = words.next()?;
    let name = Name::new(words.next()?).ok()?;
    match word {
        "holders" => Some(Wake::Changed(Topic::Changes(name))),
        "latch" => Some(Wake::Changed(Topic::Latch(name))),
        "granted" => {
            let contender = words.next()?.parse().ok()?;
            let mut number = || words.next()?.parse::<u64>().ok();
            let grant = GrantNotice {
                contender,
                number: number()?,
                floor: number()?,
                stamp: number()?,
                waited: Duration::from_micros(number()?),
                lease: Duration::from_micros(number()?),
            };
            Some(Wake::Granted(name, grant))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use lockkeeper_core::ContenderId;

    use super::*;

    #[test]
    fn wakes_survive_text() {
        let grant = GrantNotice {
            contender: ContenderId { keeper: KeeperId::random(), seq: 7 },
            number: 1 << 52,
            floor: 3,
            stamp: u64::MAX,
            waited: Duration::from_micros(12),
            lease: Duration::from_secs(3),
        };
        let name = Name::new("stock/42 \"é\"").expect("valid");
        let mut letter = String::new();
        write_wake(&mut letter, &Wake::Granted(name.clone(), grant));
        write_wake(&mut letter, &Wake::Changed(Topic::Changes(name.clone())));
        write_wake(&mut letter, &Wake::Changed(Topic::Latch(name.clone())));
        let read: Vec<Wake> = letter.lines().filter_map(read_wake).collect();
        let [Wake::Granted(first, read_grant), Wake::Changed(second), Wake::Changed(third)] = &read[..]
        else {
            panic!("{read:?}")
        };
        assert_eq!((first, read_grant), (&name, &grant));
        assert_eq!((second, third), (&Topic::Changes(name.clone()), &Topic::Latch(name)));
        for nonsense in ["", "granted", "granted\tx\ty", "other\tx"] {
            assert!(read_wake(nonsense).is_none(), "{nonsense:?}");
        }
    }

    #[test]
    fn sockets_work_however_long_the_path_is_and_a_missing_one_is_no_error() {
        let folder = tempfile::tempdir().expect("a folder");
        let deep = folder.path().join("long".repeat(50)).join("locks.db");
        let file = DatabaseFile::prepare(&deep).expect("prepared");
        let quiet = || WakeSink::new(|_| {});
        let (ours, theirs) = (KeeperId::random(), KeeperId::random());
        let (channel, _) = Channel::open(&file, ours, quiet());
        let inbox = hear(&file, theirs).expect("bound");
        let changed = || Wake::Changed(Topic::Latch(Name::new("x").expect("valid")));
        channel.tell(vec![(theirs, changed()), (KeeperId::random(), changed())]);
        let mut buffer = [0; 100];
        let length = inbox.recv(&mut buffer).expect("it is there");
        assert_eq!(&buffer[..length], b"lockkeeper 1\nlatch\tx\n");
        for _ in 0..100_000 {
            channel.tell(vec![(theirs, changed())]);
        }
    }

    /// As many as fill the sender's own room do not read, as if they were stopped.
    #[test]
    fn those_who_do_not_read_keep_nobody_else_from_being_told() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = DatabaseFile::prepare(&folder.path().join("locks.db")).expect("prepared");
        let open = || {
            let keeper = KeeperId::random();
            let (channel, inbox) = Channel::open(&file, keeper, WakeSink::new(|_| {}));
            (keeper, channel, inbox.expect("bound"))
        };
        let changed = || Wake::Changed(Topic::Latch(Name::new("x").expect("valid")));
        let (_, channel, _) = open();
        let stopped: Vec<_> = (0..100).map(|_| open()).collect();
        for _ in 0..10 {
            channel.tell(stopped.iter().map(|(keeper, ..)| (*keeper, changed())).collect());
        }
        let (keeper, _, inbox) = open();
        channel.tell(vec![(keeper, changed())]);
        assert!(inbox.recv(&mut [0; 100]).is_ok(), "it was told");
    }

    #[tokio::test]
    async fn who_was_away_while_its_inbox_was_full_asks_about_everything() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = DatabaseFile::prepare(&folder.path().join("locks.db")).expect("prepared");
        let (ours, theirs) = (KeeperId::random(), KeeperId::random());
        let (channel, _) = Channel::open(&file, ours, WakeSink::new(|_| {}));
        let inbox = hear(&file, theirs).expect("bound");
        let changed = || Wake::Changed(Topic::Latch(Name::new("x").expect("valid")));
        let (heard, mut wakes) = tokio::sync::mpsc::unbounded_channel();
        let listening = tokio::spawn(listen(inbox, WakeSink::new(move |wake| _ = heard.send(wake))));
        channel.tell(vec![(theirs, changed())]);
        assert!(matches!(wakes.recv().await, Some(Wake::Changed(_))));
        // More than any inbox takes, at once for this task is not interrupted.
        for _ in 0..100_000 {
            channel.tell(vec![(theirs, changed())]);
        }
        while !matches!(wakes.recv().await, Some(Wake::Resync)) {}
        listening.abort();
    }
}
