//! A body that is moved by read and write.

use std::io::{self, Read, Write};
use std::net::TcpStream;

/// Where a body is.
pub(crate) struct Copied {
    /// Bytes that are still to be received.
    pub(crate) rest: u64,
    /// Whether it is stored.
    pub(crate) is_public: bool,
    /// Bytes that were received and not sent yet.
    unsent: Vec<u8>,
}

impl Copied {
    /// A body of which so many bytes are still to come.
    pub(crate) fn new(rest: u64, is_public: bool) -> Self {
        Self { rest, is_public, unsent: Vec::new() }
    }

    /// Receives what has come, no more than is left; `None` if nothing has.
    ///
    /// # Errors
    /// Those of recv(2); an end before that of the body.
    pub(crate) fn receive(
        &mut self,
        from: &TcpStream,
        room: &mut [u8],
    ) -> io::Result<Option<usize>> {
        let most = room.len().min(usize::try_from(self.rest).unwrap_or(usize::MAX));
        let count = match (&*from).read(&mut room[..most]) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
            Err(error) => return Err(error),
        };
        self.rest -= count as u64;
        Ok(Some(count))
    }

    /// Sends, behind nothing that is unsent, and keeps what has no room.
    ///
    /// # Errors
    /// Those of send(2).
    pub(crate) fn send(&mut self, into: &TcpStream, bytes: &[u8]) -> io::Result<()> {
        self.unsent.clear();
        let sent = sent(into, bytes)?;
        self.unsent.extend_from_slice(&bytes[sent..]);
        Ok(())
    }

    /// Sends what is unsent; whether that was all.
    ///
    /// # Errors
    /// Those of send(2).
    pub(crate) fn flush(&mut self, into: &TcpStream) -> io::Result<bool> {
        if !self.unsent.is_empty() {
            let sent = sent(into, &self.unsent)?;
            self.unsent.drain(..sent);
        }
        Ok(self.unsent.is_empty())
    }
}

/// Bytes that a connection took, 0 if it has no room.
fn sent(mut into: &TcpStream, bytes: &[u8]) -> io::Result<usize> {
    match into.write(bytes) {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(0),
        other => other,
    }
}
