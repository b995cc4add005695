//! TLS over a socket that does not block: `Link` opens records where they were received, and seals
//! what it sends into a buffer that all links share.

use std::io::{self, Read, Write};
use std::net::TcpStream;

use rustls::client::{ClientConnectionData, UnbufferedClientConnection};
use rustls::server::{ServerConnectionData, UnbufferedServerConnection};
use rustls::unbuffered::{
    ConnectionState, EncodeError, EncryptError, UnbufferedStatus, WriteTraffic,
};
use rustls::{CommonState, HandshakeKind};

/// Bytes of one receive.
const RECEIVE: usize = 256 << 10;
/// Bytes of a record at most, with its header.
const RECORD_MAX: usize = (16 << 10) + 256 + 5;
/// Bytes that one `send` takes at most.
pub const SEND_MAX: usize = 64 << 10;
/// Bytes that sealing adds to `SEND_MAX`: 22 for each record, and an alert.
const SEALING: usize = 1024;

/// A session of rustls in either role.
pub trait Session {
    type Data;

    /// Processes received records until the session needs something.
    fn process<'c, 'i>(&'c mut self, bytes: &'i mut [u8]) -> UnbufferedStatus<'c, 'i, Self::Data>;

    /// Returns the state that both roles have in common.
    fn common(&self) -> &CommonState;
}

impl Session for UnbufferedClientConnection {
    type Data = ClientConnectionData;

    fn process<'c, 'i>(&'c mut self, bytes: &'i mut [u8]) -> UnbufferedStatus<'c, 'i, Self::Data> {
        self.process_tls_records(bytes)
    }

    fn common(&self) -> &CommonState {
        self
    }
}

impl Session for UnbufferedServerConnection {
    type Data = ServerConnectionData;

    fn process<'c, 'i>(&'c mut self, bytes: &'i mut [u8]) -> UnbufferedStatus<'c, 'i, Self::Data> {
        self.process_tls_records(bytes)
    }

    fn common(&self) -> &CommonState {
        self
    }
}

/// The buffers that all links of a program share.
pub struct Buffers {
    input: Vec<u8>,
    output: Output,
}

impl Default for Buffers {
    fn default() -> Self {
        let output = Output { bytes: vec![0; SEND_MAX + SEALING + RECORD_MAX], filled: 0 };
        Self { input: vec![0; RECORD_MAX + RECEIVE], output }
    }
}

/// Sealed bytes: 0 <= filled <= bytes.len().
struct Output {
    bytes: Vec<u8>,
    filled: usize,
}

impl Output {
    /// Returns at least this many free bytes.
    fn free(&mut self, least: usize) -> &mut [u8] {
        if self.bytes.len() < self.filled + least {
            self.bytes.resize(self.filled + least, 0);
        }
        &mut self.bytes[self.filled..]
    }

    fn seal<D>(&mut self, state: &mut WriteTraffic<'_, D>, plain: &[u8]) -> io::Result<()> {
        self.filled += match state.encrypt(plain, self.free(0)) {
            Ok(bytes) => bytes,
            Err(EncryptError::InsufficientSize(error)) => {
                let free = self.free(error.required_size);
                state.encrypt(plain, free).map_err(io::Error::other)?
            }
            Err(error) => return Err(io::Error::other(error)),
        };
        Ok(())
    }

    fn seal_all<D>(&mut self, state: &mut WriteTraffic<'_, D>, plain: Plain) -> io::Result<()> {
        if !plain.bytes.is_empty() {
            self.seal(state, plain.bytes)?;
        }
        if plain.ends {
            let free = self.free(SEALING);
            self.filled += state.queue_close_notify(free).map_err(io::Error::other)?;
        }
        Ok(())
    }
}

/// Plaintext to send; `ends`: and close_notify after it.
#[derive(Clone, Copy)]
struct Plain<'a> {
    bytes: &'a [u8],
    ends: bool,
}

impl Plain<'_> {
    const NONE: Plain<'static> = Plain { bytes: &[], ends: false };

    fn is_none(self) -> bool {
        self.bytes.is_empty() && !self.ends
    }
}

/// The result of a receive.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Received {
    /// There may be more later.
    Some,
    /// The other side closed, with or without close_notify.
    End,
}

/// A connection with its session.
pub struct Link<S> {
    pub socket: TcpStream,
    session: S,
    /// The beginning of a record whose rest has not arrived.
    partial: Vec<u8>,
    /// Plaintext that waits for the end of the handshake.
    waiting: Vec<u8>,
    /// Sealed bytes that the socket did not take.
    unsent: Vec<u8>,
    is_established: bool,
    /// The other side sent close_notify.
    is_closed: bool,
}

impl<S: Session> Link<S> {
    pub fn new(socket: TcpStream, session: S) -> Self {
        Self {
            socket,
            session,
            partial: Vec::new(),
            waiting: Vec::new(),
            unsent: Vec::new(),
            is_established: false,
            is_closed: false,
        }
    }

    /// Begins the handshake of a client: sends its first message.
    ///
    /// # Errors
    ///
    /// Those of the socket and of the session.
    pub fn begin(&mut self, buffers: &mut Buffers) -> io::Result<()> {
        buffers.output.filled = 0;
        self.advance(&mut [], &mut buffers.output, Plain::NONE, |_| Ok(()))?;
        self.write(&buffers.output)
    }

    /// Returns whether the handshake resumed a session; none before its end.
    pub fn is_resumed(&self) -> Option<bool> {
        if !self.is_established {
            return None;
        }
        self.session.common().handshake_kind().map(|kind| kind == HandshakeKind::Resumed)
    }

    /// Returns whether the other side sent close_notify.
    pub fn is_closed(&self) -> bool {
        self.is_closed
    }

    /// Returns whether sealed bytes wait for the socket.
    pub fn is_blocked(&self) -> bool {
        !self.unsent.is_empty()
    }

    /// Receives once, gives each piece of plaintext to `take` and sends the messages of the
    /// session.
    ///
    /// # Errors
    ///
    /// Those of the socket, of the session and of `take`.
    pub fn receive(
        &mut self,
        buffers: &mut Buffers,
        take: impl FnMut(&[u8]) -> io::Result<()>,
    ) -> io::Result<Received> {
        let have = self.partial.len();
        buffers.input[..have].copy_from_slice(&self.partial);
        let count = match (&self.socket).read(&mut buffers.input[have..]) {
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(Received::Some),
            Err(error) => return Err(error),
        };
        let end = have + count;
        buffers.output.filled = 0;
        let input = &mut buffers.input[..end];
        let used = self.advance(input, &mut buffers.output, Plain::NONE, take)?;
        self.partial.clear();
        self.partial.extend_from_slice(&buffers.input[used..end]);
        self.write(&buffers.output)?;
        Ok(if count == 0 || self.is_closed { Received::End } else { Received::Some })
    }

    /// Sends at most `SEND_MAX` bytes, with `ends` also close_notify. During the handshake they
    /// wait for its end. Bytes that the socket does not take are kept for `flush`.
    ///
    /// # Errors
    ///
    /// Those of the socket and of the session.
    pub fn send(&mut self, buffers: &mut Buffers, plain: &[u8], ends: bool) -> io::Result<()> {
        if !self.is_established {
            self.waiting.extend_from_slice(plain);
            return Ok(());
        }
        buffers.output.filled = 0;
        self.advance(&mut [], &mut buffers.output, Plain { bytes: plain, ends }, |_| Ok(()))?;
        self.write(&buffers.output)
    }

    /// Sends the bytes that the socket did not take before.
    ///
    /// # Errors
    ///
    /// Those of the socket.
    pub fn flush(&mut self) -> io::Result<()> {
        let count = taken(self.socket.write(&self.unsent))?;
        self.unsent.drain(..count);
        Ok(())
    }

    /// Processes received bytes, then seals `plain`. Returns how many bytes are used up.
    fn advance(
        &mut self,
        bytes: &mut [u8],
        output: &mut Output,
        plain: Plain,
        mut take: impl FnMut(&[u8]) -> io::Result<()>,
    ) -> io::Result<usize> {
        let mut used = 0;
        loop {
            let status = self.session.process(&mut bytes[used..]);
            used += status.discard;
            match status.state.map_err(io::Error::other)? {
                ConnectionState::ReadTraffic(mut state) => {
                    while let Some(record) = state.next_record() {
                        let record = record.map_err(io::Error::other)?;
                        used += record.discard;
                        take(record.payload)?;
                    }
                }
                ConnectionState::EncodeTlsData(mut state) => {
                    output.filled += match state.encode(output.free(0)) {
                        Err(EncodeError::InsufficientSize(error)) => {
                            state.encode(output.free(error.required_size))
                        }
                        other => other,
                    }
                    .map_err(io::Error::other)?;
                }
                ConnectionState::TransmitTlsData(state) => state.done(),
                ConnectionState::PeerClosed => self.is_closed = true,
                ConnectionState::WriteTraffic(mut state) => {
                    self.is_established = true;
                    if !self.waiting.is_empty() {
                        output.seal(&mut state, &std::mem::take(&mut self.waiting))?;
                    }
                    output.seal_all(&mut state, plain)?;
                    return Ok(used);
                }
                _ if plain.is_none() => return Ok(used),
                _ => return Err(io::ErrorKind::ConnectionAborted.into()),
            }
        }
    }

    fn write(&mut self, output: &Output) -> io::Result<()> {
        let bytes = &output.bytes[..output.filled];
        let mut count = 0;
        if self.unsent.is_empty() && !bytes.is_empty() {
            count = taken(self.socket.write(bytes))?;
        }
        self.unsent.extend_from_slice(&bytes[count..]);
        Ok(())
    }
}

/// Returns how many bytes a socket took; 0 if it takes none now.
fn taken(result: io::Result<usize>) -> io::Result<usize> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(0),
        other => other,
    }
}
