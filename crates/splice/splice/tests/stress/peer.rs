//! The peer of a connection: sends its stream in pieces, and compares the bytes that it receives.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::rc::Rc;

use crate::peer_host::PeerHost;

/// A stream of bytes. Each peer sends a different one.
#[derive(Clone, Copy)]
pub(crate) struct ByteStream(pub(crate) u64);

impl ByteStream {
    pub(crate) fn byte(self, at: usize) -> u8 {
        (self.0 as usize * 37 + at * 7 + at / 251 + at / 65_521) as u8
    }

    pub(crate) fn bytes(self, from: usize, to: usize) -> Vec<u8> {
        (from..to).map(|at| self.byte(at)).collect()
    }
}

/// The peer of a connection.
pub(crate) struct StressPeer {
    stream: ByteStream,
    /// `None` after an abort.
    connection: Option<TcpStream>,
    pub(crate) sent: usize,
    left: usize,
    pub(crate) is_closed: bool,
    /// The expected prefix, before the stream `wanted`.
    prefix: Vec<u8>,
    wanted: ByteStream,
    pub(crate) got: usize,
    /// The other side closed.
    pub(crate) is_at_end: bool,
}

impl StressPeer {
    /// Returns a peer that sends `bytes` bytes and expects `prefix` and then `wanted`, and our end
    /// of the connection.
    pub(crate) fn new(
        host: &PeerHost,
        stream: ByteStream,
        bytes: usize,
        prefix: Vec<u8>,
        wanted: ByteStream,
    ) -> (Self, Rc<TcpStream>) {
        // This listener's connections have small buffers, so that a peer that does not read fills
        // them.
        let address = SocketAddr::new(host.address, 0);
        let listener = millrace_sys::listen_tcp(address, false).expect("a port is free");
        let address = millrace_sys::local_address(listener.as_fd()).expect("it is bound");
        let connection = host.connect(address.expect("it is TCP")).expect("it listens");
        // The peer's connect may return before the connection can be accepted.
        let listener = TcpListener::from(listener);
        listener.set_nonblocking(false).expect("it is open");
        let (ours, _) = listener.accept().expect("one was made");
        for end in [&connection, &ours] {
            end.set_nonblocking(true).expect("it is open");
            end.set_nodelay(true).expect("it is TCP");
        }
        let peer = Self {
            stream,
            connection: Some(connection),
            sent: 0,
            left: bytes,
            is_closed: false,
            prefix,
            wanted,
            got: 0,
            is_at_end: false,
        };
        (peer, Rc::new(ours))
    }

    pub(crate) fn is_aborted(&self) -> bool {
        self.connection.is_none()
    }

    pub(crate) fn has_sent_all(&self) -> bool {
        self.left == 0
    }

    pub(crate) fn stream(&self) -> ByteStream {
        self.stream
    }

    /// Returns the length of the expected prefix.
    pub(crate) fn prefix(&self) -> usize {
        self.prefix.len()
    }

    /// Sends up to `max` bytes, as far as there is room.
    pub(crate) fn send(&mut self, max: usize) {
        let Some(connection) = &mut self.connection else { return };
        let piece = self.stream.bytes(self.sent, self.sent + self.left.min(max));
        if self.is_closed || piece.is_empty() {
            return;
        }
        if let Ok(count) = connection.write(&piece) {
            self.sent += count;
            self.left -= count;
        }
    }

    /// Shuts down the write side.
    pub(crate) fn close(&mut self) {
        self.left = 0;
        self.is_closed = true;
        if let Some(connection) = &self.connection {
            // It fails if the other side has aborted.
            let _ = connection.shutdown(Shutdown::Write);
        }
    }

    /// Receives up to `max` bytes and compares them.
    pub(crate) fn receive(&mut self, max: usize) {
        let Some(connection) = &mut self.connection else { return };
        let mut bytes = vec![0; max];
        let count = match connection.read(&mut bytes) {
            Ok(count) => count,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return,
            Err(_) => 0,
        };
        self.is_at_end |= count == 0;
        for &byte in &bytes[..count] {
            let prefix = self.prefix.get(self.got).copied();
            let payload = || self.wanted.byte(self.got - self.prefix.len());
            assert_eq!(byte, prefix.unwrap_or_else(payload), "byte {}", self.got);
            self.got += 1;
        }
    }

    /// Resets the connection.
    pub(crate) fn abort(&mut self) {
        if let Some(connection) = self.connection.take() {
            millrace_sys::reset_on_close(connection.as_fd()).expect("it is a socket");
        }
    }
}
