//! The frames of a takeover over a Unix socket: a header of four bytes (kind, number of
//! descriptors, length of the text), then the text. Descriptors are sent with the header.

use std::io::{Error, ErrorKind, Result};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use millrace_sys::{DESCRIPTORS_PER_MESSAGE_MAX, Errno};

use crate::http::{self, Connection};

/// The kind of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum FrameKind {
    /// Listening sockets for clients.
    Clients = 1,
    /// Listening sockets for clients that a service manager owns.
    ClientsBorrowed = 2,
    /// Listening sockets of admin addresses.
    Admin = 3,
    /// Listening sockets of admin addresses that a service manager owns.
    AdminBorrowed = 4,
    /// The notification settings: the watchdog timeout in decimal microseconds, a space, and
    /// NOTIFY_SOCKET.
    NotifyConfig = 5,
    /// The end of the offer; the text is the decimal number of sockets.
    OfferEnd = 6,
    /// The new process listens.
    Ready = 7,
    /// The old process stops accepting; the new one owns everything.
    HandedOver = 8,
    /// The takeover fails; the text is the reason.
    Refused = 9,
    /// The keys of session tickets, so that clients resume their sessions.
    TicketKeys = 10,
}

impl FrameKind {
    const ALL: [Self; 10] = [
        Self::Clients,
        Self::ClientsBorrowed,
        Self::Admin,
        Self::AdminBorrowed,
        Self::NotifyConfig,
        Self::OfferEnd,
        Self::Ready,
        Self::HandedOver,
        Self::Refused,
        Self::TicketKeys,
    ];
}

/// A received frame.
#[derive(Debug)]
pub(crate) struct Frame {
    pub(crate) kind: FrameKind,
    pub(crate) text: Vec<u8>,
    pub(crate) descriptors: Vec<OwnedFd>,
}

const HEADER_BYTES: usize = 4;
/// The maximum length of a text.
const TEXT_BYTES_MAX: usize = 1024;

/// The connection between the two processes.
pub(crate) struct TakeoverChannel {
    stream: UnixStream,
    /// Descriptors received with a frame that is not complete yet.
    descriptors: Vec<OwnedFd>,
}

impl TakeoverChannel {
    pub(crate) fn new(stream: UnixStream) -> Self {
        Self { stream, descriptors: Vec::new() }
    }

    /// Takes over the connection of an admin request.
    ///
    /// # Errors
    /// If it is not a Unix socket, or if no descriptor is free.
    pub(crate) fn from_admin_connection(connection: &Connection) -> Result<Self> {
        match &**connection.socket() {
            http::Socket::Unix(stream) => Ok(Self::new(stream.try_clone()?)),
            http::Socket::Tcp(_) => Err(ErrorKind::Unsupported.into()),
        }
    }

    /// Returns the process at the other end.
    pub(crate) fn peer(&self) -> Option<millrace_sys::PeerCredentials> {
        millrace_sys::peer_credentials(self.stream.as_fd()).ok()
    }

    /// Sends a frame within `timeout`.
    ///
    /// # Errors
    /// If the other side is gone or does not read.
    pub(crate) fn send(
        &self,
        kind: FrameKind,
        text: &[u8],
        descriptors: &[BorrowedFd<'_>],
        timeout: Duration,
    ) -> Result<()> {
        assert!(text.len() <= TEXT_BYTES_MAX && descriptors.len() <= DESCRIPTORS_PER_MESSAGE_MAX);
        let [high, low] = (text.len() as u16).to_be_bytes();
        let bytes = [&[kind as u8, descriptors.len() as u8, high, low], text].concat();
        self.stream.set_write_timeout(Some(timeout))?;
        let sent = millrace_sys::send_with_descriptors(self.stream.as_fd(), &bytes, descriptors)?;
        // A frame is short, so the socket accepts it as a whole unless the peer does not read.
        if sent < bytes.len() { Err(ErrorKind::TimedOut.into()) } else { Ok(()) }
    }

    /// Receives the next frame within `timeout`; `None`: the other side closed the stream.
    ///
    /// # Errors
    /// If no frame arrives in time, or if it is malformed or unknown to this version.
    pub(crate) fn receive(&mut self, timeout: Duration) -> Result<Option<Frame>> {
        let deadline = Instant::now() + timeout;
        let mut head = [0; HEADER_BYTES];
        if !self.read_exact(&mut head, deadline)? {
            return Ok(None);
        }
        let [kind, count, high, low] = head;
        let (count, length) = (usize::from(count), usize::from(u16::from_be_bytes([high, low])));
        let wrong = |what| Error::new(ErrorKind::InvalidData, what);
        let kind = FrameKind::ALL.into_iter().find(|known| *known as u8 == kind);
        let kind = kind.ok_or_else(|| wrong("unknown frame kind"))?;
        if length > TEXT_BYTES_MAX || count > DESCRIPTORS_PER_MESSAGE_MAX {
            return Err(wrong("frame too long"));
        }
        let mut text = vec![0; length];
        if !self.read_exact(&mut text, deadline)? {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        // unix(7): descriptors arrive with the first byte of their frame, so none of a later frame
        // is here yet.
        if self.descriptors.len() != count {
            return Err(wrong("frame without its descriptors"));
        }
        Ok(Some(Frame { kind, text, descriptors: std::mem::take(&mut self.descriptors) }))
    }

    /// Waits until the other side closes the stream.
    pub(crate) fn wait_for_end(&mut self) {
        let _ = self.stream.set_read_timeout(None);
        let mut byte = [0];
        while let Ok(1..) = millrace_sys::receive_with_descriptors(
            self.stream.as_fd(),
            &mut byte,
            &mut self.descriptors,
        ) {}
    }

    /// Fills `bytes`. Returns false if the stream ended before the first byte. A reset counts as
    /// the end: a process that dies with unread frames resets the stream (unix(7)).
    fn read_exact(&mut self, bytes: &mut [u8], deadline: Instant) -> Result<bool> {
        let mut filled = 0;
        while filled < bytes.len() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(ErrorKind::TimedOut.into());
            }
            self.stream.set_read_timeout(Some(left))?;
            let room = &mut bytes[filled..];
            match millrace_sys::receive_with_descriptors(
                self.stream.as_fd(),
                room,
                &mut self.descriptors,
            ) {
                Ok(0) | Err(Errno::CONNRESET) if filled == 0 => return Ok(false),
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(count) => filled += count,
                Err(Errno::AGAIN) => return Err(ErrorKind::TimedOut.into()),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    const SECOND: Duration = Duration::from_secs(10);

    #[test]
    fn frames_arrive_with_their_descriptors() {
        let (here, there) = UnixStream::pair().unwrap();
        let (here, mut there) = (TakeoverChannel::new(here), TakeoverChannel::new(there));
        let (one, _) = UnixStream::pair().unwrap();
        let fds = vec![one.as_fd(); DESCRIPTORS_PER_MESSAGE_MAX];
        here.send(FrameKind::NotifyConfig, b"0 ", &[], SECOND).unwrap();
        here.send(FrameKind::Clients, b"", &fds, SECOND).unwrap();
        here.send(FrameKind::Admin, b"", &fds[..1], SECOND).unwrap();
        drop(here);
        let mut next = || there.receive(SECOND).unwrap();
        let (first, second, third) = (next().unwrap(), next().unwrap(), next().unwrap());
        assert_eq!((first.kind, first.text.as_slice()), (FrameKind::NotifyConfig, &b"0 "[..]));
        assert_eq!((second.kind, second.descriptors.len()), (FrameKind::Clients, fds.len()));
        assert_eq!((third.kind, third.descriptors.len()), (FrameKind::Admin, 1));
        assert!(next().is_none());
    }

    #[test]
    fn a_process_that_dies_with_unread_frames_has_ended() {
        let (here, there) = UnixStream::pair().unwrap();
        let mut here = TakeoverChannel::new(here);
        here.send(FrameKind::Ready, b"", &[], SECOND).unwrap();
        drop(there);
        assert!(here.receive(SECOND).unwrap().is_none());
        let error = here.send(FrameKind::Ready, b"", &[], SECOND).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BrokenPipe);
    }

    #[test]
    fn malformed_frames_are_refused() {
        for bytes in [&b"\x00\x00\x00\x00"[..], b"\x01\x00\xff\xff", b"\x01\x01\x00\x00", b"\x07"] {
            let (mut here, there) = UnixStream::pair().unwrap();
            here.write_all(bytes).unwrap();
            drop(here);
            assert!(TakeoverChannel::new(there).receive(SECOND).is_err(), "{bytes:?}");
        }
        let (_here, there) = UnixStream::pair().unwrap();
        let error = TakeoverChannel::new(there).receive(Duration::from_millis(1)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut);
    }
}
