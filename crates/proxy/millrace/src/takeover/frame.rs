//! The words of a takeover over a Unix socket: a head of four bytes (kind, number of descriptors,
//! length of the text), then the text; descriptors go with the head.

use std::io::{Error, ErrorKind, Result};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use millrace_sys::{DESCRIPTORS_PER_MESSAGE_MAX, Errno};

use crate::http::{self, Connection};

/// What a word says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum FrameKind {
    /// Listening sockets for clients.
    Clients = 1,
    /// The same, that a service manager keeps open.
    ClientsBorrowed = 2,
    /// Listening sockets of admin addresses.
    Admin = 3,
    /// The same, that a service manager keeps open.
    AdminBorrowed = 4,
    /// How the service manager is notified: a decimal watchdog time in microseconds, a space, and
    /// NOTIFY_SOCKET.
    NotifyConfig = 5,
    /// That was all; the text is the decimal number of sockets.
    OfferEnd = 6,
    /// The new process listens.
    Ready = 7,
    /// The old process accepts no more.
    HandedOver = 8,
    /// It comes to nothing; the text says why.
    Refused = 9,
}

impl FrameKind {
    const ALL: [Self; 9] = [
        Self::Clients,
        Self::ClientsBorrowed,
        Self::Admin,
        Self::AdminBorrowed,
        Self::NotifyConfig,
        Self::OfferEnd,
        Self::Ready,
        Self::HandedOver,
        Self::Refused,
    ];
}

/// A word that came.
#[derive(Debug)]
pub(crate) struct Frame {
    pub(crate) kind: FrameKind,
    pub(crate) text: Vec<u8>,
    pub(crate) descriptors: Vec<OwnedFd>,
}

const HEADER_BYTES: usize = 4;
/// The longest text.
const TEXT_BYTES_MAX: usize = 1024;

/// The connection between the two processes.
pub(crate) struct TakeoverChannel {
    stream: UnixStream,
    /// Descriptors that came, whose frame was not read to its end.
    descriptors: Vec<OwnedFd>,
}

impl TakeoverChannel {
    pub(crate) fn new(stream: UnixStream) -> Self {
        Self { stream, descriptors: Vec::new() }
    }

    /// Goes on over the connection of an admin request, which has to be a Unix socket's.
    ///
    /// # Errors
    /// When it is not, or there is no descriptor for it.
    pub(crate) fn from_admin_connection(connection: &Connection) -> Result<Self> {
        match &**connection.socket() {
            http::Socket::Unix(stream) => Ok(Self::new(stream.try_clone()?)),
            http::Socket::Tcp(_) => Err(ErrorKind::Unsupported.into()),
        }
    }

    /// Who is at the other end.
    pub(crate) fn peer(&self) -> Option<millrace_sys::PeerCredentials> {
        millrace_sys::peer_credentials(self.stream.as_fd()).ok()
    }

    /// Says a word, within `patience`.
    ///
    /// # Errors
    /// When the other side is gone or does not listen.
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
        // A stream takes that little as a whole, or it is stuck.
        if sent < bytes.len() { Err(ErrorKind::TimedOut.into()) } else { Ok(()) }
    }

    /// The next word, within `patience`; `None`: the other side has ended.
    ///
    /// # Errors
    /// When it does not come in time, or is nothing that this version says.
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
        let kind = kind.ok_or_else(|| wrong("an unknown word"))?;
        if length > TEXT_BYTES_MAX || count > DESCRIPTORS_PER_MESSAGE_MAX {
            return Err(wrong("too long a word"));
        }
        let mut text = vec![0; length];
        if !self.read_exact(&mut text, deadline)? {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        // They come with the first byte of their frame: none of a later one is here before it.
        if self.descriptors.len() != count {
            return Err(wrong("a word without its descriptors"));
        }
        Ok(Some(Frame { kind, text, descriptors: std::mem::take(&mut self.descriptors) }))
    }

    /// Waits until the other side has ended.
    pub(crate) fn wait_for_end(&mut self) {
        let _ = self.stream.set_read_timeout(None);
        let mut byte = [0];
        while let Ok(1..) = millrace_sys::receive_with_descriptors(
            self.stream.as_fd(),
            &mut byte,
            &mut self.descriptors,
        ) {}
    }

    /// Reads all of `bytes`. False: the stream ended before the first, or was reset there, which is
    /// how one ends that has died with words of ours unread (unix(7)).
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
    fn words_arrive_with_their_descriptors() {
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
    fn whoever_dies_with_unread_words_has_ended() {
        let (here, there) = UnixStream::pair().unwrap();
        let mut here = TakeoverChannel::new(here);
        here.send(FrameKind::Ready, b"", &[], SECOND).unwrap();
        drop(there);
        assert!(here.receive(SECOND).unwrap().is_none());
        let told = here.send(FrameKind::Ready, b"", &[], SECOND).unwrap_err();
        assert_eq!(told.kind(), ErrorKind::BrokenPipe);
    }

    #[test]
    fn what_is_no_word_is_refused() {
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
