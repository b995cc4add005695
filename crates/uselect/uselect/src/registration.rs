//! The protocol by which a process registers with the daemon and gets its shared memory.
//!
//! The daemon sends [`RegistrationReply::Challenge`] and [`CHALLENGE_BYTES`] random bytes. The
//! process that connected, and no other process, sends [`REQUEST_MAGIC`], one byte with its
//! [`TrackingMode`], and the random bytes. The daemon sends one byte, a [`RegistrationReply`], and
//! with [`RegistrationReply::Granted`] three descriptors: `ReadOnlyPages`, `WritablePages`, and the
//! ring of sleeper 0. For each further sleeper, in order, the process sends [`RING_REQUEST`], and
//! receives a reply and a ring before it sends the next request. A process that the daemon does not
//! serve receives a refusal in place of the challenge. The registration ends when the connection or
//! the process ends.
//!
//! The daemon begins to watch the process for execve(2) before it sends the random bytes. It
//! registers the process only if no execve(2) has followed. The random bytes prove that the request
//! was sent after the watch began.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use crate::error::Error;
use crate::kernel::{Errno, connect, receive, send};
use crate::limits::REPLY_TIME_MAX;
use crate::pages::{SharedPages, WakeRing};

/// The default socket of the daemon.
pub const DEFAULT_SOCKET: &str = "/run/uselectd.sock";
/// The start of a request. The last byte is the version of the layout.
pub const REQUEST_MAGIC: [u8; 8] = *b"uselect\x04";
/// The length of a challenge, which the request repeats.
pub const CHALLENGE_BYTES: usize = 8;
/// The request for another ring.
pub const RING_REQUEST: u8 = b'+';
/// The number of descriptors that come with [`RegistrationReply::Granted`].
pub const REPLY_DESCRIPTORS: usize = 3;

/// A reply of the daemon, as it is on the wire.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum RegistrationReply {
    /// The request is granted; the descriptors come with this reply.
    Granted = 0,
    /// The policy does not allow this user.
    Refused = 1,
    /// The limit of processes is reached, in total or for this user.
    Full = 2,
    /// The process is registered already.
    AlreadyRegistered = 3,
    /// The process is in another pid namespace than the daemon.
    OtherNamespace = 4,
    /// The kernel refused, or the daemon failed otherwise; its log has the reason.
    Failed = 5,
    /// The request has another version.
    Version = 6,
    /// The process may send its request.
    Challenge = 7,
}

/// Which side clears the readiness bits of a socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum TrackingMode {
    /// The kernel clears them: an eBPF program runs whenever the process receives or sends. Memory
    /// shows what poll(2) would return.
    Exact = 0,
    /// The process clears them. The kernel only sets them, so no eBPF program runs when the process
    /// receives or sends. A [`crate::Watcher`] clears the bits that it reports with EPOLLET, so the
    /// caller only has to read until nothing is left, and to call
    /// [`crate::Watcher::report_short_send`] after a short send. A caller that waits in another way
    /// must use [`crate::TrackedSocket::receive`] and [`crate::TrackedSocket::send`], or call the
    /// functions of [`crate::Tracker`] that these two call, around its own system calls.
    Lean = 1,
}

/// Registers, and returns the shared memory, the ring of sleeper 0, and the connection that keeps
/// the registration.
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
        // The backlog of the daemon's socket is full.
        Errno::AGAIN => Error::NoReply,
        error => Error::NoDaemon(error),
    })?;
    let challenge = receive_challenge(connection.as_fd(), time)?;
    send_request(connection.as_fd(), mode, challenge)?;
    let descriptors = receive_reply(connection.as_fd(), time)?;
    let [read_only, writable, ring]: [OwnedFd; REPLY_DESCRIPTORS] =
        descriptors.try_into().map_err(|_| Error::Protocol)?;
    Ok((SharedPages::new(read_only.as_fd(), writable.as_fd())?, WakeRing::new(ring)?, connection))
}

/// Receives the challenge, or the error that the daemon sends in its place.
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
        [reply, challenge @ ..] if reply == RegistrationReply::Challenge as u8 => {
            (count == message.len()).then_some(challenge).ok_or(Error::Protocol)
        }
        [reply, ..] => Err(refusal_error(reply)),
    }
}

/// Sends the request for a registration.
fn send_request(
    connection: BorrowedFd<'_>,
    mode: TrackingMode,
    challenge: [u8; CHALLENGE_BYTES],
) -> Result<(), Error> {
    let mut request = [mode as u8; REQUEST_MAGIC.len() + 1 + CHALLENGE_BYTES];
    request[..REQUEST_MAGIC.len()].copy_from_slice(&REQUEST_MAGIC);
    request[REQUEST_MAGIC.len() + 1..].copy_from_slice(&challenge);
    match send(connection, &request) {
        // The daemon may have closed the connection. A reply that it sent before can still be read.
        Ok(_) | Err(Errno::PIPE | Errno::CONNRESET) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Sends the request for the ring of the next sleeper.
pub(crate) fn request_ring(connection: BorrowedFd<'_>) -> Result<(), Error> {
    send(connection, &[RING_REQUEST])?;
    Ok(())
}

/// Receives the ring of the next sleeper. Returns `None` if the daemon sent it, but the process has
/// no free descriptor or address space for it. After [`Error::NoReply`] the reply may still arrive.
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
    let (mut reply, mut descriptors) = ([0], Vec::with_capacity(REPLY_DESCRIPTORS));
    match receive::<REPLY_DESCRIPTORS>(connection, &mut reply, &mut descriptors, time) {
        Ok(1) => {}
        Ok(_) | Err(Errno::AGAIN | Errno::CONNRESET) => return Err(Error::NoReply),
        Err(error) => return Err(error.into()),
    }
    match reply {
        [reply] if reply == RegistrationReply::Granted as u8 => Ok(descriptors),
        [reply] => Err(refusal_error(reply)),
    }
}

/// Returns the error for a reply that is neither `Granted` nor `Challenge`.
fn refusal_error(reply: u8) -> Error {
    let refusals = [
        (RegistrationReply::Refused, Error::Refused),
        (RegistrationReply::Full, Error::Full),
        (RegistrationReply::AlreadyRegistered, Error::AlreadyRegistered),
        (RegistrationReply::OtherNamespace, Error::OtherNamespace),
        (RegistrationReply::Failed, Error::Daemon),
    ];
    let found = refusals.into_iter().find(|(refusal, _)| *refusal as u8 == reply);
    found.map_or(Error::Protocol, |(_, error)| error)
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::fd::AsRawFd;
    use std::os::unix::net::{UnixListener, UnixStream};

    use super::*;

    #[test]
    fn a_silent_daemon_is_given_up() {
        let path = std::env::temp_dir().join(format!("uselect-silent-{}", std::process::id()));
        let listener = UnixListener::bind(&path).unwrap();
        let register =
            || register_within(&path, TrackingMode::Exact, Duration::from_millis(20)).map(drop);
        assert_eq!(register(), Err(Error::NoReply));
        // A full backlog has the same result. SAFETY: listen(2) takes two numbers.
        assert_eq!(unsafe { libc::listen(listener.as_fd().as_raw_fd(), 0) }, 0);
        assert_eq!(register(), Err(Error::NoReply));
        std::fs::remove_file(&path).unwrap();
        drop(listener);
        assert_eq!(register(), Err(Error::NoDaemon(Errno::NOENT)));
    }

    #[test]
    fn a_reply_before_a_failed_request_is_received() {
        let register_result = |sent: &[u8], is_reset: bool| {
            let (ours, mut daemon) = UnixStream::pair().unwrap();
            daemon.write_all(sent).unwrap();
            if is_reset {
                // Unread bytes make the close a reset.
                (&ours).write_all(b"x").unwrap();
            }
            drop(daemon);
            let time = Duration::from_secs(10);
            let challenge = receive_challenge(ours.as_fd(), time)?;
            send_request(ours.as_fd(), TrackingMode::Exact, challenge)?;
            receive_reply(ours.as_fd(), time).map(drop)
        };
        for is_reset in [false, true] {
            assert_eq!(
                register_result(&[RegistrationReply::Refused as u8], is_reset),
                Err(Error::Refused)
            );
            assert_eq!(register_result(&[], is_reset), Err(Error::NoReply));
            let challenge =
                [[RegistrationReply::Challenge as u8; 9], [RegistrationReply::Refused as u8; 9]]
                    .concat();
            assert_eq!(register_result(&challenge[..10], is_reset), Err(Error::Refused));
            assert_eq!(register_result(&challenge[..9], is_reset), Err(Error::NoReply));
            assert_eq!(register_result(&challenge[..8], is_reset), Err(Error::Protocol));
        }
    }
}
