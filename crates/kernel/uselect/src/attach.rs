//! Asking the daemon for this process's memory.
//!
//! The process sends [`REQUEST`]; the daemon sends one byte, an [`Answer`], and with a granted one
//! three descriptors: `Shown`, `Own` and the ring. The connection stays open: its end, or the
//! process's, is the end of the registration.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use crate::error::Error;
use crate::kernel::{connect, receive, send};
use crate::pages::Pages;

/// Where the daemon listens unless told otherwise.
pub const SOCKET: &str = "/run/uselectd.sock";
/// What a process asks with; the last byte is the version of the layout.
pub const REQUEST: [u8; 8] = *b"uselect\x01";
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

/// A registration: memory, and the connection that keeps it.
pub(crate) fn attach(path: &Path) -> Result<(Pages, OwnedFd), Error> {
    let connection = connect(path).map_err(Error::NoDaemon)?;
    let sent = send(connection.as_fd(), &REQUEST)?;
    if sent != REQUEST.len() {
        return Err(Error::Protocol);
    }
    let (mut answer, mut descriptors) = ([0], Vec::with_capacity(DESCRIPTORS));
    let received = receive::<DESCRIPTORS>(connection.as_fd(), &mut answer, &mut descriptors)?;
    if received != answer.len() {
        return Err(Error::Protocol);
    }
    match Answer::of(answer[0]) {
        Some(Answer::Granted) => {
            let [shown, own, ring]: [OwnedFd; DESCRIPTORS] =
                descriptors.try_into().map_err(|_| Error::Protocol)?;
            Ok((Pages::new(shown.as_fd(), own.as_fd(), ring)?, connection))
        }
        Some(Answer::Refused) => Err(Error::Refused),
        Some(Answer::Full) => Err(Error::Full),
        Some(Answer::Registered) => Err(Error::Registered),
        Some(Answer::OtherNamespace) => Err(Error::OtherNamespace),
        Some(Answer::Failed) => Err(Error::Daemon),
        Some(Answer::Version) | None => Err(Error::Protocol),
    }
}
