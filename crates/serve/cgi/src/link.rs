//! The socket of a connection of millrace, with the bytes that wait on it.

use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use millrace_fastcgi::{CONTENT_BYTES_MAX, OutputStream, write_output_header};
use millrace_sys::{Errno, Interest, LevelSet, PollSet};

use crate::limits::READ_BYTES_MAX;

/// millrace has closed the connection, or has sent no request. Nothing more can be sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Closed;

/// A connected socket with the bytes that wait on it.
#[derive(Debug)]
pub(crate) struct Link {
    socket: OwnedFd,
    /// Received bytes that were not consumed.
    pub(crate) received: Vec<u8>,
    /// Bytes to send.
    pub(crate) unsent: Vec<u8>,
    poll: PollSet,
}

/// The number of the socket among the descriptors of a wait. Those of the caller are other ones.
const SOCKET: u64 = 0;

impl Link {
    /// Takes a connected socket, which does not wait.
    pub(crate) fn new(socket: OwnedFd) -> Self {
        Self { socket, received: Vec::new(), unsent: Vec::new(), poll: PollSet::default() }
    }

    /// Appends a record with output of a program.
    pub(crate) fn push(&mut self, stream: OutputStream, bytes: &[u8]) {
        for content in bytes.chunks(CONTENT_BYTES_MAX) {
            self.unsent.extend_from_slice(&write_output_header(stream, content.len()));
            self.unsent.extend_from_slice(content);
        }
    }

    /// Waits until the connection or a descriptor of `others` is ready, or the time is over. Then
    /// receives and sends what is possible. Returns the numbers of the descriptors that are ready.
    pub(crate) fn wait(
        &mut self,
        others: &[Interest<'_>],
        end: Option<Instant>,
    ) -> Result<Vec<u64>, Closed> {
        let own = Interest {
            fd: self.socket.as_fd(),
            data: SOCKET,
            readable: self.received.len() < READ_BYTES_MAX,
            writable: !self.unsent.is_empty(),
        };
        let left = end.map(|end| end.saturating_duration_since(Instant::now()));
        // Rounds up, so that the time is over when the wait is.
        let left = left.map(|left| left + Duration::from_millis(1));
        let interests = std::iter::once(own).chain(others.iter().copied());
        match self.poll.wait(interests, left) {
            Ok(()) => {}
            Err(Errno::INTR) => return Ok(Vec::new()),
            Err(_) => return Err(Closed),
        }
        let (mut ready, mut is_own_ready) = (Vec::new(), false);
        while let Some((data, readiness)) = self.poll.next_ready() {
            match data {
                // The end of a full buffer of received bytes is seen only by this.
                SOCKET if readiness.is_hung_up() && self.received.len() >= READ_BYTES_MAX => {
                    return Err(Closed);
                }
                SOCKET => is_own_ready = true,
                data => ready.push(data),
            }
        }
        if is_own_ready {
            self.receive()?;
            self.send()?;
        }
        Ok(ready)
    }

    fn receive(&mut self) -> Result<(), Closed> {
        let length = self.received.len();
        if length >= READ_BYTES_MAX {
            return Ok(());
        }
        self.received.resize(READ_BYTES_MAX, 0);
        let received = millrace_sys::receive(self.socket.as_fd(), &mut self.received[length..]);
        let count = received.unwrap_or_default();
        self.received.truncate(length + count);
        match received {
            Ok(0) => Err(Closed),
            Ok(_) | Err(Errno::AGAIN) => Ok(()),
            Err(_) => Err(Closed),
        }
    }

    fn send(&mut self) -> Result<(), Closed> {
        if self.unsent.is_empty() {
            return Ok(());
        }
        match millrace_sys::send(self.socket.as_fd(), &[&self.unsent], false) {
            Ok(count) => {
                self.unsent.drain(..count);
                Ok(())
            }
            Err(Errno::AGAIN) => Ok(()),
            Err(_) => Err(Closed),
        }
    }
}
