//! A body that is moved by read and write.

use std::io::{self, Read, Write};
use std::net::TcpStream;

/// The progress of a copied body.
pub(crate) struct Copied {
    /// Bytes left to receive.
    pub(crate) rest: u64,
    /// Whether the body is stored.
    pub(crate) is_public: bool,
    /// Bytes received and not sent yet.
    unsent: Vec<u8>,
}

impl Copied {
    /// Creates the state for a body with `rest` bytes left.
    pub(crate) fn new(rest: u64, is_public: bool) -> Self {
        Self { rest, is_public, unsent: Vec::new() }
    }

    /// Receives bytes of the body; `None` if none have arrived.
    ///
    /// # Errors
    /// Those of recv(2); an early end of the stream.
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

    /// Sends bytes, and keeps those for which there is no room. No earlier bytes may be unsent.
    ///
    /// # Errors
    /// Those of send(2).
    pub(crate) fn send(&mut self, into: &TcpStream, bytes: &[u8]) -> io::Result<()> {
        self.unsent.clear();
        let sent = send_some(into, bytes)?;
        self.unsent.extend_from_slice(&bytes[sent..]);
        Ok(())
    }

    /// Sends unsent bytes. Returns whether none are left.
    ///
    /// # Errors
    /// Those of send(2).
    pub(crate) fn flush(&mut self, into: &TcpStream) -> io::Result<bool> {
        if !self.unsent.is_empty() {
            let sent = send_some(into, &self.unsent)?;
            self.unsent.drain(..sent);
        }
        Ok(self.unsent.is_empty())
    }
}

/// Sends bytes and returns how many were taken; 0 if there is no room.
fn send_some(mut into: &TcpStream, bytes: &[u8]) -> io::Result<usize> {
    match into.write(bytes) {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(0),
        other => other,
    }
}
