//! Asking the daemon for this process's memory.
//!
//! The daemon sends one byte, [`Answer::Challenge`], and [`CHALLENGE_BYTES`] random ones. The
//! process that has connected, and no other one, sends [`REQUEST`], one byte more, its [`Mode`], and
//! those random bytes; the daemon sends one byte, an [`Answer`], and with a granted one three
//! descriptors: `Shown`, `Own`, and the ring of sleeper 0. For each further sleeper, in order, the
//! process sends [`SLEEPER`] and gets an answer and a ring, which it takes before it asks again.
//! Whom the daemon will not have gets its answer instead of the challenge. The connection stays
//! open: its end, or the process's, is the end of the registration.
//!
//! The random bytes show that the request was made after the daemon began to watch the process for
//! execve(2): a process that has executed another program since then is not registered.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use crate::error::Error;
use crate::kernel::{Errno, connect, receive, send};
use crate::limits::REPLY_TIME_MAX;
use crate::pages::{SharedPages, WakeRing};

/// Where the daemon listens unless told otherwise.
pub const DEFAULT_SOCKET: &str = "/run/uselectd.sock";
/// What a process asks with; the last byte is the version of the layout.
pub const REQUEST_MAGIC: [u8; 8] = *b"uselect\x04";
/// Random bytes of a challenge, which the request ends with.
pub const CHALLENGE_BYTES: usize = 8;
/// What it asks for another ring with.
pub const RING_REQUEST: u8 = b'+';
/// Descriptors that come with [`Answer::Granted`].
pub const REPLY_DESCRIPTORS: usize = 3;

/// The daemon's answer, as it is on the wire.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum RegistrationReply {
    /// The descriptors are with it.
    Granted = 0,
    /// The policy does not have this user.
    Refused = 1,
    /// No room, in all or for this user.
    Full = 2,
    /// The process is registered already.
    AlreadyRegistered = 3,
    /// The process is of another pid namespace.
    OtherNamespace = 4,
    /// The kernel would not, or something else that the daemon's log tells.
    Failed = 5,
    /// The request is of another version.
    Version = 6,
    /// The process may send its request.
    Challenge = 7,
}

/// Who clears a bit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum TrackingMode {
    /// The kernel, whenever the process has received or sent: memory says what poll(2) says.
    Exact = 0,
    /// The process: the kernel only tells what has happened, which saves its programs at each
    /// receive and send. For who reads until nothing is left, and waits for changes; otherwise
    /// sockets are read and written by [`crate::Socket::receive`] and [`crate::Socket::send`].
    Lean = 1,
}

/// A registration: memory, the ring of sleeper 0, and the connection that keeps it.
pub(crate) fn register(
    path: &Path,
    mode: TrackingMode,
) -> Result<(SharedPages, WakeRing, OwnedFd), Error> {
    register_within(path, mode, REPLY_TIME_MAX)
}

fn register_within(
    path: &Path,
    mode: TrackingMode,
    time: Duration,
) -> Result<(SharedPages, WakeRing, OwnedFd), Error> {
    let connection = connect(path, time).map_err(|error| match error {
        // As many as may wait to be met.
        Errno::AGAIN => Error::NoReply,
        error => Error::NoDaemon(error),
    })?;
    let challenge = receive_challenge(connection.as_fd(), time)?;
    send_request(connection.as_fd(), mode, challenge)?;
    let descriptors = receive_reply(connection.as_fd(), time)?;
    let [shown, own, ring]: [OwnedFd; REPLY_DESCRIPTORS] =
        descriptors.try_into().map_err(|_| Error::Protocol)?;
    Ok((SharedPages::new(shown.as_fd(), own.as_fd())?, WakeRing::new(ring)?, connection))
}

/// Takes the challenge, or why there is none.
fn receive_challenge(
    connection: BorrowedFd<'_>,
    time: Duration,
) -> Result<[u8; CHALLENGE_BYTES], Error> {
    let mut message = [0; 1 + CHALLENGE_BYTES];
    let count = match receive::<0>(connection, &mut message, &mut Vec::new(), time) {
        Ok(0) | Err(Errno::AGAIN | Errno::CONNRESET) => return Err(Error::NoReply),
        result => result?,
    };
    match message {
        [answer, challenge @ ..] if answer == RegistrationReply::Challenge as u8 => {
            (count == message.len()).then_some(challenge).ok_or(Error::Protocol)
        }
        [answer, ..] => Err(refusal_error(answer)),
    }
}

/// Asks for a registration.
fn send_request(
    connection: BorrowedFd<'_>,
    mode: TrackingMode,
    challenge: [u8; CHALLENGE_BYTES],
) -> Result<(), Error> {
    let mut request = [mode as u8; REQUEST_MAGIC.len() + 1 + CHALLENGE_BYTES];
    request[..REQUEST_MAGIC.len()].copy_from_slice(&REQUEST_MAGIC);
    request[REQUEST_MAGIC.len() + 1..].copy_from_slice(&challenge);
    match send(connection, &request) {
        // The connection may be closed, and what was answered can be read still.
        Ok(_) | Err(Errno::PIPE | Errno::CONNRESET) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Asks for the ring of the next sleeper.
pub(crate) fn request_ring(connection: BorrowedFd<'_>) -> Result<(), Error> {
    send(connection, &[RING_REQUEST])?;
    Ok(())
}

/// That ring; `None` if it was given, and there was no room for its descriptor or its pages.
/// [`Error::NoAnswer`]: it may still come.
pub(crate) fn receive_ring(
    connection: BorrowedFd<'_>,
    time: Duration,
) -> Result<Option<WakeRing>, Error> {
    match receive_reply(connection, time) {
        Ok(descriptors) => {
            let [ring]: [OwnedFd; 1] = descriptors.try_into().map_err(|_| Error::Protocol)?;
            Ok(WakeRing::new(ring).ok())
        }
        Err(Error::Kernel(Errno::MFILE)) => Ok(None),
        Err(error) => Err(error),
    }
}

fn receive_reply(connection: BorrowedFd<'_>, time: Duration) -> Result<Vec<OwnedFd>, Error> {
    let (mut answer, mut descriptors) = ([0], Vec::with_capacity(REPLY_DESCRIPTORS));
    match receive::<REPLY_DESCRIPTORS>(connection, &mut answer, &mut descriptors, time) {
        Ok(1) => {}
        Ok(_) | Err(Errno::AGAIN | Errno::CONNRESET) => return Err(Error::NoReply),
        Err(error) => return Err(error.into()),
    }
    match answer {
        [answer] if answer == RegistrationReply::Granted as u8 => Ok(descriptors),
        [answer] => Err(refusal_error(answer)),
    }
}

/// What an answer means that is neither granted nor a challenge.
fn refusal_error(answer: u8) -> Error {
    let refusals = [
        (RegistrationReply::Refused, Error::Refused),
        (RegistrationReply::Full, Error::Full),
        (RegistrationReply::AlreadyRegistered, Error::AlreadyRegistered),
        (RegistrationReply::OtherNamespace, Error::OtherNamespace),
        (RegistrationReply::Failed, Error::Daemon),
    ];
    let found = refusals.into_iter().find(|(refusal, _)| *refusal as u8 == answer);
    found.map_or(Error::Protocol, |(_, error)| error)
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::fd::AsRawFd;
    use std::os::unix::net::{UnixListener, UnixStream};

    use super::*;

    #[test]
    fn a_daemon_that_does_nothing_is_not_waited_for() {
        let path = std::env::temp_dir().join(format!("uselect-silent-{}", std::process::id()));
        let listener = UnixListener::bind(&path).unwrap();
        let register =
            || register_within(&path, TrackingMode::Exact, Duration::from_millis(20)).map(drop);
        assert_eq!(register(), Err(Error::NoReply));
        // Nor where no more may wait to be met.
        // SAFETY: it takes nothing but numbers.
        assert_eq!(unsafe { libc::listen(listener.as_fd().as_raw_fd(), 0) }, 0);
        assert_eq!(register(), Err(Error::NoReply));
        std::fs::remove_file(&path).unwrap();
        drop(listener);
        assert_eq!(register(), Err(Error::NoDaemon(Errno::NOENT)));
    }

    #[test]
    fn what_was_answered_before_a_question_that_failed_is_taken() {
        let told = |said: &[u8], is_reset: bool| {
            let (ours, mut daemon) = UnixStream::pair().unwrap();
            daemon.write_all(said).unwrap();
            if is_reset {
                // By what it has not read.
                (&ours).write_all(b"x").unwrap();
            }
            drop(daemon);
            let time = Duration::from_secs(10);
            let challenge = receive_challenge(ours.as_fd(), time)?;
            send_request(ours.as_fd(), TrackingMode::Exact, challenge)?;
            receive_reply(ours.as_fd(), time).map(drop)
        };
        for is_reset in [false, true] {
            assert_eq!(told(&[RegistrationReply::Refused as u8], is_reset), Err(Error::Refused));
            assert_eq!(told(&[], is_reset), Err(Error::NoReply));
            let challenge =
                [[RegistrationReply::Challenge as u8; 9], [RegistrationReply::Refused as u8; 9]]
                    .concat();
            assert_eq!(told(&challenge[..10], is_reset), Err(Error::Refused));
            assert_eq!(told(&challenge[..9], is_reset), Err(Error::NoReply));
            assert_eq!(told(&challenge[..8], is_reset), Err(Error::Protocol));
        }
    }
}
