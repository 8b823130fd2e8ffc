//! One handle for the life lines of several members.
//!
//! The handle is a socket, and the life lines are files that were sent to it and that nobody receives. They stay open
//! for as long as anybody has the socket open.

use std::{
    io::IoSlice,
    mem::MaybeUninit,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    os::unix::net::UnixStream,
};

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

/// The most members that a quorum has.
const MOST: usize = 7;

/// One handle that keeps all of these open.
pub(crate) fn join(lines: &[OwnedFd]) -> Option<OwnedFd> {
    if lines.is_empty() || lines.len() > MOST {
        return None;
    }
    let (sender, kept) = UnixStream::pair().ok()?;
    let lines: Vec<BorrowedFd<'_>> = lines.iter().map(AsFd::as_fd).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST))];
    let mut message = SendAncillaryBuffer::new(&mut space);
    if !message.push(SendAncillaryMessage::ScmRights(&lines)) {
        return None;
    }
    sendmsg(sender.as_fd(), &[IoSlice::new(b"-")], &mut message, SendFlags::empty()).ok()?;
    Some(kept.into())
}

#[cfg(test)]
mod tests {
    use std::{fs::File, io::Read};

    use super::*;

    #[test]
    fn a_life_line_stays_open_with_the_handle() {
        let (mut reader, writer) = std::io::pipe().expect("a pipe");
        let other = File::open("/dev/null").expect("opened");
        let handle = join(&[writer.into(), other.into()]).expect("joined");
        let waits = std::thread::spawn(move || reader.read(&mut [0; 1]));
        std::thread::sleep(std::time::Duration::from_millis(50));
        assert!(!waits.is_finished(), "the writer is open");
        drop(handle);
        assert_eq!(waits.join().expect("ended").expect("read"), 0, "the writer is closed");
    }
}
