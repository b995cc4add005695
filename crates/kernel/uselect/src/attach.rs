//! Asking the daemon for this process's memory.
//!
//! The process sends [`REQUEST`] and one byte more, its [`Mode`]; the daemon sends one byte, an
//! [`Answer`], and with a granted one three descriptors: `Shown`, `Own`, and the ring of sleeper 0.
//! For each further sleeper, in order, the process sends [`SLEEPER`] and gets an answer and a ring,
//! which it takes before it asks again. Whom the daemon will not have it may answer before it has
//! asked. The connection stays open: its end, or the process's, is the end of the registration.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use crate::error::Error;
use crate::kernel::{connect, receive, send};
use crate::pages::{Pages, Ring};

/// Where the daemon listens unless told otherwise.
pub const SOCKET: &str = "/run/uselectd.sock";
/// What a process asks with; the last byte is the version of the layout.
pub const REQUEST: [u8; 8] = *b"uselect\x02";
/// What it asks for another ring with.
pub const SLEEPER: u8 = b'+';
/// Descriptors that come with [`Answer::Granted`].
pub const DESCRIPTORS: usize = 3;

/// The daemon's answer, as it is on the wire.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Answer {
    /// The descriptors are with it.
    Granted = 0,
    /// The policy does not have this user.
    Refused = 1,
    /// No room, in all or for this user.
    Full = 2,
    /// The process is registered already.
    Registered = 3,
    /// The process is of another pid namespace.
    OtherNamespace = 4,
    /// The kernel would not, or something else that the daemon's log tells.
    Failed = 5,
    /// The request is of another version.
    Version = 6,
}

impl Answer {
    fn of(byte: u8) -> Option<Self> {
        let all = [
            Self::Granted,
            Self::Refused,
            Self::Full,
            Self::Registered,
            Self::OtherNamespace,
            Self::Failed,
            Self::Version,
        ];
        all.into_iter().find(|answer| *answer as u8 == byte)
    }
}

/// Who clears a bit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Mode {
    /// The kernel, whenever the process has received or sent: memory says what poll(2) says.
    Exact = 0,
    /// The process: the kernel only tells what has happened, which saves its programs at each
    /// receive and send. For who reads until nothing is left, and waits for changes; otherwise
    /// sockets are read and written by [`crate::Socket::receive`] and [`crate::Socket::send`].
    Lean = 1,
}

/// A registration: memory, the ring of sleeper 0, and the connection that keeps it.
pub(crate) fn attach(path: &Path, mode: Mode) -> Result<(Pages, Ring, OwnedFd), Error> {
    let connection = connect(path).map_err(Error::NoDaemon)?;
    let mut request = [mode as u8; REQUEST.len() + 1];
    request[..REQUEST.len()].copy_from_slice(&REQUEST);
    let descriptors = ask(connection.as_fd(), &request)?;
    let [shown, own, ring]: [OwnedFd; DESCRIPTORS] =
        descriptors.try_into().map_err(|_| Error::Protocol)?;
    Ok((Pages::new(shown.as_fd(), own.as_fd())?, Ring::new(ring)?, connection))
}

/// The ring of the next sleeper.
pub(crate) fn another_ring(connection: BorrowedFd<'_>) -> Result<Ring, Error> {
    let descriptors = ask(connection, &[SLEEPER])?;
    let [ring]: [OwnedFd; 1] = descriptors.try_into().map_err(|_| Error::Protocol)?;
    Ok(Ring::new(ring)?)
}

fn ask(connection: BorrowedFd<'_>, request: &[u8]) -> Result<Vec<OwnedFd>, Error> {
    let sent = send(connection, request);
    let (mut answer, mut descriptors) = ([0], Vec::with_capacity(DESCRIPTORS));
    let received = receive::<DESCRIPTORS>(connection, &mut answer, &mut descriptors);
    // Whom the daemon will not have it tells so before that has asked, and closes the connection:
    // then the request fails, and is answered.
    if received != Ok(answer.len()) {
        sent?;
        received?;
        return Err(Error::Protocol);
    }
    match Answer::of(answer[0]) {
        Some(Answer::Granted) => Ok(descriptors),
        Some(Answer::Refused) => Err(Error::Refused),
        Some(Answer::Full) => Err(Error::Full),
        Some(Answer::Registered) => Err(Error::Registered),
        Some(Answer::OtherNamespace) => Err(Error::OtherNamespace),
        Some(Answer::Failed) => Err(Error::Daemon),
        Some(Answer::Version) | None => Err(Error::Protocol),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::net::UnixStream;

    use rustix::io::Errno;

    use super::*;

    #[test]
    fn an_answer_that_was_there_before_the_question_is_taken() {
        let asked = |daemon: &[u8], is_reset: bool| {
            let (ours, mut theirs) = UnixStream::pair().unwrap();
            theirs.write_all(daemon).unwrap();
            if is_reset {
                // By what it has not read.
                (&ours).write_all(b"x").unwrap();
            }
            drop(theirs);
            ask(ours.as_fd(), &REQUEST).map(drop)
        };
        for is_reset in [false, true] {
            assert_eq!(asked(&[Answer::Refused as u8], is_reset), Err(Error::Refused));
        }
        assert_eq!(asked(&[], false), Err(Error::Kernel(Errno::PIPE)));
    }
}
